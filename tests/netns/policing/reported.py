"""What rules report of the packets that a lab sends through policy: of each one record, with the rules that the naive
evaluator names for both sides.

Rule: no test has to ask. While a lab is open its engine records, the reports are read from the kernel as they come, and
when it closes each packet is compared with the documents as they stood. A policy that was just written comes into force
a moment later, so a packet may have met any state since the one that the packet before it met, never an earlier one.
Names are those of the engine's own file of numbers, in which no number is ever two rules.

Weaker, because more cannot be known: of packets that a test sends by itself, and of a connection that is tried again,
each report names a rule that stood at some moment; at a host with host endpoints, no packet is denied twice
(tests/netns/flows/test_host_decisions.py asks everything there). Legacy iptables' limits report nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property, lru_cache
from ipaddress import ip_address
from typing import Any, NamedTuple

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP, FIRST, FIXED, REASONS, REFUSED, Decider, parse_line
from cni_calico.flows.names import NUMBERS, Deciders
from cni_calico.flows.packets import key_of, parts_of
from cni_calico.flows.recorder import DIRECTORY
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.model.keys import ResourceKey
from cni_calico.model.selectors import parse_selector
from tests.deadlines import until
from tests.kernels.features import has
from tests.netns.policing.lab import NODE, Lab, SentPacket, SentStream
from tests.netns.wire import entered
from tests.unit.policy.naive import POLICIES, Naive

ROOM = 32 << 20
Name = tuple[str, str, str]
Documents = Mapping[Name, dict[str, Any]]
Connection = tuple[bytes, bytes, int, int, int]
"""Source, destination, protocol, source port, destination port."""
Verdict = tuple[bool, object]
"""Whether it was let through; the rule as the naive evaluator names it, or the number of a reason."""
KINDS = (*POLICIES, "WorkloadEndpoint", "HostEndpoint", "NetworkSet", "GlobalNetworkSet", "Tier", "Profile")
NO_ENDPOINT = FIXED["no endpoint"]


class Report(NamedTuple):
    allowed: bool
    number: int
    decider: Decider | None

    @property
    def verdict(self) -> Verdict:
        if self.decider is None:
            return self.allowed, self.number
        rule = (self.decider.kind, self.decider.namespace, self.decider.name), self.decider.index
        return self.allowed, ("ingress" if self.decider.ingress else "egress", *rule)

    @property
    def sentence(self) -> str:
        if self.number < FIRST:
            return REASONS[self.number]
        return self.decider.sentence() if self.decider else f"{self.number:#x}, unknown"

    @property
    def is_of_policy(self) -> bool:
        """And not of what holds whatever the policies say."""
        return self.number >= FIRST or self.number == NO_ENDPOINT


class AskedRecords:
    """A lab's watcher. ``denied``: what dropped each packet, in words, in order."""

    def __init__(self, lab: Lab, reports: Sequence[DecisionReports]) -> None:
        self._lab, self._reports = lab, reports
        self._file = f"{lab.root}/state/{DIRECTORY}"
        self._deciders = Deciders(self._file)
        self._states: list[Documents] = [{}]
        self._met = 0  # the state that the last packet met
        self._sent: list[SentPacket] = []
        self._streams: list[SentStream] = []
        self._told = defaultdict[Connection, list[Report]](list)
        self.denied: list[str] = []

    # -- what the lab does --------------------------------------------------------------------------------------------

    def note_written(self, writes: Sequence[Write]) -> None:
        """Of what cannot be understood the version before stays, and where that is lost, none."""
        now, lost = dict(self._states[-1]), list[Name]()
        for write in writes:
            key = write.key
            if not isinstance(key, ResourceKey) or key.kind not in KINDS:
                continue
            name = key.kind, key.namespace, key.name
            if write.value is None:
                now.pop(name, None)
            elif _is_understood(write.value):
                now[name] = dict(write.value)
            else:
                lost.append(name)
        self._states.append(now)
        if lost:
            self._states.append({name: document for name, document in now.items() if name not in lost})
            self._states.append(now)

    def note_sent(self, packet: SentPacket) -> None:
        self._sent.append(packet._replace(states=len(self._states)))
        self.take()

    def note_stream(self, stream: SentStream) -> None:
        self._streams.append(stream)
        self.take()

    def take(self) -> None:
        """What has been reported since the last time."""
        for allowed, reports in zip((True, False), self._reports, strict=True):
            for number, data in reports.take(10_000):
                key = key_of(data)
                report = Report(allowed, number, self._deciders.get(number))
                if key is not None:
                    self._told[parts_of(key)].append(report)
                if not allowed:
                    self.denied.append(report.sentence)

    def all_denials_are_told(self) -> bool:
        """Of the packets that were sent so far."""
        self.take()
        return all(
            self._is_limited_by_iptables(one) or any(not told.allowed for told in self._told.get(one.connection, ()))
            for one in self._sent
            if one.policed and not one.arrived
        )

    # -- what it is compared with -------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises AssertionError: a packet has no record, or another one than it should have."""
        asked = list(self._sent)

        def explained() -> bool:
            self.take()
            while asked and self._is_explained(asked[0]):
                del asked[0]
            return not asked and all(map(self._is_counted, self._streams))

        try:
            until(explained, "each packet has its record", timeout_s=10)
        except AssertionError as e:
            raise AssertionError(f"{e}: {self._describe(asked)}") from None
        assert [(one.lost, one.strange) for one in self._reports] == [(0, 0)] * 2
        self._check_all_stood()
        self._check_numbers()

    def _describe(self, asked: list[SentPacket]) -> str:
        if not asked:
            return str([(stream, self._counts_of(stream)) for stream in self._streams])
        packet = asked[0]
        told = [(one.allowed, one.sentence) for one in self._told.get(packet.connection, [])]
        wanted = {str(self._expected(state, packet)) for state in self._window(packet)}
        return f"{packet}\nreported: {told}\nexpected in {self._window(packet)}: {wanted}\n{self._lab.log()[-3000:]}"

    def _window(self, packet: SentPacket) -> range:
        return range(self._met, packet.states)

    def _is_explained(self, packet: SentPacket) -> bool:
        told = self._told.get(packet.connection, [])
        denials = [one for one in told if not one.allowed]
        tries = [one for one in self._sent if one.connection == packet.connection]
        if self._is_of_stream(packet) or self._concerns_hosts(packet):
            return True
        if len(denials) > sum(not one.arrived for one in tries):
            return False
        if len(tries) > 1:
            return True
        if not packet.arrived and packet.policed and not denials:
            return self._is_limited_by_iptables(packet)
        if not told:
            return not packet.policed or any(not self._expected(state, packet) for state in self._window(packet))
        whole = [one.decider for one in told if one.decider and one.decider.index == REFUSED]
        names = [(one.kind, one.namespace, one.name) for one in whole]  # which deny instead of all their rules
        if not all(any(name in self._states[state] for state in self._window(packet)) for name in names):
            return False
        asked = [one.verdict for one in told if one.is_of_policy and one.decider not in whole]
        if len({one[1][0] if isinstance(one[1], tuple) else "" for one in asked}) != len(asked):
            return False  # a side has decided twice
        is_cut = len(asked) < len(told)  # by what is no policy's, so the other side was not asked
        for state in self._window(packet):
            wanted = self._expected(state, packet)
            if {*asked} == {*wanted} or (is_cut and {*asked} <= {*wanted}):
                self._met = state
                return True
        # of two that were written one after the other, the second may be in force first
        some = {verdict for state in self._window(packet) for verdict in self._expected(state, packet)}
        return len(self._window(packet)) > 1 and {*asked} <= some

    def _is_of_stream(self, packet: SentPacket) -> bool:
        source, destination, _, _, port = packet.connection
        return any(
            (source, destination) == stream[:2] and port in (stream.allowed, stream.forbidden)
            for stream in self._streams
        )

    def _is_limited_by_iptables(self, packet: SentPacket) -> bool:
        documents = [one for state in self._window(packet) for one in self._states[state].values()]
        return self._lab.standing().get("by") == "iptables" and any("qosControls" in one["spec"] for one in documents)

    def _concerns_hosts(self, packet: SentPacket) -> bool:
        return any(kind == "HostEndpoint" for state in self._window(packet) for kind, _, _ in self._states[state])

    def _expected(self, state: int, packet: SentPacket) -> tuple[Verdict, ...]:
        """() where nothing is enforced, and for what the host itself sends to its workloads."""
        documents = self._states[state]
        found: list[Verdict] = []
        if packet.incoming and any(kind in (*POLICIES, "HostEndpoint") for kind, _, _ in documents):
            for direction, interface in (("egress", packet.incoming), ("ingress", packet.outgoing)):
                if interface.startswith("cali") and all(allowed for allowed, _ in found):
                    found.append(self._judge(state, direction, _owner_of(documents, interface), packet.connection))
        return tuple(found)

    @cached_property
    def _judge(self) -> Any:
        @lru_cache(100_000)
        def judge(state: int, direction: str, endpoint: Name | None, connection: Connection) -> Verdict:
            if endpoint is None:
                return False, NO_ENDPOINT
            source, destination, protocol, sport, dport = connection
            naive = Naive(self._states[state])
            packet = {
                "source": ip_address(source),
                "destination": ip_address(destination),
                "protocol": protocol,
                "sport": sport,
                "dport": dport,
                "icmp": divmod(dport, 256),
            }
            return naive.verdict(endpoint, direction, packet), (direction, *naive.decided_by)

        return judge

    # -- streams, and what nobody noted -------------------------------------------------------------------------------

    def _counts_of(self, stream: SentStream) -> tuple[int, int]:
        """Reports of packets (that were denied to the forbidden port, that b's side let through to the other)."""
        ends = stream.source, stream.destination, 17
        told = [(key[4], one) for key, found in self._told.items() if key[:3] == ends for one in found]
        denied = sum(port == stream.forbidden and not one.allowed for port, one in told)
        return denied, sum(
            port == stream.allowed and one.allowed and bool(one.decider and one.decider.ingress) for port, one in told
        )

    def _is_counted(self, stream: SentStream) -> bool:
        """Only where the rules stood all the time; who had the ports a minute ago may have a connection yet."""
        counts, others = self._counts_of(stream), sum(map(self._is_of_stream, self._sent))
        is_whole = stream.policed and stream.sent <= stream.ports
        return all((stream.sent if is_whole else 0) <= count <= stream.sent + others for count in counts)

    def _check_all_stood(self) -> None:
        """Each report of a rule names one that the naive evaluator names in some state."""
        tries = Counter(packet.connection for packet in self._sent if not self._is_of_stream(packet))
        owners = {
            ip_address(address).packed: workload.interface
            for workload in self._lab.workloads.values()
            for address in workload.addresses
        }
        has_hosts = any(kind == "HostEndpoint" for state in self._states for kind, _, _ in state)
        for connection, reports in self._told.items():
            for report in reports:
                assert report.decider or report.number < FIRST, (connection, report)
                if tries[connection] == 1 or report.decider is None or report.decider.index == REFUSED or has_hosts:
                    continue
                direction = "ingress" if report.decider.ingress else "egress"
                interface = owners.get(connection[report.decider.ingress], "")
                deciding = ((one, _owner_of(self._states[one], interface)) for one in self._policed_states)
                stood = (self._judge(one, direction, endpoint, connection) for one, endpoint in deciding if endpoint)
                assert not interface or report.verdict in stood, (connection, report)

    @cached_property
    def _policed_states(self) -> list[int]:
        kinds = [{kind for kind, _, _ in state} for state in self._states]
        return [state for state, there in enumerate(kinds) if not there.isdisjoint(POLICIES)]

    def _check_numbers(self) -> None:
        try:
            with open(f"{self._file}/{NUMBERS}") as lines:
                known = [parsed for parsed in map(parse_line, lines) if parsed is not None]
        except FileNotFoundError:
            return
        rules = dict(known)
        assert all(rules[number] == decider for number, decider in known), "no number is ever two rules"


def _is_understood(document: Mapping[str, Any]) -> bool:
    try:
        parse_selector(document["spec"].get("selector", ""))
    except CalicoError:
        return False
    return True


def _owner_of(documents: Documents, interface: str) -> Name | None:
    """The workload behind an interface of this node."""
    return next(
        (
            name
            for name, document in documents.items()
            if name[0] == "WorkloadEndpoint"
            and (document["spec"].get("interfaceName"), document["spec"].get("node")) == (interface, NODE)
        ),
        None,
    )


@contextmanager
def asked_records(lab: Lab) -> Iterator[AskedRecords]:
    with entered(lab.host):
        deadline = Deadline.after(10)
        allowed, denied = (DecisionReports(group, ROOM, deadline) for group in (ALLOWED_GROUP, DENIED_GROUP))
    with closing(allowed), closing(denied):
        asked = AskedRecords(lab, (allowed, denied))
        yield asked
        asked.check()


class ReportedDenials:
    """What drops packets, from now on; nothing is asked in the user-mode kernel, which reports none."""

    def __init__(self, asked: AskedRecords | None) -> None:
        self._asked = asked
        if asked is not None:
            until(asked.all_denials_are_told, "what was dropped before is reported")
            self._before = len(asked.denied)

    def check(self, *reasons: str) -> None:
        """One of each since the last time; what else comes later is found the next time."""
        asked = self._asked
        if asked is None:
            return

        def found() -> list[str]:
            asked.take()
            return asked.denied[self._before :]

        until(lambda: len(found()) >= len(reasons), f"reports of {reasons}")
        assert sorted(found()) == sorted(reasons)
        self._before = len(asked.denied)


@contextmanager
def denials_of(lab: Lab) -> Iterator[ReportedDenials]:
    assert isinstance(lab.watcher, AskedRecords) or has("user-mode")
    yield ReportedDenials(lab.watcher if isinstance(lab.watcher, AskedRecords) else None)
