"""Verdicts of the kernel about hosts, on packets, against the naive evaluator: random host endpoints and policies of
all four stages; packets to the host, from the host, through it, with and without a translated destination.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cni_calico.deadline import Deadline
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.failsafe import FailsafePort
from cni_calico.policy.wanted import WantedEndpoint
from tests.netns.host_path import HostPath
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import socket_in
from tests.netns.test_verdicts import TRIED, owners_of, strangers_among
from tests.netns.wire import INTERFACES, UPLINK, Wire, frame, number_in, open_wire
from tests.unit.policy.cluster import INVALID, NODE, PACKETS, documents_for, graph_of, keys
from tests.unit.policy.naive import Naive

pytestmark = [
    pytest.mark.netns,
    pytest.mark.never_excused,
    pytest.mark.timeout(900),
]  # on a busy machine every example is slow

OWN = {4: ip_address("192.0.2.1"), 6: ip_address("fd00::2")}  # the host's addresses, on the uplink
POD = {4: ip_address("10.0.0.1"), 6: ip_address("fd00::1")}  # where translated connections go
SERVICE = {4: ip_address("10.0.1.2"), 6: ip_address("fd00::1")}  # what the host itself connects to
NODE_PORT, POD_PORT = 443, 80
INBOUND, OUTBOUND = (6, 80), (17, 53)
SETTINGS = FilterSettings(
    to_host="RETURN", failsafe_in=(FailsafePort(*INBOUND),), failsafe_out=(FailsafePort(*OUTBOUND),)
)
PROTOCOLS = (socket.IPPROTO_TCP, socket.IPPROTO_UDP)
MARK = 0x000F0000  # of others: it must not count
# as kube-proxy translates in its mode nftables; answers of the host would make connections established
BY_NFTABLES = """
table ip test {
    chain pre { type nat hook prerouting priority dstnat; ip daddr 192.0.2.1 tcp dport 443 dnat to 10.0.0.1:80; }
    chain out { type nat hook output priority -100; ip daddr 10.0.1.2 tcp dport 443 dnat to 10.0.0.1:80; }
    chain marked { type filter hook prerouting priority -450; meta mark set 0x000f0000; }
    chain answers {
        type filter hook output priority -450;
        tcp flags rst drop
        icmp type { echo-reply, destination-unreachable } drop
    }
}
table ip6 test {
    chain pre { type nat hook prerouting priority dstnat; ip6 daddr fd00::2 tcp dport 443 dnat to [fd00::1]:80; }
    chain out { type nat hook output priority -100; ip6 daddr fd00::1 tcp dport 443 dnat to [fd00::1]:80; }
    chain marked { type filter hook prerouting priority -450; meta mark set 0x000f0000; }
    chain answers {
        type filter hook output priority -450;
        tcp flags rst drop
        icmpv6 type { echo-reply, destination-unreachable } drop
    }
}
"""
# the same in its mode iptables, where rules cannot come before the policies': ``tc`` marks what comes in
BY_IPTABLES = {
    "iptables": """
*raw
-A OUTPUT -p tcp --tcp-flags RST RST -j DROP
-A OUTPUT -p icmp --icmp-type echo-reply -j DROP
-A OUTPUT -p icmp --icmp-type destination-unreachable -j DROP
COMMIT
*nat
-A PREROUTING -d 192.0.2.1 -p tcp --dport 443 -j DNAT --to-destination 10.0.0.1:80
-A OUTPUT -d 10.0.1.2 -p tcp --dport 443 -j DNAT --to-destination 10.0.0.1:80
COMMIT
""",
    "ip6tables": """
*raw
-A OUTPUT -p tcp --tcp-flags RST RST -j DROP
-A OUTPUT -p icmpv6 --icmpv6-type echo-reply -j DROP
-A OUTPUT -p icmpv6 --icmpv6-type destination-unreachable -j DROP
COMMIT
*nat
-A PREROUTING -d fd00::2 -p tcp --dport 443 -j DNAT --to-destination [fd00::1]:80
-A OUTPUT -d fd00::1 -p tcp --dport 443 -j DNAT --to-destination [fd00::1]:80
COMMIT
""",
}


def path_of(
    documents: dict[Any, Any],
    owners: dict[Any, WantedEndpoint],
    strangers: dict[Any, str] | None = None,
    kind: type[HostPath] = HostPath,
) -> HostPath:
    """``owners``: the workload that has an address; ``strangers``: interfaces without an endpoint; all others are
    behind the uplink.
    """
    strangers = strangers or {}
    addresses = {packet[end] for packet in PACKETS for end in ("source", "destination")} | {*POD.values()}
    return kind(
        Naive(documents),
        NODE,
        {UPLINK: frozenset(OWN.values())},
        dict.fromkeys(addresses, UPLINK) | {one: owner.interface for one, owner in owners.items()} | strangers,
        {one: (owner.key.kind, owner.key.namespace, owner.key.name) for one, owner in owners.items()}
        | dict.fromkeys(strangers),
        frozenset({INBOUND}),
        frozenset({OUTBOUND}),
        {(OWN[version], (6, NODE_PORT)): (POD[version], POD_PORT) for version in OWN},
        {(SERVICE[version], (6, NODE_PORT)): (POD[version], POD_PORT) for version in OWN},
    )


@dataclass
class HostWire:
    wire: Wire
    arrived: list[socket.socket] = field(default_factory=list)  # what the host itself gets
    sending: dict[int, socket.socket] = field(default_factory=dict)

    def open(self, stack: ExitStack) -> None:
        for version, family in ((4, socket.AF_INET), (6, socket.AF_INET6)):
            for protocol in (*PROTOCOLS, socket.IPPROTO_ICMP if version == 4 else socket.IPPROTO_ICMPV6):
                self.arrived.append(stack.enter_context(socket_in(self.wire.host, family, socket.SOCK_RAW, protocol)))
                self.arrived[-1].setblocking(False)
            raw = socket_in(self.wire.host, family, socket.SOCK_RAW, socket.IPPROTO_RAW)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, MARK)
            self.sending[version] = stack.enter_context(raw)

    def reached(self, awaited: Collection[int] = ()) -> set[int]:
        """The numbers of the packets that the host itself got since the last time. ``awaited``: those that must come;
        on a busy machine the kernel may hand them over a moment after they were sent.
        """
        seen, limit = self._got(), Deadline.after(5)
        while not seen.issuperset(awaited) and not limit.expired():
            select.select(self.arrived, (), (), limit.remaining_s())
            seen |= self._got()
        return seen

    def _got(self) -> set[int]:
        seen: set[int] = set()
        for one in self.arrived:
            while True:
                try:
                    data = one.recv(4096)
                except BlockingIOError:
                    break
                number = number_in(one.proto, data[20:] if one.family == socket.AF_INET else data)
                if number is not None:
                    seen.add(number)
        return seen

    def send(self, packet: dict[str, Any]) -> int:
        """A packet of the host's own; returns its number."""
        self.wire.number += 1
        data = frame(packet, self.wire.number)[14:]
        with suppress(PermissionError):  # how the kernel says that it was dropped
            self.sending[packet["source"].version].sendto(data, (str(packet["destination"]), 0))
        return self.wire.number


def _translate(host: Namespace, tmp_path: Path) -> None:
    (tmp_path / "translation.nft").write_text(BY_NFTABLES)
    host.run("nft", "-f", str(tmp_path / "translation.nft"))


def _translate_without_nftables(host: Namespace, tmp_path: Path) -> None:
    for program, script in BY_IPTABLES.items():
        (tmp_path / program).write_text(script)
        host.run(f"{program}-legacy-restore", "--noflush", str(tmp_path / program))
    for name in (*INTERFACES, UPLINK):
        host.run("tc", "qdisc", "add", "dev", name, "clsact")
        marking = ("matchall", "action", "skbedit", "mark", hex(MARK))
        host.run("tc", "filter", "add", "dev", name, "ingress", *marking)


@contextmanager
def open_hosts(
    tmp_path: Path, *, legacy: bool = False, has_nftables: bool = True, filtering: FilterSettings = SETTINGS
) -> Iterator[HostWire]:
    """``has_nftables``: this kernel; without it, it has to have ``tc``'s matchall and skbedit."""
    with ExitStack() as stack:
        wire = stack.enter_context(open_wire(filtering, legacy=legacy))
        for version, address in OWN.items():
            wire.host.do("addr", "add", f"{address}/{32 if version == 4 else 128}", "dev", UPLINK, "nodad")
        (_translate if has_nftables else _translate_without_nftables)(wire.host, tmp_path)
        made = HostWire(wire)
        made.open(stack)
        wire.enforcer.goal.use_interfaces({UPLINK: frozenset(address.packed for address in OWN.values())})
        yield made


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[HostWire]:
    with open_hosts(tmp_path) as made:
        yield made


@pytest.fixture
def legacy_hosts(tmp_path: Path) -> Iterator[HostWire]:
    with open_hosts(tmp_path, legacy=True) as made:
        yield made


_ALWAYS = ("HostEndpoint", "GlobalNetworkPolicy")
host_clusters = st.fixed_dictionaries(
    {key: documents_for(key) for key in keys() if key[0] in _ALWAYS},
    optional={key: documents_for(key) for key in keys() if key[0] not in _ALWAYS},
)
FROM_HOST = [packet for packet in PACKETS + INVALID if packet["source"] in OWN.values() and packet["protocol"] != 58]


Asked = Callable[[HostPath, dict[str, Any]], None]
"""Told of each packet that is sent, once its path has been worked out."""


def judge(
    hosts: HostWire,
    documents: dict[Any, Any],
    kind: type[HostPath] = HostPath,
    asked: Asked | None = None,
    packets: Sequence[dict[str, Any]] = (*TRIED, *INVALID),
) -> None:
    graph, wire = graph_of(documents), hosts.wire
    graph.flush()
    wanted = graph.wanted()
    wire.apply(wanted)
    assert wire.enforcer.goal.problems == {}
    owners = owners_of(sorted(wanted.endpoints.values(), key=lambda endpoint: str(endpoint.key)))
    owners = {address: endpoint for address, endpoint in owners.items() if address not in OWN.values()}
    strangers = strangers_among(wanted.endpoints.values(), {*owners, *OWN.values(), *POD.values()})
    routes = {address: endpoint.interface for address, endpoint in owners.items()} | strangers
    wire.route(routes, without=OWN.values())
    path, tried, expected = path_of(documents, owners, strangers, kind), [], []
    note = asked or (lambda path, packet: None)
    for packet in packets:
        incoming = path.routes[packet["source"]]
        if packet["source"] in OWN.values():
            continue
        outgoing, passes = path.passes_in(packet)
        if incoming == outgoing:
            continue
        note(path, packet)
        tried.append((incoming, outgoing, packet))
        expected.append(passes)
    hosts.reached()
    first = wire.number + 1
    found = wire.arrivals([(incoming, outgoing or UPLINK, packet) for incoming, outgoing, packet in tried])
    to_host = {first + i for i, (_, outgoing, _) in enumerate(tried) if not outgoing and expected[i]}
    own = hosts.reached(to_host)
    wrong = []
    for i, (incoming, outgoing, packet) in enumerate(tried):
        arrived = found[i] if outgoing else first + i in own
        if arrived is not expected[i]:
            wrong.append((incoming, outgoing or "the host", packet, f"arrived: {arrived}"))
    from_host = [packet for packet in packets if packet in FROM_HOST and packet["destination"] not in OWN.values()]
    numbers = {hosts.send(packet): packet for packet in from_host}
    seen = wire.seen()
    for number, packet in numbers.items():
        outgoing, passes = path.passes_out(packet)
        note(path, packet)
        if (number in seen[outgoing]) is not passes:
            wrong.append(("the host", outgoing, packet, f"arrived: {not passes}"))
    assert wrong == [], [
        (key, documents[key]) for key in documents if key[0] in ("HostEndpoint", "GlobalNetworkPolicy")
    ]


def check_hosts(hosts: HostWire, states: int = 50) -> None:
    """The same examples each time, whatever the packet filter and the kernel."""
    limits = settings(
        max_examples=states,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # a smaller example takes minutes to find
    )
    limits(given(documents=host_clusters)(lambda documents: judge(hosts, documents)))()


def test_verdicts_about_hosts(hosts: HostWire) -> None:
    check_hosts(hosts)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_verdicts_about_hosts_for_long(hosts: HostWire) -> None:
    check_hosts(hosts, 500)


def test_verdicts_of_iptables_about_hosts(legacy_hosts: HostWire) -> None:
    check_hosts(legacy_hosts)
