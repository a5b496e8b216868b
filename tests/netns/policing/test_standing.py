"""Standing rules: what guards a node whether or not it enforces policy, in both packet filters."""

from __future__ import annotations

import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.log import SILENT
from cni_calico.model.access import KubernetesAccess
from cni_calico.nodeagent.context.kubernetes import ApiNode
from cni_calico.nodeagent.policing.enforce.filters import IPTABLES, NFTABLES, DataPlane, count_dropped
from cni_calico.nodeagent.policing.report.drops import DroppedPackets
from cni_calico.nodeagent.policing.tables.stages import SPOOFED
from cni_calico.nodeagent.policing.tables.tunnels import UNKNOWN_VXLAN, Tunnels
from cni_calico.nodeagent.status.policing import PolicyFigures
from tests.deadlines import until
from tests.netns.policing.lab import NODE, Lab, socket_in
from tests.netns.policing.test_legacy import saved
from tests.netns.policing.test_stages import ELSEWHERE, alias
from tests.netns.policing.uplinked import HOST, OTHER, POD, Uplinked, uplinked_lab

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

FILTERS = {"nftables": {}, "iptables": {"FELIX_NFTABLESMODE": "Disabled"}}
VXLAN, HEALTH = 4789, 9099
SECOND, FORGED = {4: "10.65.0.2", 6: "fd00::2"}, {4: "203.0.113.5", 6: "2001:db8:bad::5"}
BOTH_FAMILIES = pytest.mark.parametrize("version", [4, 6])


@pytest.fixture(params=list(FILTERS))
def guarded_node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Uplinked]:
    """Two workloads, no policy, an uplink."""
    with uplinked_lab(tmp_path) as made:
        made.lab.always = {**FILTERS[request.param], "FELIX_DEFAULTENDPOINTTOHOSTACTION": "RETURN"}
        made.lab.add("b", *SECOND.values(), app="b")
        yield made


def until_standing(lab: Lab, **environ: str) -> None:
    lab.start(**environ)
    until(lambda: "spoofing" in lab.ruleset() and lab.standing().get("ready"), "the standing rules are in force")
    assert not lab.standing()["in_force"] and lab.standing()["ready"]


def set_port_map(node: Uplinked) -> None:
    """As portmap and kube-proxy map the host's port 8080, on every address of the host, to the workload's port 80."""
    pod, host = POD[4], HOST[4]
    rules = f"""
table ip portmap {{
  chain pre {{ type nat hook prerouting priority -100; fib daddr type local tcp dport 8080 dnat to {pod}:80; }}
  chain out {{ type nat hook output priority -100; ip daddr {{ 127.0.0.1, {host} }} tcp dport 8080 dnat to {pod}:80; }}
  chain post {{ type nat hook postrouting priority 100; ip saddr {{ 127.0.0.1, {pod} }} ip daddr {pod} masquerade; }}
}}"""
    node.host.run("nft", rules)
    for name in ("all", "calia"):
        node.host.set_sysctl(f"ipv4/conf/{name}/route_localnet", "1")


@BOTH_FAMILIES
def test_sources_and_tunnels_packets_of_workloads(guarded_node: Uplinked, version: int) -> None:
    """Without a policy; they stay when the agent stops, and a setting of their own takes them away."""
    lab = guarded_node.lab
    alias(lab, "spoofed", "a", FORGED[version])

    def passes(name: str, port: int) -> bool:
        return lab.passes(name, "b", port, version=version)

    assert passes("spoofed", 80) and passes("a", VXLAN)

    def guarded() -> bool:
        assert lab.passes("a", "b", 80) and lab.passes("b", "a", 80, version=6)
        return not passes("spoofed", 80) and not passes("a", VXLAN)

    until_standing(lab)
    assert guarded()
    assert not guarded_node.from_workload_to_host(VXLAN, version) and guarded_node.from_workload_to_host(80, version)
    assert "from-workloads" not in lab.ruleset()
    lab.stop(signal.SIGKILL)
    assert guarded()
    before = saved(lab)
    until_standing(lab, FELIX_POLICYENFORCEMENT="Disabled")
    assert guarded() and saved(lab) == before
    lab.stop()
    lab.start(FELIX_STANDINGRULES="Disabled")
    until(lambda: "spoofing" not in lab.ruleset(), "the setting takes them away")
    assert passes("spoofed", 80) and passes("a", VXLAN)


@BOTH_FAMILIES
def test_kubernetes_on_etcd_before_its_profiles_exist(guarded_node: Uplinked, version: int) -> None:
    """No policy is enforced, although there is one; sources and tunnels are guarded all the same, and stay so when
    the first profile comes.
    """
    lab, usual = guarded_node.lab, guarded_node.lab.open_context
    kubernetes = ApiNode(KubernetesAPI(KubernetesAccess()), NODE)  # nobody asks it here
    lab.open_context = lambda log: replace(usual(log), kubernetes=kubernetes)
    lab.put("GlobalNetworkPolicy", "closed", {"selector": "app == 'b'", "types": ["Ingress"], "ingress": []})
    lab.remove("Profile", "kns.default")
    alias(lab, "spoofed", "a", FORGED[version])
    lab.tunnels = Tunnels(frozenset({version}), False, frozenset())
    lab.start()
    until(lambda: "spoofing" in lab.ruleset() and "profiles" in str(lab.standing()), "the standing rules are in force")

    def guarded() -> bool:
        assert not lab.passes("spoofed", "b", 80, version=version) and not lab.passes("a", "b", VXLAN, version=version)
        return not guarded_node.into_host(VXLAN, version)

    assert not lab.standing()["in_force"] and not lab.standing()["ready"]
    assert guarded() and lab.passes("a", "b", 80, version=version)
    lab.put_profile("kns.default")
    lab.until_in_force(policies=1)
    assert guarded() and not lab.passes("a", "b", 80, version=version) and lab.passes("b", "a", 80, version=version)


def test_no_packet_slips_through_when_policies_come_and_go(guarded_node: Uplinked) -> None:
    lab = guarded_node.lab
    alias(lab, "spoofed", "a", FORGED[4])
    until_standing(lab)
    ending, sent = threading.Event(), 0
    lab.receiver("b", 4)

    def send() -> None:
        nonlocal sent
        with socket_in(lab.workloads["a"].ns, socket.AF_INET, socket.SOCK_DGRAM) as forged:
            forged.bind((FORGED[4], 0))
            while not ending.wait(0.0002):
                for port, word in ((80, b"forged"), (VXLAN, b"forged")):
                    forged.sendto(word, (SECOND[4], port))
                sent += 2

    thread = threading.Thread(target=send)
    thread.start()
    try:
        for _ in range(4):
            lab.put("GlobalNetworkPolicy", "elsewhere", ELSEWHERE)
            lab.until_in_force(endpoints=2)
            lab.remove("GlobalNetworkPolicy", "elsewhere")
            until(lambda: not lab.standing().get("in_force") and "to-workloads" not in lab.ruleset(), "it is gone")
    finally:
        ending.set()
        thread.join()
    assert sent > 100 and lab.arrivals("b", b"forged") == 0


@BOTH_FAMILIES
def test_a_container_with_two_interfaces(guarded_node: Uplinked, version: int) -> None:
    """Its addresses are its own at both; another workload that claims to be this container gains nothing."""
    lab = guarded_node.lab
    length, of_second = {4: (32, "10.65.0.12"), 6: (128, "fd00::12")}[version]
    second = lab.connect("a2", "calia2", of_second)
    mine = {"endpoint": "net1", "interfaceName": "calia2", "ipNetworks": [f"{of_second}/{length}"]}
    document = {**lab.workloads["a"].document, **mine}
    lab.put("WorkloadEndpoint", "n1-k8s-a-net1", document, "default")
    lab.workloads["b"].document["containerID"] = document["containerID"]
    lab.put_endpoint(lab.workloads["b"], app="b")
    for of, name in (("a2", "first"), ("b", "thief")):
        alias(lab, name, of, POD[version])  # the address is the first interface's
    lab.add("c", "10.65.0.3", "fd00::3")

    def passes(name: str) -> bool:
        return lab.passes(name, "c", 80, version=version)

    assert passes("thief")
    until_standing(lab)
    assert passes("a2") and passes("first")
    assert not passes("thief") and second.interface == "calia2"


def frame(node: Uplinked, source: str, destination: str, port: int, word: bytes) -> None:
    """A UDP packet from the workload's interface, as it likes."""
    udp = struct.pack(">HHHH", 4000, port, 8 + len(word), 0) + word
    head = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 1, 0, 64, 17, 0)
    head += socket.inet_aton(source) + socket.inet_aton(destination)
    total = sum(struct.unpack(">10H", head))
    total = (total >> 16) + (total & 0xFFFF)
    head = head[:10] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + head[12:]
    pod = node.lab.workloads["a"].ns
    mac = pod.link("eth0")
    assert mac is not None
    with socket_in(pod, socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
        wire.bind(("eth0", 0))
        wire.send(bytes.fromhex("ee" * 6 + mac["address"].replace(":", "") + "0800") + head + udp)


def out_of_loopback(node: Uplinked) -> bool:
    """Whether a packet of the host from 127.0.0.3 leaves by the workload's interface."""
    pod = node.lab.workloads["a"].ns
    with (
        socket_in(pod, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as seen,
        socket_in(node.host, socket.AF_INET, socket.SOCK_DGRAM) as own,
        socket_in(node.host, socket.AF_INET, socket.SOCK_DGRAM) as usual,
    ):
        seen.bind(("eth0", 3))
        seen.settimeout(20)
        own.bind(("127.0.0.3", 0))
        with suppress(PermissionError):  # how the kernel says that it was dropped on its way out
            own.sendto(b"from loopback", (POD[4], 9))
        found = False
        for mark in (b"first", b"last"):
            usual.sendto(mark, (POD[4], 9))
            while not (data := seen.recv(2048)).endswith(mark):
                found = found or data.endswith(b"from loopback")
    return found


@pytest.mark.parametrize("policed", [False, True])
def test_loopback_addresses_of_the_host(guarded_node: Uplinked, policed: bool) -> None:
    """Raw frames from a pod do not reach what listens there; what portmap and kube-proxy do with them works."""
    lab = guarded_node.lab
    set_port_map(guarded_node)
    if policed:
        lab.put("GlobalNetworkPolicy", "elsewhere", ELSEWHERE)
    assert out_of_loopback(guarded_node)
    with socket_in(guarded_node.host, socket.AF_INET, socket.SOCK_DGRAM) as health:
        health.bind(("127.0.0.1", HEALTH))
        health.settimeout(20)
        frame(guarded_node, POD[4], "127.0.0.1", HEALTH, b"before")
        assert health.recv(100) == b"before"  # the hole
        if policed:
            lab.start()
            lab.until_in_force(endpoints=2)
        else:
            until_standing(lab)
        for source, word in ((POD[4], b"attack"), ("127.0.0.1", b"attack")):
            frame(guarded_node, source, "127.0.0.1", HEALTH, word)
        frame(guarded_node, "127.0.0.2", HOST[4], HEALTH, b"attack")
        frame(guarded_node, POD[4], SECOND[4], 9, b"follows")
        until(lambda: lab.passes("a", "b", 80), "what was sent before has been dealt with")
        with socket_in(guarded_node.host, socket.AF_INET, socket.SOCK_DGRAM) as own:
            own.sendto(b"own", ("127.0.0.1", HEALTH))
        assert health.recv(100) == b"own"
    cannot = bool(lab.always.get("FELIX_NFTABLESMODE")) and not policed  # iptables has no hook for it
    assert out_of_loopback(guarded_node) is cannot
    pod = lab.workloads["a"].ns
    pod.do("link", "set", "lo", "up")
    with socket_in(pod, socket.AF_INET, socket.SOCK_STREAM) as listening:
        listening.bind(("0.0.0.0", 80))
        listening.listen()
        for client_ns, address, port in (
            (guarded_node.host, "127.0.0.1", 8080),  # hostPort, NodePort
            (guarded_node.host, HOST[4], 8080),
            (guarded_node.host, POD[4], 80),  # the kubelet's probes
            (pod, HOST[4], 8080),  # the container itself
            (lab.workloads["b"].ns, HOST[4], 8080),
            (guarded_node.other, HOST[4], 8080),
        ):
            with socket_in(client_ns, socket.AF_INET, socket.SOCK_STREAM) as client:
                for end in (client, listening):
                    end.settimeout(20)
                client.connect((address, port))
                served = listening.accept()[0]
                with served:
                    client.sendall(b"hello")
                    assert served.recv(5) == b"hello"


def ipip_arrives(node: Uplinked) -> bool:
    """From the other host."""
    with (
        socket_in(node.host, socket.AF_INET, socket.SOCK_RAW, 4) as arrived,
        socket_in(node.other, socket.AF_INET, socket.SOCK_RAW, 4) as stranger,
    ):
        stranger.sendto(b"inner", (HOST[4], 0))
        assert node.into_host(80)  # what was sent before has been dealt with
        arrived.setblocking(False)
        try:
            return arrived.recv(100).endswith(b"inner")
        except BlockingIOError:
            return False


def of_other(version: int, *, ipip: bool = False) -> Tunnels:
    """A node with VXLAN in a family, to which the other host is a node as well."""
    return Tunnels(frozenset({version}), ipip, frozenset({ip_network(OTHER[version])}))


@BOTH_FAMILIES
def test_no_stranger_sends_through_tunnels(guarded_node: Uplinked, version: int) -> None:
    """VXLAN and IPIP from an address that is no node's, without a policy."""
    lab = guarded_node.lab
    ipip = version == 4

    def arrives() -> bool:
        found = guarded_node.into_host(VXLAN, version)
        assert not ipip or ipip_arrives(guarded_node) is found
        return found

    assert arrives()
    elsewhere = ip_network({4: "172.31.0.7/32", 6: "fd31::7/128"}[version])
    lab.tunnels = Tunnels(frozenset({version}), ipip, frozenset({elsewhere}))
    until_standing(lab)
    assert not arrives() and guarded_node.into_host(80, version)
    lab.stop()
    assert not arrives()
    lab.tunnels = of_other(version, ipip=ipip)
    lab.start()
    until(lambda: guarded_node.into_host(VXLAN, version), "it is a node now")
    assert arrives()


def test_loopback_of_ipv6_needs_no_rule(guarded_node: Uplinked) -> None:
    """The kernel itself drops ::1 that comes from an interface."""
    pod = guarded_node.lab.workloads["a"].ns
    udp = struct.pack(">HHHH", 4000, HEALTH, 14, 1) + b"attack"
    head = struct.pack(">IHBB", 6 << 28, len(udp), 17, 64) + socket.inet_pton(socket.AF_INET6, POD[6])
    head += socket.inet_pton(socket.AF_INET6, "::1")
    mac = pod.link("eth0")
    assert mac is not None
    with (
        socket_in(guarded_node.host, socket.AF_INET6, socket.SOCK_RAW, 17) as arrived,
        socket_in(pod, socket.AF_PACKET, socket.SOCK_RAW, 0) as wire,
        socket_in(guarded_node.host, socket.AF_INET6, socket.SOCK_DGRAM) as own,
    ):
        wire.bind(("eth0", 0))
        wire.send(bytes.fromhex("ee" * 6 + mac["address"].replace(":", "") + "86dd") + head + udp)
        arrived.settimeout(20)
        own.sendto(b"own", ("::1", HEALTH))
        assert arrived.recv(100).endswith(b"own")


def make_tunnel(node: Uplinked, *remotes: str, version: int = 4) -> str:
    """As an agent left it: up, and leading to these hosts. Its name."""
    name = "vxlan.calico" if version == 4 else "vxlan-v6.calico"
    link = (name, "type", "vxlan", "id", "4096", "dstport", str(VXLAN), "nolearning")
    node.host.do("link", "add", *link, "dev", "eth0", "local", HOST[version])
    node.host.do("link", "set", name, "up")
    for number, remote in enumerate(remotes):
        mac = f"66:00:00:00:00:{number:02x}"
        node.host.run("bridge", "fdb", "append", mac, "dev", name, "dst", remote, "self", "permanent")
    return name


@BOTH_FAMILIES
def test_before_anything_has_been_read(guarded_node: Uplinked, version: int) -> None:
    """On a node without rules of ours, whom forwarding entries name counts as a node, and nobody else."""
    lab = guarded_node.lab
    alias(lab, "spoofed", "a", FORGED[version])
    name = make_tunnel(guarded_node, OTHER[version], version=version)
    lab.tunnels = None
    lab.start()
    until(lambda: "unknown node" in lab.ruleset(), "the tunnel is guarded")
    until(lambda: lab.standing().get("warnings"), "and the status says how")
    assert guarded_node.into_host(VXLAN, version) and "1 addresses" in lab.standing()["warnings"][0]

    def passes(source: str, port: int) -> bool:
        return lab.passes(source, "b", port, version=version)

    assert not passes("a", VXLAN) and passes("a", 80)
    assert passes("spoofed", 80)  # what a container may send from has not been read
    entry = ("66:00:00:00:00:00", "dev", name, "dst", OTHER[version], "self")
    guarded_node.host.run("bridge", "fdb", "del", *entry)
    until(lambda: not guarded_node.into_host(VXLAN, version), "it is not named any more")
    lab.stop()
    assert not guarded_node.into_host(VXLAN, version)
    lab.tunnels = of_other(version)
    lab.start()
    until(lambda: "spoofing" in lab.ruleset() and lab.standing().get("ready"), "everything has been read")
    until(lambda: guarded_node.into_host(VXLAN, version), "the Nodes count")
    assert not passes("spoofed", 80) and not passes("a", VXLAN)


def test_before_anything_has_been_read_routes_name_the_nodes_of_ipip(guarded_node: Uplinked) -> None:
    """Of the device only the name counts, so that this needs no kernel that has IPIP."""
    lab, host = guarded_node.lab, guarded_node.host
    if host.link("tunl0") is None:
        host.do("link", "add", "tunl0", "type", "veth", "peer", "name", "tunl0-end")
    host.do("link", "set", "tunl0", "up")
    lab.tunnels = None
    lab.start()
    until(lambda: "unknown node" in lab.ruleset(), "the tunnel is guarded")
    assert not ipip_arrives(guarded_node) and guarded_node.into_host(VXLAN)  # VXLAN has no device here
    host.do("route", "add", "10.66.0.0/26", "via", OTHER[4], "dev", "tunl0", "onlink")
    until(lambda: ipip_arrives(guarded_node), "the route leads to it")
    host.do("route", "del", "10.66.0.0/26", "dev", "tunl0")
    until(lambda: not ipip_arrives(guarded_node), "no route leads to it")


@BOTH_FAMILIES
def test_what_an_earlier_run_left_stays_until_everything_has_been_read(guarded_node: Uplinked, version: int) -> None:
    lab = guarded_node.lab
    make_tunnel(guarded_node, {4: "172.31.0.77", 6: "fd31::77"}[version], version=version)
    lab.tunnels = of_other(version)
    until_standing(lab)
    lab.stop(signal.SIGKILL)
    before = saved(lab)
    lab.tunnels = None
    lab.start()
    until(lambda: lab.standing(), "the engine has looked")
    assert saved(lab) == before and not lab.standing()["warnings"] and guarded_node.into_host(VXLAN, version)


@BOTH_FAMILIES
def test_a_host_that_is_no_node_may_be_named(guarded_node: Uplinked, version: int) -> None:
    """Before and after the Nodes have been read."""
    lab = guarded_node.lab
    make_tunnel(guarded_node, version=version)
    lab.tunnels = None
    lab.start(FELIX_EXTERNALNODESCIDRLIST="172.31.0.8/31,fd31::8/125")
    until(lambda: "unknown node" in lab.ruleset(), "the tunnel is guarded")
    assert guarded_node.into_host(VXLAN, version)


def counted(*, by_iptables: bool) -> dict[str, int]:
    """What the agent's thread makes of the counters, in this namespace."""
    figures = PolicyFigures()
    count = partial(count_dropped, DataPlane(IPTABLES if by_iptables else NFTABLES))
    drops = DroppedPackets(0 if by_iptables else 61789, SILENT, figures, count, by_iptables=by_iptables)
    drops.look()
    drops.close()
    return dict(figures.dropped)


def listens(node: Uplinked) -> bool:
    """Whether anybody listens to what the rules report."""
    listed = Path(f"/proc/{node.lab.pid}/net/netfilter/nfnetlink_log").read_text()
    return any(line.split()[0] == "61789" for line in listed.splitlines())


def test_what_is_dropped_is_counted_and_told_once_for_each_interface(guarded_node: Uplinked) -> None:
    """With what allows it. Legacy iptables does not say which interface, and tells each reason once."""
    lab = guarded_node.lab
    for name, of in (("forger", "a"), ("second", "b")):
        alias(lab, name, of, "203.0.113.5")
    lab.tunnels = Tunnels(frozenset({4}), False, frozenset())
    until_standing(lab)
    by_iptables = bool(lab.always.get("FELIX_NFTABLESMODE"))
    until(lambda: by_iptables or listens(guarded_node), "what is dropped is told")
    assert not lab.passes("forger", "b", 80) and not lab.passes("second", "a", 80)
    assert not lab.passes("a", "b", VXLAN) and not guarded_node.into_host(VXLAN)
    where = ("",) * 3 if by_iptables else (" that came in by calia", " that came in by calib", " that came in by eth0")
    reasons = (
        f"{where[0]}: {SPOOFED}",
        f"{where[1]}: {SPOOFED}",
        "VXLANPACKETSFROMWORKLOADS",
        f"{where[2]}: {UNKNOWN_VXLAN}",
    )
    until(lambda: all(reason in lab.log() for reason in (*reasons, "EXTERNALNODES")), "everything is told")
    assert not lab.passes("forger", "b", 80)
    told = lab.log().count("dropped packets: " if by_iptables else "dropped a packet")
    assert told == (3 if by_iptables else 4) and "FELIX_WORKLOADSOURCESPOOFING=Any" in lab.log()
    lab.stop()
    found = guarded_node.host.call(partial(counted, by_iptables=by_iptables))
    assert {name: count for name, count in found.items() if count} == {
        "spoofed-source": 3,
        "vxlan-from-workload": 1,
        "vxlan-from-unknown-node": 1,
    }


def test_nobody_listens_where_no_rule_stands(uplinked: Uplinked) -> None:
    until_standing(uplinked.lab)
    until(lambda: listens(uplinked), "reports are taken")
    uplinked.lab.stop()
    uplinked.lab.start(FELIX_STANDINGRULES="Disabled")
    until(lambda: "spoofing" not in uplinked.lab.ruleset() and uplinked.lab.standing().get("ready"), "they are gone")
    uplinked.lab.put("NetworkPolicy", "other", {"selector": "app == 'b'", "types": ["Ingress"]}, "default")
    uplinked.lab.until_in_force()
    until(lambda: listens(uplinked), "with policies they stand")
    uplinked.lab.remove("NetworkPolicy", "other", "default")
    until(lambda: not uplinked.lab.standing()["in_force"] and not listens(uplinked), "nobody listens any more")
