"""Policy for hosts, by the engine, on a host with an uplink to another one: what reaches it, what leaves it, what it
forwards; and that nobody is locked out.
"""

from __future__ import annotations

import re
import shutil
import signal
import socket
import struct
from functools import partial
from pathlib import Path

import pytest

from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.context.agent import Context
from tests.deadlines import until
from tests.netns.namespaces import namespace
from tests.netns.policing.lab import NODE, socket_in
from tests.netns.policing.uplinked import (
    DENY_ALL,
    DHCP,
    DNS,
    HOST,
    NODE_PORT,
    OTHER,
    POD,
    SSH,
    Uplinked,
    start,
)

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]


@pytest.mark.parametrize("version", [4, 6])
def test_a_host_endpoint_closes_its_interface_but_failsafe_ports(uplinked: Uplinked, version: int) -> None:
    assert uplinked.into_host(80, version) and uplinked.out_of_host(80, version)
    uplinked.put_host()
    start(uplinked, hosts=1)
    assert not uplinked.into_host(80, version) and not uplinked.out_of_host(80, version)
    assert uplinked.into_host(DHCP, version) and uplinked.out_of_host(DNS, version) and uplinked.log_in(version)
    assert uplinked.into_workload(80, version) and uplinked.from_workload_to_host(80)  # neither is the host's own
    uplinked.put_policy(
        "web",
        types=["Ingress", "Egress"],
        ingress=[{"action": "Allow", "protocol": "UDP", "destination": {"ports": [80]}}],
        egress=[{"action": "Allow", "protocol": "UDP", "destination": {"ports": [81]}}],
    )
    uplinked.until(lambda: uplinked.into_host(80, version), True, "the policy lets it in")
    assert (
        not uplinked.into_host(81, version)
        and uplinked.out_of_host(81, version)
        and not uplinked.out_of_host(80, version)
    )
    uplinked.lab.remove("HostEndpoint", "h")
    uplinked.until(lambda: uplinked.into_host(81, version), True, "everything is open again")
    assert uplinked.out_of_host(80, version)
    until(lambda: not re.search("host-in|failsafe", uplinked.lab.ruleset()), "nothing is left, of either family")


def test_deny_all_everywhere_locks_nobody_out(uplinked: Uplinked) -> None:
    """Killed, restarted, with records that come one by one: the failsafe ports are open all the time."""
    uplinked.put_host("all", "*")
    uplinked.lab.put("GlobalNetworkPolicy", "deny-all", {**DENY_ALL, "applyOnForward": True})
    start(uplinked, hosts=1, policies=1)
    for version in (4, 6):
        assert (
            not uplinked.into_host(80, version) and not uplinked.out_of_host(80, version) and uplinked.log_in(version)
        )
        assert not uplinked.into_workload(80, version)
        uplinked.host.do(f"-{version}", "neigh", "flush", "dev", "eth0")
        uplinked.other.do(f"-{version}", "neigh", "flush", "dev", "eth0")
        assert uplinked.log_in(version) and uplinked.into_host(DHCP, version)  # neighbours are found
    rules = uplinked.lab.ruleset()
    uplinked.lab.stop(signal.SIGKILL)
    assert uplinked.log_in() and not uplinked.into_host(80)
    start(uplinked, hosts=1, policies=1)
    assert uplinked.lab.ruleset() == rules and uplinked.log_in() and not uplinked.into_host(80)
    uplinked.lab.remove("GlobalNetworkPolicy", "deny-all")
    uplinked.until(lambda: uplinked.into_workload(80), True, "forwarding is open again")
    assert not uplinked.into_host(80) and uplinked.log_in()  # without a policy and a profile it is closed
    uplinked.lab.remove("HostEndpoint", "all")
    uplinked.until(lambda: uplinked.into_host(80), True, "everything is open again")
    for version in (4, 6):
        assert (
            uplinked.out_of_host(80, version)
            and uplinked.into_workload(80, version)
            and uplinked.into_host(80, version)
        )


@pytest.mark.parametrize("version", [4, 6])
def test_what_a_host_sends_to_itself(uplinked: Uplinked, version: int) -> None:
    """It passes ``lo``, twice, whichever interface has the address; the agent's health page always answers there."""
    uplinked.put_host("eth0", "eth0")
    start(uplinked, hosts=1)
    own = ({4: "127.0.0.1", 6: "::1"}[version], HOST[version])

    def reached() -> set[str]:
        marker = (uplinked.other, HOST[version], DHCP)
        return {to for to in own if uplinked.arrives(uplinked.host, to, 80, uplinked.host, marker)}

    assert reached() == {*own}
    uplinked.put_host("all", "*")
    uplinked.until(lambda: not reached(), True, "closed")
    allow = {"selector": "host == 'yes'", "order": 1}
    uplinked.put_policy("out", **allow, types=["Egress"], egress=[{"action": "Allow"}])
    uplinked.until(lambda: uplinked.out_of_host(80, version), True, "the policy is in force")
    assert not reached()  # they come in, too
    net = {4: "127.0.0.0/8", 6: "::1/128"}[version]
    uplinked.put_policy("in", **allow, types=["Ingress"], ingress=[{"action": "Allow", "source": {"nets": [net]}}])
    uplinked.until(lambda: reached() == {own[0]}, True, "open between loopback addresses")
    uplinked.lab.put("GlobalNetworkPolicy", "deny-all", {**DENY_ALL, "order": 0})
    uplinked.until(lambda: not reached(), True, "closed again")
    assert uplinked.connects(uplinked.host, own[0], 9099) and uplinked.connects(uplinked.host, own[1], 9099)
    uplinked.put_host("lo", "lo", profiles=["projectcalico-default-allow"], labels={})
    uplinked.lab.remove("GlobalNetworkPolicy", "deny-all")
    uplinked.until(lambda: reached() == {*own}, True, "lo has a host endpoint of its own")


def test_other_failsafe_ports(uplinked: Uplinked) -> None:
    uplinked.put_host()
    uplinked.lab.start(FELIX_FAILSAFEINBOUNDHOSTPORTS=f"udp:{DHCP},udp:172.31.0.0/28:70,udp:192.0.2.0/24:71")
    uplinked.lab.until_in_force(hosts=1)
    assert uplinked.into_host(70) and not uplinked.into_host(71) and not uplinked.into_host(SSH)


def test_expected_addresses_and_names_follow_the_interfaces(uplinked: Uplinked) -> None:
    uplinked.put_host("by-address", "", expectedIPs=[HOST[4], "192.0.2.200"])
    uplinked.put_host("elsewhere", "", expectedIPs=["192.0.2.201"])
    uplinked.put_host("later", "eth7")
    start(uplinked, hosts=3)
    uplinked.until_warned(
        "HostEndpoint elsewhere is not in force: no interface of this node has one of its expectedIPs"
    )
    uplinked.until_warned("HostEndpoint later is not in force: there is no interface eth7")
    assert not uplinked.into_host(80)
    uplinked.host.do("addr", "del", f"{HOST[4]}/24", "dev", "eth0")
    uplinked.host.do("addr", "add", f"{HOST[4]}/25", "dev", "eth0")  # as a DHCP client does
    uplinked.host.do("addr", "add", "172.31.0.2/24", "dev", "eth0")
    uplinked.until(lambda: uplinked.into_host(80), False, "policed again")
    uplinked.host.do("addr", "del", f"{HOST[4]}/25", "dev", "eth0")
    uplinked.until(lambda: uplinked.into_host(80, 6), True, "the interface has the address no more")
    uplinked.host.do("addr", "add", f"{HOST[4]}/24", "dev", "eth0")
    uplinked.until(lambda: uplinked.into_host(80, 6), False, "the interface has it again")
    uplinked.lab.remove("HostEndpoint", "by-address")
    uplinked.until(lambda: uplinked.into_host(80), True, "open")
    uplinked.put_host("old-name", "eth0")
    uplinked.until(lambda: uplinked.into_host(80), False, "policed by its name")
    uplinked.host.do("link", "set", "eth0", "down")
    uplinked.host.do("link", "set", "eth0", "name", "eth7")
    uplinked.host.do("link", "set", "eth7", "up")
    assert not uplinked.into_host(80)  # from its first packet on
    uplinked.until_warned("HostEndpoint old-name is not in force: there is no interface eth0")


def test_host_endpoints_that_contradict_each_other(uplinked: Uplinked) -> None:
    """The smallest name has the interface; the rest is named."""
    uplinked.put_policy("open", selector="who == 'a'", types=["Ingress"], ingress=[{"action": "Allow"}])
    uplinked.put_host("b", labels={"who": "b"})
    uplinked.put_host("all-b", "*", labels={"who": "b"})
    uplinked.put_host("all-a", "*", labels={"who": "b"})
    uplinked.put_host("excluded", "kube-ipvs0", labels={"who": "b"})
    start(uplinked, hosts=4)
    assert not uplinked.into_host(80)
    uplinked.put_host("a", labels={"who": "a"})
    uplinked.until(lambda: uplinked.into_host(80), True, "the smaller name's policies")
    uplinked.until_warned(
        "HostEndpoint b is not in force: HostEndpoint a has its interface, eth0: its name comes first"
    )
    uplinked.until_warned("HostEndpoint all-b is not in force: HostEndpoint all-a is for all interfaces too")
    uplinked.until_warned("HostEndpoint excluded is not in force: InterfaceExclude names its interface, kube-ipvs0")
    uplinked.lab.put("HostEndpoint", "bad", {"node": NODE, "interfaceName": "eth0 or eth1"})
    uplinked.put_host("c", "eth0", expectedIPs=["no address"])
    uplinked.put_host("d", "eth+")  # which iptables would take for all that begin like it
    uplinked.lab.put("HostEndpoint", "e", {"node": NODE})

    def named() -> set[str]:
        problems = uplinked.lab.standing().get("problems", ())
        return {text.split(":")[0].removeprefix("HostEndpoint ") for text in problems if "HostEndpoint" in text}

    until(lambda: named() == {"bad", "c", "d", "e"}, "what is wrong is named")
    assert uplinked.into_host(80) and uplinked.log_in()


@pytest.mark.parametrize("interface", ["eth0", "*", ""])
def test_excluded_interfaces(uplinked: Uplinked, interface: str) -> None:
    """By an expression; once it has a name that is not excluded, it is policed from its first packet on."""
    uplinked.put_host("h", interface, expectedIPs=[HOST[4]])
    uplinked.put_host("all", "*")
    excluded = {"FELIX_INTERFACEEXCLUDE": "kube-ipvs0,/^eth[0-4]$/"}
    uplinked.lab.start(FELIX_DEFAULTENDPOINTTOHOSTACTION="RETURN", **excluded)
    uplinked.lab.until_in_force(hosts=2)
    for version in (4, 6):
        assert uplinked.into_host(80, version) and uplinked.out_of_host(80, version)
    uplinked.host.do("link", "set", "eth0", "down")
    uplinked.host.do("link", "set", "eth0", "name", "eth5")
    uplinked.host.do("link", "set", "eth5", "up")
    assert not uplinked.into_host(80) and not uplinked.out_of_host(80) and uplinked.log_in()


def test_forwarded_traffic(uplinked: Uplinked) -> None:
    uplinked.put_host()
    uplinked.put_policy("own", types=["Ingress", "Egress"], ingress=[{"action": "Deny"}], egress=[{"action": "Deny"}])
    start(uplinked, hosts=1, policies=1)
    assert uplinked.into_workload(80) and uplinked.out_of_workload(80) and not uplinked.into_host(80)
    uplinked.put_policy(
        "through",
        applyOnForward=True,
        order=1,
        types=["Ingress", "Egress"],
        ingress=[{"action": "Allow", "protocol": "UDP", "destination": {"ports": [80]}}],
        egress=[{"action": "Allow", "protocol": "UDP", "destination": {"ports": [81]}}],
    )
    uplinked.until(lambda: uplinked.into_workload(81), False, "the end of the tier")
    assert uplinked.into_workload(80) and uplinked.out_of_workload(81) and not uplinked.out_of_workload(80)
    assert not uplinked.into_workload(DHCP)  # failsafe ports are the host's own
    assert uplinked.into_host(80)  # it counts there as well


@pytest.mark.parametrize("unchecked", [False, True])
def test_what_connection_tracking_cannot_understand_is_not_forwarded(uplinked: Uplinked, unchecked: bool) -> None:
    """Also where no policy of the host endpoint is about what is forwarded."""
    too_short = struct.pack("!HHHH", 40000, 80, 4, 0)  # a UDP header is 8 bytes long, so no length is less
    far = uplinked.stack.enter_context(namespace("far"))
    uplinked.host.do("link", "add", "eth1", "type", "veth", "peer", "name", "eth0", "netns", far.name)
    for end, name, address in ((uplinked.host, "eth1", "10.77.0.1"), (far, "eth0", "10.77.0.2")):
        end.do("addr", "add", f"{address}/24", "dev", name)
        end.do("link", "set", name, "up")
    uplinked.other.do("route", "add", "10.77.0.0/24", "via", HOST[4])
    received = uplinked.receiver(far, 4)
    uplinked.put_host(profiles=["projectcalico-default-allow"])
    uplinked.lab.start(FELIX_DISABLECONNTRACKINVALIDCHECK=str(unchecked).lower())
    uplinked.lab.until_in_force(hosts=1)
    with socket_in(uplinked.other, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        raw.sendto(too_short + b"invalid", ("10.77.0.2", 0))
        raw.sendto(struct.pack("!HHHH", 40001, 81, 12, 0) + b"last", ("10.77.0.2", 0))
    found = received.recv(4096)
    assert found.endswith(b"invalid" if unchecked else b"last")


@pytest.mark.parametrize("version", [4, 6])
def test_pre_dnat_of_all_interfaces(uplinked: Uplinked, version: int) -> None:
    """It counts for an interface whose own host endpoint has none of its own."""
    closed = {"preDNAT": True, "applyOnForward": True, "types": ["Ingress"]}
    deny = [{"action": "Deny", "protocol": "UDP", "destination": {"ports": [80]}}]
    uplinked.put_host(profiles=["projectcalico-default-allow"])
    uplinked.put_host("all", "*", profiles=["projectcalico-default-allow"], labels={"all": "yes"})
    uplinked.put_policy("everywhere", selector="all == 'yes'", ingress=deny, **closed)
    start(uplinked, hosts=2, policies=1)
    assert not uplinked.into_host(80, version) and not uplinked.into_workload(80, version)
    assert uplinked.into_host(81, version) and uplinked.into_workload(81, version)
    uplinked.put_policy("own", ingress=[{"action": "Pass"}], **closed)
    uplinked.until(lambda: uplinked.into_host(80, version), True, "its own policies take their place")


def translate(uplinked: Uplinked, by: str, root: Path) -> None:
    """A NodePort and a service's address as kube-proxy lays them down."""
    if by == "nftables":
        rules = "\n".join(
            f"table {table} kube-proxy {{\n"
            f"  chain filter-prerouting {{ type filter hook prerouting priority -110; }}\n"
            f"  chain nat-prerouting {{ type nat hook prerouting priority -100; jump services; }}\n"
            f"  chain nat-output {{ type nat hook output priority -100; jump services; }}\n"
            f"  chain services {{ fib daddr type local udp dport {NODE_PORT} dnat to {to}; }}\n}}"
            for table, to in (("ip", f"{POD[4]}:80"), ("ip6", f"[{POD[6]}]:80"))
        )
        (root / "kube-proxy.nft").write_text(rules)
        uplinked.host.run("nft", "-f", str(root / "kube-proxy.nft"))
        return
    for program, to in (("iptables", f"{POD[4]}:80"), ("ip6tables", f"[{POD[6]}]:80")):
        for command in (
            ("-N", "KUBE-SERVICES"),
            ("-A", "PREROUTING", "-j", "KUBE-SERVICES"),
            ("-A", "OUTPUT", "-j", "KUBE-SERVICES"),
            (*f"-A KUBE-SERVICES -p udp -m addrtype --dst-type LOCAL --dport {NODE_PORT} -j DNAT --to".split(), to),
        ):
            uplinked.host.run(shutil.which(f"{program}-legacy") or program, "-w", "-t", "nat", *command)


@pytest.mark.parametrize("by", ["nftables", "iptables"])
def test_node_ports(uplinked: Uplinked, by: str, tmp_path: Path) -> None:
    """preDNAT sees the port that the client names; the workload's policy the one behind it."""
    translate(uplinked, by, tmp_path)
    for version in (4, 6):
        assert uplinked.into_workload(NODE_PORT, version, HOST[version])
    uplinked.put_host(profiles=["projectcalico-default-allow"])  # which nobody has to store
    start(uplinked, hosts=1)
    assert uplinked.into_workload(NODE_PORT, to=HOST[4])
    uplinked.put_policy(
        "node-ports",
        preDNAT=True,
        applyOnForward=True,
        types=["Ingress"],
        ingress=[
            {"action": "Allow", "protocol": "UDP", "source": {"nets": ["172.31.0.8/32"]}},
            {"action": "Deny", "protocol": "UDP", "destination": {"ports": ["30000:32767"]}},
        ],
    )
    for version in (4, 6):
        reached = partial(uplinked.into_workload, NODE_PORT, version, HOST[version])
        uplinked.until(reached, False, "node ports are closed")
        assert uplinked.into_workload(80, version) and uplinked.into_host(81, version)
    uplinked.other.do("addr", "add", "172.31.0.8/32", "dev", "eth0")
    uplinked.other.do("route", "replace", "172.31.0.0/24", "dev", "eth0", "src", "172.31.0.8")
    uplinked.put_policy("closed", types=["Ingress"], order=1, ingress=[{"action": "Deny"}])
    uplinked.until(lambda: uplinked.into_host(81), True, "what preDNAT allows is allowed")
    assert uplinked.into_workload(NODE_PORT, to=HOST[4])


def test_the_hosts_own_connections_to_services(uplinked: Uplinked, tmp_path: Path) -> None:
    """They are policed where they leave: not to its own workloads, and by the address behind the service's."""
    hooks = (("out", "output"), ("pre", "prerouting"))
    chains = "".join(
        f"chain {name} {{ type nat hook {hook} priority -100; ip daddr 10.96.0.1 dnat to {OTHER[4]}; }}; "
        for name, hook in hooks
    )
    (tmp_path / "services.nft").write_text(f"table ip kube-proxy {{ {chains} }}")
    uplinked.host.run("nft", "-f", str(tmp_path / "services.nft"))
    uplinked.host.do("route", "add", "10.96.0.0/16", "via", OTHER[4])

    def through_service(port: int) -> bool:
        return uplinked.arrives(uplinked.host, "10.96.0.1", port, uplinked.other, (uplinked.host, OTHER[4], DNS))

    assert through_service(80)
    uplinked.put_host()
    uplinked.put_policy(
        "out",
        types=["Egress"],
        egress=[{"action": "Allow", "protocol": "UDP", "destination": {"nets": [f"{OTHER[4]}/32"], "ports": [80]}}],
    )
    start(uplinked, hosts=1, policies=1)
    assert through_service(80) and not through_service(81) and through_service(DNS)
    pod, marker = uplinked.lab.workloads["a"].ns, (uplinked.host, OTHER[4], DNS)
    assert uplinked.arrives(pod, "10.96.0.1", 81, uplinked.other, marker)  # forwarded, so not the host's own


def test_what_is_not_tracked(uplinked: Uplinked) -> None:
    uplinked.put_host(profiles=["open"])
    uplinked.lab.put_profile("open")
    uplinked.put_policy(
        "untracked",
        doNotTrack=True,
        applyOnForward=True,
        types=["Ingress", "Egress"],
        ingress=[
            {"action": "Allow", "protocol": "UDP", "destination": {"ports": [5353]}},
            {"action": "Deny", "protocol": "UDP", "destination": {"ports": [123]}},
        ],
        egress=[{"action": "Deny", "protocol": "UDP", "destination": {"ports": [123]}}],
    )
    uplinked.put_policy("closed", types=["Ingress"], ingress=[{"action": "Deny", "protocol": "UDP"}])
    start(uplinked, hosts=1, policies=2)
    assert uplinked.into_host(5353) and not uplinked.into_host(123) and not uplinked.into_host(124)
    assert uplinked.out_of_host(80) and not uplinked.out_of_host(123) and uplinked.log_in()
    listed = uplinked.host.run("cat", "/proc/net/nf_conntrack", check=False).stdout
    assert "dport=5353" not in listed
    uplinked.put_host("all", "*")
    uplinked.until_warned("GlobalNetworkPolicy untracked does not apply to HostEndpoint all")


def test_pre_dnat_with_egress_is_refused_and_the_rest_enforced(uplinked: Uplinked) -> None:
    uplinked.put_host()
    uplinked.put_policy(
        "bad", preDNAT=True, applyOnForward=True, types=["Ingress", "Egress"], ingress=[{"action": "Deny"}]
    )
    uplinked.put_policy(
        "good", types=["Ingress"], ingress=[{"action": "Allow", "destination": {"ports": [80]}, "protocol": "UDP"}]
    )
    start(uplinked, hosts=1, policies=1)
    assert uplinked.into_host(80) and not uplinked.into_host(81)
    (problem,) = (text for text in uplinked.lab.standing()["problems"] if "GlobalNetworkPolicy" in text)
    assert "GlobalNetworkPolicy bad" in problem and "without egress" in problem


def test_what_a_node_cannot_do_without_is_named(uplinked: Uplinked) -> None:
    """Before it is cut off; and it is cut off."""
    store = uplinked.lab.open_context

    def with_etcd(log: Log) -> Context:
        context = store(log)
        context.config = DatastoreConfig("etcdv3", etcd_endpoints=(f"http://{OTHER[4]}:12379", "http://etcd:2379"))
        return context

    uplinked.lab.open_context = with_etcd
    uplinked.put_host()
    start(uplinked, hosts=1)
    uplinked.until_warned(f"HostEndpoint h cuts this node from the datastore at {OTHER[4]} (TCP 12379)")
    log = uplinked.lab.log()
    assert log.index("cuts this node from the datastore") < log.index("are in force")
    rule = {"action": "Allow", "protocol": "TCP", "destination": {"nets": [f"{OTHER[4]}/32"], "ports": [12379]}}
    uplinked.put_policy("datastore", types=["Egress"], egress=[rule])
    until(lambda: "cuts this node" not in str(uplinked.lab.standing()["warnings"]), "nothing is cut")
