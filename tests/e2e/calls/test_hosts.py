"""docs/hosts.md and the uninstalling of docs/runbook.md, step by step as they stand there, with the frozen executables.

The host is a network namespace with mounts of its own; a stand-in for systemctl starts what the unit says.
"""

from __future__ import annotations

import io
import json
import re
import socket
import subprocess
import sys
import tarfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import LAB_CACHE, ROOT
from tests.deadlines import until
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace, namespace
from tests.netns.private_host import PrivateHost, private_host
from tests.pages import blocks

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.cnitool]

OUTSIDE = "198.51.100.2"
BIRD = "/etc/calico/planted"  # an agent without BGP removes what is in the usual place
CNITOOL = str(LAB_CACHE / "bin" / "cnitool")


@pytest.fixture
def outside() -> Iterator[Namespace]:
    with namespace("outside") as made:
        yield made


@pytest.fixture
def fresh(bundle: Path, outside: Namespace) -> Iterator[PrivateHost]:
    """A host with a way out, where nothing is installed but portmap; ``outside`` knows no way back to pods."""
    with namespace("host") as ns:
        ns.do("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", outside.name)
        ns.do("addr", "add", "198.51.100.1/24", "dev", "eth0")
        ns.do("link", "set", "eth0", "up")
        ns.do("route", "add", "default", "via", OUTSIDE)
        outside.do("addr", "add", f"{OUTSIDE}/24", "dev", "eth0")
        outside.do("link", "set", "eth0", "up")
        with private_host(ns) as made:
            made.run("install", "-D", str(LAB_CACHE / "cni" / "bin" / "portmap"), "/opt/cni/bin/portmap")
            yield made


@pytest.fixture
def installed(fresh: PrivateHost) -> PrivateHost:
    """As docs/hosts.md says, one block after the other."""
    install, configure, look, *_ = blocks("hosts.md", "One host, by hand")
    fresh.shell(install, ROOT)
    fresh.shell(configure, ROOT)
    fresh.shell(look, ROOT)
    return fresh


def cnitool(host: PrivateHost, command: str, pod: Namespace, **capabilities: Any) -> Any:
    environ = {"NETCONFPATH": "/etc/cni/net.d", "CNI_PATH": "/opt/cni/bin", "CAP_ARGS": json.dumps(capabilities)}
    done = host.run(CNITOOL, command, "calico", pod.path, env=environ)
    return json.loads(done.stdout) if done.stdout.strip() else None


def calico_links(host: PrivateHost) -> list[str]:
    return [link["ifname"] for link in host.ns.ip("link") if link["ifname"].startswith("cali")]


WEB, STORE = "ab" * 32, "/var/lib/containers/storage/db.sql"
PLUGIN = """python3 -c 'import json; c = json.load(open("/etc/cni/net.d/10-calico.conflist"))
print(json.dumps({**c["plugins"][0], "name": c["name"], "cniVersion": c["cniVersion"]}))' | /opt/cni/bin/calico"""


def call_as_podman(host: PrivateHost, command: str, pod: Namespace) -> None:
    call = {"COMMAND": command, "CONTAINERID": WEB, "NETNS": pod.path, "IFNAME": "eth0", "PATH": "/opt/cni/bin"}
    environ = {f"CNI_{key}": value for key, value in call.items()}
    host.run("sh", "-c", PLUGIN, env={**environ, "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=web"})


def check_a_damaged_database(host: PrivateHost, pod: Namespace) -> None:
    """The container starts, with the name that the call says; the status says why other labels are missing."""
    host.write(STORE, "no database" * 1000)
    call_as_podman(host, "ADD", pod)
    [shown] = json.loads(host.run("/opt/cni/bin/calicoctl", "get", "wep", "-o", "json").stdout)["items"]
    assert shown["metadata"]["labels"]["cni-calico.io/container"] == "web"

    def status() -> str:
        return host.run("/opt/cni/bin/calicoctl", "node", "status", check=False).stdout

    until(lambda: f"labels may be missing: {STORE}: " in status(), "the status says why", 60, pause_s=0.3)
    call_as_podman(host, "DEL", pod)
    host.run("rm", STORE)


def test_one_host_from_nothing_to_nothing(installed: PrivateHost, make_pod_ns: MakeNamespace) -> None:
    host = installed
    looked = host.shell(blocks("hosts.md", "One host, by hand")[2], ROOT).stdout
    assert "Ready:     yes" in looked and "default-ipv4-ippool" in looked
    pods = [make_pod_ns("pod"), make_pod_ns("pod")]
    check_a_damaged_database(host, pods[0])
    addresses = [cnitool(host, "add", pod)["ips"][0]["address"].partition("/")[0] for pod in pods]
    assert all(address.startswith("192.168.") for address in addresses)
    assert host.exists("/run/calico/cni.sock")

    def reaches(address: str) -> bool:
        return pods[0].run("ping", "-c1", "-W1", address, check=False).returncode == 0

    until(lambda: reaches(OUTSIDE), "the outside, masqueraded", 20)
    assert reaches(addresses[1])
    cnitool(host, "check", pods[0])
    cnitool(host, "del", pods[0])
    assert len(calico_links(host)) == 1
    apply(host, "GlobalNetworkPolicy", "nobodys", NOBODYS)
    until(lambda: host.run("nft", "list", "tables").stdout.count("calico-policy") == 3, "policies are enforced", 20)

    [uninstall] = blocks("runbook.md", "Uninstalling from a host")
    host.shell(uninstall, ROOT)
    assert calico_links(host) == []
    assert "calico" not in host.run("nft", "list", "ruleset").stdout
    assert "cni-calico" not in host.run("iptables-save").stdout
    assert [route for route in host.ns.routes(4) if route.get("protocol") in ("80", "bird")] == []
    host.run("rm", "-r", "/var/lib/cni")  # cnitool's own
    left = host.run(
        "find", "/etc", "/opt/cni", "/var/lib", "/var/log", "/run", "/usr/share/doc", "-xdev", "-name", "*calico*"
    )
    assert left.stdout.split() == ["/run/calico-node.pid"]  # the stand-in's own
    assert host.run("ls", "-A", "/opt/cni/bin").stdout.split() == ["portmap"]


NOBODYS = {"selector": "has(nobody)", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
CLOSED = {"selector": "has(calico)", "order": 500, "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
OLD_PROFILE = {
    "ingress": [{"action": "Allow", "source": {"selector": "has(calico)"}}],
    "egress": [{"action": "Allow"}],
    "labelsToApply": {"calico": ""},
}


def apply(host: PrivateHost, kind: str, name: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": {"name": name}, "spec": spec}
    host.run("/opt/cni/bin/calicoctl", "apply", "-f", "-", stdin=json.dumps(document))


def delete(host: PrivateHost, name: str) -> None:
    host.run("/opt/cni/bin/calicoctl", "delete", "gnp", name)


def documented_policy() -> dict[str, Any]:
    """The one of docs/hosts.md that lets published ports in."""
    text = (ROOT / "docs" / "hosts.md").read_text().partition("## Network policy\n")[2]
    [block] = re.findall(r"^```yaml\n(.*?)^```", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)
    found: dict[str, Any] = yaml.safe_load(block)
    return found


def answers(where: Namespace, address: str = "198.51.100.1", port: int = 8080) -> bool:
    """A new connection from there, if nothing else is said to the published port."""
    return where.call(_connects, address, port)


def is_policed(host: PrivateHost) -> bool:
    """More than the standing rules: the chain through which packets to workloads go to their policies."""
    tables = ("table ip calico-policy", "table ip6 calico-policy")
    listings = [host.run("nft", "list", table).stdout for table in tables]
    for listing in listings:
        assert "chain spoofing" in listing, "the standing rules are there, policies or not"
    return any("chain to-workloads" in listing for listing in listings)


def _connects(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(0.5)
        try:
            client.connect((address, port))
            return client.recv(5) == b"hello"
        except OSError:
            return False


SERVER = """
import socket
listening = socket.create_server(("0.0.0.0", 80))
while True:
    connection, _ = listening.accept()
    connection.sendall(b"hello")
    connection.close()
"""


def test_published_ports_before_and_after_policing(
    installed: PrivateHost, outside: Namespace, make_pod_ns: MakeNamespace
) -> None:
    """By docs/hosts.md: open until a policy says otherwise; with an older version's profile until the first one."""
    host, pod = installed, make_pod_ns("pod")
    port = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
    cnitool(host, "add", pod, portMappings=[port])
    server = subprocess.Popen(["ip", "netns", "exec", pod.name, sys.executable, "-c", SERVER])
    try:
        until(lambda: answers(outside), "the published port answers outside", 20)
        assert not is_policed(host)
        # the first policy, which is nobody's: now policies and profiles are enforced
        apply(host, "GlobalNetworkPolicy", "nobodys", NOBODYS)
        until(lambda: is_policed(host), "policies are enforced", 20)
        assert answers(outside)
        apply(host, "GlobalNetworkPolicy", "closed", CLOSED)
        until(lambda: not answers(outside), "closed by a policy", 20)
        delete(host, "closed")
        until(lambda: answers(outside), "open again", 20)
        # what an older version made of the network's profile
        apply(host, "Profile", "calico", OLD_PROFILE)
        until(lambda: not answers(outside), "closed by the profile", 20)
        policy = documented_policy()
        apply(host, policy["kind"], policy["metadata"]["name"], policy["spec"])
        until(lambda: answers(outside), "opened by the policy of the page", 20)
        delete(host, policy["metadata"]["name"])
        delete(host, "nobodys")
        until(lambda: not is_policed(host), "no policy, no policing", 20)
        until(lambda: answers(outside), "open, whatever the profile says", 20)
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("policed", [False, True], ids=["no policy", "policies"])
def test_published_ports_from_everywhere(
    installed: PrivateHost, outside: Namespace, make_pod_ns: MakeNamespace, policed: bool
) -> None:
    """With the real portmap: what keeps pods out of the host's loopback addresses lets its translations through."""
    host, pod = installed, make_pod_ns("pod")
    if policed:
        apply(host, "GlobalNetworkPolicy", "nobodys", NOBODYS)
    port = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
    added = cnitool(host, "add", pod, portMappings=[port])
    address = added["ips"][0]["address"].partition("/")[0]
    command = [sys.executable, "-c", SERVER]
    server = subprocess.Popen(["ip", "netns", "exec", pod.name, *command])
    health = subprocess.Popen(["ip", "netns", "exec", host.ns.name, *command])
    try:
        until(lambda: is_policed(host) == policed, "policies are enforced if there are some", 20)
        until(lambda: answers(outside), "the published port answers outside", 20)
        assert answers(host.ns, "127.0.0.1") and answers(host.ns), "the host itself, by both its addresses"
        assert answers(pod), "the container itself, by the host's address"
        assert answers(host.ns, address, 80), "as a kubelet's probe"
        until(lambda: answers(host.ns, "127.0.0.1", 80), "a service of the host at its loopback address", 20)
    finally:
        for one in (server, health):
            one.kill()
            one.wait()


def secrets() -> dict[str, str]:
    return {
        where: f"planted-{where}-9f3c"
        for where in ("etcd", "k8s", "log", "bird", "refused", "cni", "kubeconfig", "ctl", "url")
    }


def plant(host: PrivateHost) -> dict[str, str]:
    """Passwords and tokens where they are on real hosts, and copies of them where they should not be."""
    s = secrets()
    env = host.read("/etc/calico/calico-node.env")
    host.write(
        "/etc/calico/calico-node.env",
        f"{env}\nETCD_PASSWORD={s['etcd']}\nK8S_API_TOKEN={s['k8s']}\n"
        f"ETCD_DISCOVERY_SRV=https://root:{s['url']}@example.org\n",
        mode="0600",
    )
    for name, secret in (("bird.cfg", s["bird"]), ("refused/bird.cfg", s["refused"])):
        host.write(f"{BIRD}/{name}", f'protocol bgp a {{ password "{secret}"; }}\n', mode="0600")
    host.write(f"{BIRD}/refused/reason.txt", f"bird.cfg:1 unexpected {s['refused']}\n")
    config = {"apiVersion": "projectcalico.org/v3", "kind": "CalicoAPIConfig"}
    spec = {"datastoreType": "local", "etcdPassword": s["ctl"]}
    host.write("/etc/calico/calicoctl.cfg", json.dumps({**config, "metadata": {}, "spec": spec}))
    policy = {"type": "k8s", "k8s_auth_token": s["cni"]}
    host.write("/etc/cni/net.d/20-other.conflist", json.dumps({"name": "o", "plugins": [{"policy": policy}]}))
    host.write("/etc/cni/net.d/calico-kubeconfig", f"users:\n- user:\n    token: {s['kubeconfig']}\n", mode="0600")
    known = [secret for where, secret in s.items() if where != "log"]  # that one is nowhere else
    bare = "".join(f"cannot log in with {secret}: refused\n" for secret in known)
    coded = "".join(f"data: {b64encode(secret.encode()).decode()}\n" for secret in known)
    host.write("/var/log/calico/cni/cni.log", f"a line before\n{bare}{coded}password: {s['log']}\na line after\n")
    host.ns.do("link", "set", "eth0", "alias", s["bird"])
    host.run("nft", "add table ip odd; add chain ip odd c; add rule ip odd c accept comment " + json.dumps(s["etcd"]))
    host.run("iptables", "-A", "INPUT", "-m", "comment", "--comment", s["cni"], "-j", "ACCEPT")
    return s


def test_diags_hold_no_secret_of_any_place(fresh: PrivateHost) -> None:
    host = fresh
    install, configure, look, *_ = blocks("hosts.md", "One host, by hand")
    prepare, start = install.rsplit("systemctl daemon-reload", 1)
    host.shell(prepare, ROOT)
    planted = plant(host)
    host.shell(f"systemctl daemon-reload{start}", ROOT)
    host.shell(configure, ROOT)
    until(lambda: host.shell(look, ROOT, check=False).returncode == 0, "the agent runs", 60)
    archive = "/var/tmp/diags.tar.gz"
    host.run("/opt/cni/bin/calicoctl", "node", "diags", "-o", archive, env={"CALICO_BIRD_CONFIG_DIR": BIRD})
    assert host.run("stat", "-c", "%a", archive).stdout.strip() == "600"
    coded = host.run("base64", "-w0", archive).stdout
    texts = contents(coded)
    everything = "\n".join(texts.values())
    for where, secret in planted.items():
        assert secret not in everything, (where, [name for name, text in texts.items() if secret in text])
        assert b64encode(secret.encode()).decode().rstrip("=") not in everything, where
    # and what it is for is there
    for name, text in (
        ("logs/cni/cni.log", "a line after"),
        ("config/bird/bird.cfg", "protocol bgp a"),
        ("config/bird/refused/reason.txt", "bird.cfg:1 unexpected"),
        ("config/cni/10-calico.conflist", '"datastore_type": "local"'),
        ("config/cni/20-other.conflist", "k8s_auth_token"),
        ("config/calico/calico-node.env", "DATASTORE_TYPE=local"),
        ("config/environment", "CALICO_NETWORKING_BACKEND=none"),
        ("network/nftables", "table ip calico"),
        ("network/iptables-v4", "--comment"),
        ("network/links", "eth0"),
        ("network/routes-v4", "default via"),
        ("status", "Calico process is running."),
        ("status.json", '"synced": true'),
    ):
        assert text in texts[name], name
    assert "config/cni/calico-kubeconfig" not in texts


def contents(coded: str) -> dict[str, str]:
    """Name -> text of an archive's members, by their names below its one directory."""
    texts = {}
    with tarfile.open(fileobj=io.BytesIO(b64decode(coded))) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            texts[member.name.partition("/")[2]] = file.read().decode(errors="replace") if file else ""
    return texts
