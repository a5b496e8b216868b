"""Policy for hosts on a cluster of real kubelets with kube-proxy: node ports, translated and forwarded connections,
from host to host, from outside; and deny-all on every host, under which the cluster stays manageable.

Rule: packets are the proof, of IPv4 and IPv6 alike. OPEN and CLOSED are ports on which pods and hosts answer.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.control_plane import NET4, NET6
from tests.lab.host import BIN, end, start
from tests.lab.lab import Lab, install_bundle, running_lab
from tests.lab.probes import Outside, Probe, host_probe, probes_of, serving
from tests.lab.proxy import install_kube_proxy
from tests.lab.workloads import pod

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(900)]
OPEN, CLOSED, NODE_PORT = 8000, 8001, 30080
OUTSIDE, OUTSIDE6 = f"{NET4}.1", f"{NET6}1"
FAMILIES = 2
KUBELET = 10250
BETWEEN_NODES = ("host to a pod of the other", "pod to pod")
WITH_ALL = "projectcalico-default-allow"
ALLOW, DENY = {"action": "Allow"}, {"action": "Deny"}
DEFAULT_FAILSAFE = [
    {"protocol": "UDP", "port": 68},
    *({"protocol": "TCP", "port": port} for port in (22, 179, 2379, 2380, 5473, 6443, 6666, 6667)),
]


class Hosts:
    """The lab, a pod and the host of each node, and what has been applied. ``tunnels``: between the nodes' pods."""

    def __init__(self, lab: Lab, *, tunnels: bool) -> None:
        self.lab = lab
        self.tunnels = tunnels
        self.pods = list(probes_of(lab, "default", 2).values())
        self.hosts = [host_probe(node) for node in lab.nodes]
        self.outside = Outside("outside", lab.nodes[0], OUTSIDE, "", lab)
        self.applied: list[dict[str, Any]] = []
        self.addresses = {node.name: node.addresses.split(",") for node in lab.nodes}
        for each in lab.pods():
            self.addresses[each["metadata"]["name"]] = [entry["ip"] for entry in each["status"]["podIPs"]]

    def apply(self, kind: str, name: str, spec: dict[str, Any], **labels: str) -> None:
        metadata = {"name": name, "labels": labels}
        document = {"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": metadata, "spec": spec}
        self.applied.append(document)
        self.lab.apply(document)

    def apply_policy(self, name: str, **spec: Any) -> None:
        self.apply("GlobalNetworkPolicy", f"default.{name}", {"selector": "role == 'host'", **spec})

    def remove(self, kind: str, *names: str) -> None:
        self.lab.kubectl("delete", f"{kind.lower()}.crd.projectcalico.org", *names, "--ignore-not-found")

    def remove_all(self) -> None:
        for document in reversed(self.applied):
            self.remove(document["kind"], document["metadata"]["name"])
        self.applied.clear()

    def put_hosts(self, name: str, interface: str, *, profiles: list[str]) -> list[str]:
        """A host endpoint on each node; ``name`` with NODE for the node's name."""
        names = []
        for node in self.lab.nodes:
            names.append(name.replace("NODE", node.name))
            expected = self.addresses[node.name]
            spec = {"node": node.name, "interfaceName": interface, "expectedIPs": expected, "profiles": profiles}
            self.apply("HostEndpoint", names[-1], spec, role="host", node=node.name)
        return names

    def reached(self, source: Probe, to: Probe, port: int) -> int:
        """In how many families."""
        return len(source.reaches(port, *self.addresses[to.name], protocol="tcp"))

    def ways(self) -> dict[str, int]:
        """Who reaches what, and in how many families."""
        one, two = self.hosts
        return {
            "outside to a node port": self.reached(self.outside, one, NODE_PORT),
            "host to a node port of the other": self.reached(two, one, NODE_PORT),
            "outside to a host": self.reached(self.outside, one, OPEN),
            "host to host": self.reached(one, two, OPEN),
            "host to host, the other port": self.reached(one, two, CLOSED),
            "host to its own pod": self.reached(one, self.pods[0], OPEN),
            "host to a pod of the other": self.reached(one, self.pods[1], OPEN),
            "pod to pod": self.reached(self.pods[0], self.pods[1], OPEN),
            "pod to the other host": self.reached(self.pods[0], two, OPEN),
        }

    def between_nodes(self) -> tuple[str, ...]:
        """What of that passes the hosts' ``eth0`` as it is: with tunnels nothing."""
        return () if self.tunnels else BETWEEN_NODES

    def until_ways(self, *closed: str) -> None:
        """Until all but these are open, in both families."""

        def wrong() -> dict[str, int]:
            return {way: count for way, count in self.ways().items() if count != (0 if way in closed else FAMILIES)}

        try:
            until(lambda: not wrong(), f"all but {closed} open", timeout_s=90, pause_s=0.2)
        except AssertionError as e:
            rules = self.lab.nodes[0].run("nft", "list", "ruleset")
            raise AssertionError(
                f"{e}, but open in so many families: {wrong()}\n{rules}\n{self.lab.describe()}"
            ) from None


def to_ports(action: dict[str, Any], *ports: int | str, **source: Any) -> dict[str, Any]:
    return {**action, "protocol": "TCP", "source": source, "destination": {"ports": list(ports)}}


SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "type": "NodePort",
        "ipFamilyPolicy": "RequireDualStack",
        "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": OPEN, "nodePort": NODE_PORT}],
    },
}


@pytest.fixture(scope="module", params=["iptables", "nftables", "iptables-no-tunnels", "nftables-no-tunnels"])
def hosts_lab(request: pytest.FixtureRequest, busybox_image: Path, own_bundle: Path) -> Iterator[Hosts]:
    """``param`` begins with kube-proxy's mode."""
    mode, _, without = request.param.partition("-")
    pools = {"CALICO_IPV4POOL_VXLAN": "Never", "CALICO_IPV6POOL_VXLAN": "Never"} if without else {}
    with running_lab(dual=True, images=[busybox_image], bundle=own_bundle) as lab:
        install_bundle(lab, **pools)
        install_kube_proxy(lab, mode)
        for number, node in enumerate(lab.nodes):
            lab.apply(pod(f"web-{number}", "default", {"app": "web"}, node.name))
        lab.apply(SERVICE)
        made = Hosts(lab, tunnels=not without)
        with serving([*made.pods, *made.hosts], OPEN, CLOSED):
            yield made


@pytest.fixture
def policed(hosts_lab: Hosts) -> Iterator[Hosts]:
    hosts_lab.until_ways()
    yield hosts_lab
    hosts_lab.remove_all()
    hosts_lab.until_ways()


def test_node_ports_forwarded_and_host_to_host(policed: Hosts) -> None:
    policed.put_hosts("NODE-eth0", "eth0", profiles=[WITH_ALL])
    node_ports = to_ports(DENY, "30000:32767")
    policed.apply_policy(
        "node-ports", order=1, preDNAT=True, applyOnForward=True, types=["Ingress"], ingress=[node_ports]
    )
    policed.until_ways("outside to a node port", "host to a node port of the other")
    trusted = to_ports(ALLOW, "30000:32767", nets=[f"{OUTSIDE}/32", f"{OUTSIDE6}/128"])
    policed.apply_policy(
        "node-ports", order=1, preDNAT=True, applyOnForward=True, types=["Ingress"], ingress=[trusted, node_ports]
    )
    policed.until_ways("host to a node port of the other")
    policed.remove("GlobalNetworkPolicy", "default.node-ports")
    policed.until_ways()

    to_pods = {**to_ports(DENY, OPEN), "destination": {"selector": "app == 'web'", "ports": [OPEN]}}
    policed.apply_policy("forwarded", order=1, applyOnForward=True, types=["Ingress"], ingress=[to_pods, ALLOW])
    policed.until_ways("outside to a node port", "host to a node port of the other", *policed.between_nodes())
    policed.remove("GlobalNetworkPolicy", "default.forwarded")

    from_hosts = to_ports(DENY, CLOSED, selector="role == 'host'")
    policed.apply_policy("between", order=1, types=["Ingress"], ingress=[from_hosts, ALLOW])
    policed.until_ways("host to host, the other port")
    assert policed.reached(policed.outside, policed.hosts[1], CLOSED) == FAMILIES


# -- deny-all ---------------------------------------------------------------------------------------------------------

BY_NAME = (
    "outside to a node port",
    "host to a node port of the other",
    "outside to a host",
    "host to host",
    "host to host, the other port",
    "pod to the other host",
)
EVERYWHERE = (*BY_NAME, *BETWEEN_NODES)  # "*" means the interfaces of tunnels and pods, too


def deny_all(hosts: Hosts) -> None:
    """Forwarded traffic, too."""
    hosts.apply_policy("deny-all", order=1, applyOnForward=True, types=["Ingress", "Egress"], ingress=[], egress=[])


def require_manageable(hosts: Hosts, name: str) -> None:
    """With the failsafe ports alone; with the kubelet's port among them, the kubelet too. Leaves a pod of this name."""
    lab, node = hosts.lab, hosts.lab.nodes[0]
    since = heartbeats(lab)
    lab.apply(pod(name, "default", {"app": "new"}, node.name, ("sh", "-c", "echo started; sleep 100000")))
    until(lambda: is_running(lab, name), f"{name} runs", timeout_s=120, pause_s=0.3)
    assert lab.bundle is not None
    settings = ("DATASTORE_TYPE=kubernetes", f"KUBECONFIG={lab.plane.admin}")
    assert node.name in node.run("env", *settings, lab.bundle / "calicoctl", "get", "nodes")  # from the node itself
    node.run("/opt/cni/bin/calico-node", "-felix-live", "-felix-ready")
    lab.calicoctl("get", "hostendpoints")
    until(lambda: said_what_is_cut(hosts), "the agents name the kubelet's port", timeout_s=60, pause_s=0.2)
    assert not any(hosts.reached(hosts.outside, host, KUBELET) for host in hosts.hosts)
    for each in lab.nodes:
        ports = [*DEFAULT_FAILSAFE, {"protocol": "TCP", "port": KUBELET}]
        hosts.apply("FelixConfiguration", f"node.{each.name}", {"failsafeInboundHostPorts": ports})
    until(lambda: has_logs(lab, name), "logs through the kubelet's port", timeout_s=60, pause_s=0.2)
    until(lambda: later(heartbeats(lab), since), "every node has reported since", timeout_s=120, pause_s=0.5)
    lab.await_ready_nodes()


def remove_pod(lab: Lab, name: str) -> None:
    lab.kubectl("delete", "pod", name, "--grace-period=1", "--wait=true", "--timeout=120s")


def said_what_is_cut(hosts: Hosts) -> bool:
    logs = [(node.directory / "calico-node.log").read_text() for node in hosts.lab.nodes]
    return all("the kubelet (kubectl logs, exec)" in log for log in logs)


def heartbeats(lab: Lab) -> dict[str, str]:
    leases = lab.get("leases", "-n", "kube-node-lease")["items"]
    return {lease["metadata"]["name"]: lease["spec"]["renewTime"] for lease in leases}


def later(now: dict[str, str], before: dict[str, str]) -> bool:
    return all(now[name] > before[name] for name in before)


def is_running(lab: Lab, name: str) -> bool:
    return any(one["metadata"]["name"] == name and one["status"]["phase"] == "Running" for one in lab.pods())


def has_logs(lab: Lab, name: str) -> bool:
    return "started" in kubectl_outside(lab, "logs", name)


def can_exec(lab: Lab, name: str) -> bool:
    return kubectl_outside(lab, "exec", name, "--", "echo", "hello").strip() == "hello"


def kubectl_outside(lab: Lab, *argv: str) -> str:
    """What it prints within ten seconds."""
    command = lab.plane.inside("timeout", "10", BIN / "kubectl", f"--kubeconfig={lab.plane.admin}", *argv)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
    return done.stdout


@contextmanager
def automatic_hosts(hosts: Hosts) -> Iterator[None]:
    """Made, labelled as their nodes are, and removed by the bundle's controllers."""
    lab = hosts.lab
    assert lab.bundle is not None
    settings = ("DATASTORE_TYPE=kubernetes", f"KUBECONFIG={lab.plane.admin}", "ENABLED_CONTROLLERS=node")
    program = (lab.bundle / "calico-kube-controllers", "-status-file", lab.directory / "controllers.json")
    controllers = start(lab.directory / "controllers.log", *lab.plane.inside("env", *settings, *program))
    try:
        lab.kubectl("label", "nodes", "--all", "role=host")
        switch_automatic_hosts(hosts, "Enabled")
        made = {f"{node.name}-auto-hep": "host" for node in lab.nodes}
        until(lambda: roles_of_hosts(lab) == made, "a host endpoint on each node", timeout_s=60, pause_s=0.3)
        yield
        switch_automatic_hosts(hosts, "Disabled")
        until(lambda: not roles_of_hosts(lab), "the host endpoints are removed", timeout_s=60, pause_s=0.3)
    finally:
        end(controllers)
        lab.kubectl("label", "nodes", "--all", "role-")


def switch_automatic_hosts(hosts: Hosts, switch: str) -> None:
    spec = {"controllers": {"node": {"hostEndpoint": {"autoCreate": switch}}}}
    hosts.apply("KubeControllersConfiguration", "default", spec)


def roles_of_hosts(lab: Lab) -> dict[str, str]:
    """The label of each host endpoint, by its name."""
    items = json.loads(lab.calicoctl("get", "hostendpoints", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item["metadata"]["labels"].get("role", "") for item in items}


def test_deny_all_at_the_interfaces_of_all_hosts(policed: Hosts) -> None:
    names = policed.put_hosts("NODE-eth0", "eth0", profiles=[])
    deny_all(policed)
    policed.until_ways(*BY_NAME, *policed.between_nodes())
    require_manageable(policed, "by-name")
    assert can_exec(policed.lab, "by-name")
    policed.until_ways(*BY_NAME, *policed.between_nodes())
    remove_pod(policed.lab, "by-name")
    policed.remove("GlobalNetworkPolicy", "default.deny-all")
    policed.remove("HostEndpoint", *names)  # without a profile they stay closed
    policed.until_ways()


def test_deny_all_everywhere_on_all_hosts(policed: Hosts) -> None:
    """At the host endpoints that our controllers make: with a profile that allows what no policy decides."""
    with automatic_hosts(policed):
        require_manageable_everywhere(policed)


def require_manageable_everywhere(policed: Hosts) -> None:
    policed.until_ways()
    deny_all(policed)
    policed.until_ways(*EVERYWHERE)
    require_manageable(policed, "everywhere")
    # the kubelet and containerd talk through lo, to a port that nobody knows before
    assert not can_exec(policed.lab, "everywhere")
    on_the_host = [{**ALLOW, "source": {"nets": ["127.0.0.0/8"]}, "destination": {"nets": ["127.0.0.0/8"]}}]
    policed.apply_policy("loopback", order=0, types=["Ingress", "Egress"], ingress=on_the_host, egress=on_the_host)
    until(lambda: can_exec(policed.lab, "everywhere"), "exec", timeout_s=60, pause_s=0.2)
    policed.until_ways(*EVERYWHERE)
    remove_pod(policed.lab, "everywhere")
    policed.remove("GlobalNetworkPolicy", "default.deny-all", "default.loopback")
    policed.until_ways()
