"""A real Envoy with the filter that docs/http-policy.md shows asks calico-alp, which follows the agent's own server."""

from __future__ import annotations

import http.client
import http.server
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.nodeagent.sync import serving
from cni_calico.policy.wanted import (
    Members,
    PeerTexts,
    Wanted,
    WantedChanges,
    WantedHttp,
    WantedPolicy,
    WantedRule,
    WantedSide,
)
from tests.conftest import ROOT
from tests.deadlines import until
from tests.unit.nodeagent.sync.test_serving import CLASS, ENDPOINT, KEY, POLICY, Served

ENVOY = Path(sys.executable).with_name("envoy")
CLIENT, OTHER = "127.0.0.2", "127.0.0.3"
PUBLIC = WantedRule(
    "Allow", protocol=6, source=WantedSide(sets=("s-clients",)), http=WantedHttp(("GET",), prefixes=("/public",))
)
OF_CART = WantedRule(
    "Allow", protocol=6, source=WantedSide(sets=("s-clients",), texts=PeerTexts(accounts=("cart",))), http=None
)


class Echo(http.server.BaseHTTPRequestHandler):
    """The workload: it says which path it was asked for."""

    def do_GET(self) -> None:
        data = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: Any) -> None:
        """Nothing."""


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    return port


def documented() -> tuple[dict[str, Any], dict[str, Any]]:
    """The filter and the cluster that the page shows."""
    blocks = (ROOT / "docs/http-policy.md").read_text().split("```yaml\n")
    block = next(block.split("```")[0] for block in blocks if "http_filters" in block)
    shown = yaml.safe_load(block)
    return shown["http_filters"][0], shown["clusters"][0]


def certificates(directory: Path) -> None:
    """A CA, and a certificate for each service account, named as meshes name them."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=directory, check=True, capture_output=True, timeout=90)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=mesh", "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
    for account in ("web", "cart", "plain"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/O=mesh",
                "-keyout", f"{account}.key", "-out", f"{account}.csr")  # fmt: skip
        name = f"subjectAltName=URI:spiffe://cluster.local/ns/shop/sa/{account}"
        (directory / f"{account}.ext").write_text(name)
        openssl("x509", "-req", "-in", f"{account}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", f"{account}.ext", "-out", f"{account}.crt")  # fmt: skip


def envoy_config(directory: Path, ports: dict[str, int]) -> dict[str, Any]:
    """A listener in plain text and one that demands the clients' certificates, before the same workload."""
    authorization, checker = documented()
    checker["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["pipe"]["path"] = str(
        directory / "alp.sock"
    )
    hcm = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"
    manager = {
        "@type": hcm,
        "stat_prefix": "in",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "workload"}}],
                }
            ]
        },
        "http_filters": [
            authorization,
            {"name": "envoy.filters.http.router", "typed_config": {"@type": router}},
        ],
    }
    tls = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        "require_client_certificate": True,
        "common_tls_context": {
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": str(directory / "web.crt")},
                    "private_key": {"filename": str(directory / "web.key")},
                }
            ],
            "validation_context": {"trusted_ca": {"filename": str(directory / "ca.crt")}},
        },
    }

    def listener(name: str, **more: Any) -> dict[str, Any]:
        chain = {"filters": [{"name": "http", "typed_config": manager}], **more}
        address = {"socket_address": {"address": "127.0.0.1", "port_value": ports[name]}}
        return {"name": name, "address": address, "filter_chains": [chain]}

    backend = {"socket_address": {"address": "127.0.0.1", "port_value": ports["workload"]}}
    workload = {
        "name": "workload",
        "type": "STATIC",
        "load_assignment": {
            "cluster_name": "workload",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": backend}}]}],
        },
    }
    secure = listener("tls", transport_socket={"name": "tls", "typed_config": tls})
    return {"static_resources": {"listeners": [listener("plain"), secure], "clusters": [workload, checker]}}


class Sidecar:
    """A pod with its workload, an Envoy and a calico-alp, and the agent of its node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.agent = Served(directory, serving.CUT_S)
        self.tell(PUBLIC)
        self.workload = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Echo)
        threading.Thread(target=self.workload.serve_forever).start()
        self.ports = {"plain": free_port(), "tls": free_port(), "workload": self.workload.server_address[1]}
        certificates(directory)
        config = directory / "envoy.yaml"
        config.write_text(yaml.safe_dump(envoy_config(directory, self.ports)))
        self.socket = self.agent.add()
        self.alp: subprocess.Popen[bytes] | None = None
        command = [ENVOY, "-c", config, "--use-dynamic-base-id", "--concurrency", "1", "-l", "error"]
        self.log = (directory / "envoy.log").open("wb")
        self.envoy = subprocess.Popen([str(word) for word in command], stderr=self.log)

    def tell(self, rule: WantedRule) -> None:
        policies = {POLICY: WantedPolicy(POLICY, "default", (rule,), None)}
        members = Members(frozenset({ip_address(CLIENT).packed}))
        self.agent.server.become(Wanted({"s-clients": members}, policies, {"c-1": CLASS}, {KEY: ENDPOINT}))

    def start_alp(self) -> None:
        words = ["server", "-l", str(self.directory / "alp.sock"), "-d", str(self.socket)]
        self.alp = subprocess.Popen([sys.executable, "-m", "cni_calico.alp.main", *words], cwd=ROOT)

    def stop_alp(self) -> None:
        if self.alp is not None:
            self.alp.terminate()
            self.alp.wait(90)
            self.alp = None

    def ask(self, path: str, method: str = "GET", source: str = CLIENT, account: str = "") -> tuple[int, str]:
        """The status, and what the workload said; 0 while nobody listens."""
        where = ("127.0.0.1", self.ports["tls" if account else "plain"])
        given: Any = {"timeout": 90, "source_address": (source, 0)}
        if account:
            context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
            context.check_hostname = False
            context.load_cert_chain(self.directory / f"{account}.crt", self.directory / f"{account}.key")
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(*where, context=context, **given)
        else:
            connection = http.client.HTTPConnection(*where, **given)
        with closing(connection):
            try:
                connection.putrequest(method, path)
                connection.endheaders()
                answer = connection.getresponse()
            except ConnectionError:
                return 0, ""
            return answer.status, answer.read().decode()

    def stop(self) -> None:
        self.envoy.terminate()
        self.envoy.wait(90)
        self.log.close()
        self.stop_alp()
        self.workload.shutdown()
        self.workload.server_close()
        self.agent.stop()


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    found = Sidecar(tmp_path)
    try:
        yield found
    finally:
        found.stop()


def test_requests_through_a_real_envoy(sidecar: Sidecar) -> None:
    """Without a checker nothing passes; then by path, method, address and account; a change; and without it again."""
    until(lambda: sidecar.ask("/public/x")[0] == 403, "Envoy refuses while nobody answers")
    sidecar.start_alp()
    until(lambda: sidecar.ask("/public/x") == (200, "/public/x"), "what is allowed passes")
    for path in ("/", "/publicity", "/public/../admin", "/public/%2e%2e/admin", "/public/%252e", "/public/..;/admin"):
        assert sidecar.ask(path)[0] == 403, path
    assert sidecar.ask("/public?x=/../admin") == (200, "/public?x=/../admin")
    assert sidecar.ask("/public/x", method="POST")[0] == 403
    assert sidecar.ask("/public/x", source=OTHER)[0] == 403
    assert sidecar.ask("/public/x", account="plain")[0] == 200
    sidecar.tell(OF_CART)
    until(lambda: sidecar.ask("/admin")[0] == 200, "the path is not asked for any more")
    assert (sidecar.ask("/", account="cart")[0], sidecar.ask("/", account="plain")[0]) == (200, 403)
    assert sidecar.ask("/", account="cart", source=OTHER)[0] == 403
    sidecar.agent.server.receive(WantedChanges(endpoints={KEY: None}, classes={"c-1": None}, policies={POLICY: None}))
    until(lambda: sidecar.ask("/admin")[0] == 503, "the pod is gone")
    sidecar.stop_alp()
    until(lambda: sidecar.ask("/admin")[0] == 403, "Envoy refuses without the checker")
