"""etcd, API server, controllers and scheduler, in a network namespace with a bridge that the nodes hang on.

Rule: addresses are the same in every lab, because no packet leaves its namespaces.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.deadlines import until
from tests.lab.host import BIN, Authority, arguments, end, run, start

NET4, NET6 = "10.99.0", "fd99::"
API = f"https://{NET4}.1:6443"
SERVICES = {False: "10.96.0.0/16", True: "10.96.0.0/16,fd96::/112"}
ETCD = f"https://{NET4}.1:2379"  # for the nodes, who show a certificate
_ETCD, _PEER = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
_AUDIT = """apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
"""
_POST = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], sys.argv[2].encode()).read().decode())"
_NAMES = f"IP:127.0.0.1,IP:{NET4}.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"


class ControlPlane:
    """``start`` returns when the API server is ready; ``stop`` leaves nothing but the directory."""

    def __init__(self, directory: Path, name: str, *, dual: bool) -> None:
        self.directory = directory
        self.netns = f"{name}-cp"
        self.dual = dual
        self.audit = directory / "audit.log"
        self.authority = Authority(directory / "pki")
        self.admin = self._client("admin", "/O=system:masters/CN=admin")
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _client(self, name: str, subject: str) -> Path:
        self.authority.issue(name, subject)
        return self.authority.kubeconfig(self.directory / f"{name}.kubeconfig", API, name)

    def kubectl(self, *argv: str | Path, check: bool = True, stdin: str = "") -> str:
        done = run(*self.inside(BIN / "kubectl", f"--kubeconfig={self.admin}", *argv), check=check, input=stdin)
        return done.stdout

    def get(self, *argv: str) -> Any:
        """A kubectl get, parsed."""
        return json.loads(self.kubectl("get", *argv, "-o", "json"))

    def inside(self, *argv: str | Path) -> list[str | Path]:
        """The command, in the control plane's network namespace."""
        return ["nsenter", f"--net=/var/run/netns/{self.netns}", *argv]

    def audited(self, since: int = 0) -> list[dict[str, Any]]:
        """The audit log's events, from a number of them on."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()[since:]]

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        run("ip", "netns", "add", self.netns)
        for step in ("link set lo up", "link add br0 type bridge", f"addr add {NET4}.1/24 dev br0", "link set br0 up"):
            run("ip", "-n", self.netns, *step.split())
        if self.dual:
            run("ip", "-n", self.netns, "addr", "add", f"{NET6}1/64", "dev", "br0", "nodad")
        self._start_etcd()
        self.start_apiserver()
        self._start_controllers()
        until(
            lambda: "default" in self.kubectl("get", "serviceaccount", check=False),
            "the default service account",
            pause_s=0.1,
        )

    def _start_etcd(self) -> None:
        pki = self.authority
        pki.issue("etcd", "/CN=etcd", f"IP:{NET4}.1")
        pki.issue("etcd-client", "/CN=calico")
        self._start("etcd", "--unsafe-no-fsync", "--client-cert-auth", *arguments(
            data_dir=self.directory / "etcd", log_level="warn", listen_client_urls=f"{_ETCD},{ETCD}",
            advertise_client_urls=_ETCD, listen_peer_urls=_PEER, initial_advertise_peer_urls=_PEER,
            initial_cluster=f"default={_PEER}", trusted_ca_file=pki.path("ca.crt"), cert_file=pki.path("etcd.crt"),
            key_file=pki.path("etcd.key"),
        ))  # fmt: skip

    def etcd_keys(self, prefix: str) -> list[str]:
        """What of Calico's lies in etcd below a prefix, asked without its TLS."""
        end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
        first, last = (base64.b64encode(key.encode()).decode() for key in (prefix, end))
        body = json.dumps({"key": first, "range_end": last, "keys_only": True})
        done = run(*self.inside(sys.executable, "-c", _POST, f"{_ETCD}/v3/kv/range", body))
        return [base64.b64decode(entry["key"]).decode() for entry in json.loads(done.stdout).get("kvs", [])]

    def etcd_file(self, what: str) -> Path:
        """The client's "ca", "cert" or "key"."""
        return self.authority.path({"ca": "ca.crt", "cert": "etcd-client.crt", "key": "etcd-client.key"}[what])

    def stop_apiserver(self) -> None:
        end(self._running.pop("kube-apiserver"))

    def start_apiserver(self) -> None:
        """Until it is ready."""
        if not (self.directory / "audit.yaml").exists():
            self._prepare_apiserver()
        self._run_apiserver()
        until(
            lambda: "ok" in self.kubectl("get", "--raw", "/readyz", check=False),
            "the API server's /readyz",
            pause_s=0.1,
        )

    def _prepare_apiserver(self) -> None:
        (self.directory / "audit.yaml").write_text(_AUDIT)
        pki = self.authority
        pki.issue("apiserver", "/CN=kube-apiserver", _NAMES)
        pki.issue("kubelet-client", "/O=system:masters/CN=kubelet-client")

    def _run_apiserver(self) -> None:
        pki = self.authority
        self._start("kube-apiserver", *arguments(
            etcd_servers=_ETCD, bind_address="0.0.0.0", secure_port=6443, advertise_address=f"{NET4}.1",
            tls_cert_file=pki.path("apiserver.crt"), tls_private_key_file=pki.path("apiserver.key"),
            client_ca_file=pki.path("ca.crt"), service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=pki.path("accounts.pub"),
            service_account_signing_key_file=pki.path("accounts.key"),
            service_cluster_ip_range=SERVICES[self.dual], authorization_mode="Node,RBAC",
            enable_admission_plugins="NodeRestriction", allow_privileged="true",
            kubelet_client_certificate=pki.path("kubelet-client.crt"),
            kubelet_client_key=pki.path("kubelet-client.key"), kubelet_preferred_address_types="InternalIP",
            audit_log_path=self.audit, audit_policy_file=self.directory / "audit.yaml",
        ))  # fmt: skip

    def _start_controllers(self) -> None:
        pki = self.authority
        for name, own in (
            ("kube-controller-manager", arguments(
                service_account_private_key_file=pki.path("accounts.key"), root_ca_file=pki.path("ca.crt"),
                use_service_account_credentials="true", allocate_node_cidrs="false",
            )),
            ("kube-scheduler", []),
        ):  # fmt: skip
            kubeconfig = self._client(name, f"/CN=system:{name}")
            everywhere = arguments(
                kubeconfig=kubeconfig, authentication_kubeconfig=kubeconfig, authorization_kubeconfig=kubeconfig,
                leader_elect="false", bind_address="127.0.0.1",
            )  # fmt: skip
            self._start(name, *everywhere, *own)

    def _start(self, program: str, *argv: str | Path) -> None:
        log = self.directory / f"{program}.log"
        self._running[program] = start(log, *self.inside(BIN / program, *argv))

    def stop(self) -> None:
        while self._running:
            end(self._running.popitem()[1])
        run("ip", "netns", "delete", self.netns, check=False)
