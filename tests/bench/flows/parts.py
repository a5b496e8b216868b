"""What each part of recording adds to the first packet of a connection: expressions of rules, parameters of reports,
and what connection tracking does for it.

    unshare -n nice -n -5 .venv/bin/python -m tests.bench.flows.parts [BATCHES]

One host has rules as in ``packets.py``, and behind them one for each way (``RULES``), which lets through another port,
so that all share caches and connection tracking; packets that come to a later rule are dearer, by what the rule without
anything at the beginning and at the end differ, which is taken off. Batches of 40 packets go to the ways in turn, there
and back; before each the host gets what goes with it. The 10th percentile, and its difference to nothing recorded, in
microseconds; "nothing" stands there twice more for the noise.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP, Decider
from cni_calico.kernel import sysctl
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.kernel.netlink.ended import EndedConnections
from cni_calico.kernel.netlink.nfnetlink import general
from cni_calico.netfilter.rules import AcceptKnown, CountPacket, LabelConnection, ReportDecision, RuleAction
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.bench.flows import packets
from tests.bench.flows.packets import DENIED_PORT, MOST, SIDES, Host
from tests.netns.wire import entered, open_wire

_ALLOWED_RULES = 10  # before ours
_FIRST_PORT = 100
_CONFIGURE = 4 << 8 | 1
_OF_A_RULE = 8  # ways at most, whose batches have connections of their own
RULES: dict[str, tuple[type, ...]] = {
    "nothing": (),
    "counter": (CountPacket,),
    "label": (LabelConnection,),
    "guard": (AcceptKnown,),
    "report": (ReportDecision,),
    "all": (CountPacket, LabelConnection, AcceptKnown, ReportDecision),
    "nothing at the end": (),
}


@dataclass(frozen=True)
class Way:
    """``rule``: one of RULES, or none: packets that nothing lets through. ``report``: attributes of how reports are
    wanted that differ from ours; None: nobody listens. ``counts``: sysctls of connection tracking; ``ends``: whether
    these are listened to.
    """

    rule: str = ""
    report: dict[int, bytes] | None = None
    counts: tuple[str, ...] = ()
    ends: bool = False


_ACCOUNTING, _TIMES = "nf_conntrack_acct", "nf_conntrack_timestamp"
_AS_ALWAYS: dict[int, bytes] = {}
_WHOLE = Way(report=_AS_ALWAYS, counts=(_ACCOUNTING, _TIMES), ends=True)
_REPORTS = {  # attributes of nfnetlink_log's configuration: mode (2), room (3), threshold (5), flags (6)
    "as always": _AS_ALWAYS,
    "each at once (threshold 1)": {5: (1).to_bytes(4, "big")},
    "threshold 100, room for 16 kB": {5: (100).to_bytes(4, "big"), 3: (16_000).to_bytes(4, "big")},
    "28 bytes of the packet": {2: (28).to_bytes(4, "big") + b"\2\0"},
    "nothing of the packet": {2: bytes(4) + b"\1\0"},
    "without number": {6: bytes(2)},
}
WAYS: dict[str, Way] = {
    **{name: Way(name) for name in RULES},
    "packets and bytes counted": Way("nothing", counts=(_ACCOUNTING,)),
    "times": Way("nothing", counts=(_TIMES,)),
    "ends listened to": Way("nothing", ends=True),
    **{f"report, {name}": Way("report", report) for name, report in _REPORTS.items()},
    "all, heard": Way("all", _AS_ALWAYS),
    "all, heard, with counts, times and ends": replace(_WHOLE, rule="all"),
    "denied": Way(),
    "denied, heard": Way(report=_AS_ALWAYS),
}


@dataclass(frozen=True)
class RecordingByRule(Recording):
    """Each of our rules that let through has what RULES says of it."""

    parts: dict[int, tuple[type, ...]] = field(default_factory=dict)  # by the index of the rule

    def before_accept(self, decider: Decider, *, has_connection: bool = True) -> tuple[RuleAction, ...]:
        whole = super().before_accept(decider, has_connection=has_connection)
        return tuple(one for one in whole if isinstance(one, self.parts.get(decider.index, ())))


def documents() -> dict[Any, Any]:
    """As there, but the last policies let through a port for each of RULES."""
    found = packets.documents()
    for direction, last in (("egress", 2), ("ingress", 19)):
        spec = found["GlobalNetworkPolicy", "", f"{direction}-{last}"]["spec"]
        spec[direction] = spec[direction][:_ALLOWED_RULES] + [
            {"action": "Allow", "protocol": "UDP", "destination": {"ports": [_FIRST_PORT + i]}}
            for i in range(len(RULES))
        ]
    spec[direction].append({"action": "Deny"})
    return found


class Reports(DecisionReports):
    def configure(self, attributes: dict[int, bytes]) -> None:
        for kind, value in attributes.items():
            body = general("", self.group) + wire.attribute(kind, value)
            self.request(_CONFIGURE, 0, body, "measure", Deadline.after(10))


@contextmanager
def prepared(host: Host, way: Way) -> Iterator[None]:
    """What a way does not want happens all the same, but in another network namespace: what is left of it to do, which
    comes into the batch, is the same for all.
    """
    with ExitStack() as stack:
        with entered(host.wire.host):
            for name in (_ACCOUNTING, _TIMES):
                sysctl.ensure(("netfilter", name), str(int(name in way.counts)))
        with entered(host.wire.host) if way.ends else nullcontext():
            host.listening = [stack.enter_context(EndedConnections(32 << 20))]
        with entered(host.wire.host) if way.report is not None else nullcontext():
            for group in (ALLOWED_GROUP, DENIED_GROUP):
                reports = stack.enter_context(Reports(group, 8 << 20, Deadline.after(10)))
                reports.configure(way.report or {})
                host.listening.append(reports)
        yield


def port_of(way: Way) -> int:
    return _FIRST_PORT + [*RULES].index(way.rule) if way.rule else DENIED_PORT


def measure(host: Host, incoming: str, source: str, batches: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(batches):
        for name, way in [*WAYS.items()][:: -1 if number % 2 else 1]:
            alike = [one for one, other in WAYS.items() if other.rule == way.rule]
            sent = packets.packets(source, port_of(way), number * _OF_A_RULE + alike.index(name))
            with prepared(host, way):
                found[name].append(host.batch_us(incoming, sent))
    return {name: sorted(times)[batches // 10] for name, times in found.items()}


def main(batches: int) -> None:
    ours = {_ALLOWED_RULES + i: parts for i, parts in enumerate(RULES.values())}
    recording = RecordingByRule(RuleNumbers(), parts=ours)
    with ExitStack() as stack:
        host = Host(stack.enter_context(open_wire(FilterSettings(recording=recording))), stack, records=documents())
        for side, (incoming, source) in SIDES.items():
            us = measure(host, incoming, source, batches)
            later = (us["nothing at the end"] - us["nothing"]) / (len(RULES) - 1)
            print(f"{side}: nothing {us['nothing']:.2f} us, a rule before it {later:.3f}")
            for name, way in WAYS.items():
                rules = [*RULES].index(way.rule) if way.rule else 0
                base = us["denied"] if not way.rule else us["nothing"]
                print(f"    {name:42} {us[name] - base - rules * later:+5.2f}")
    with open("/proc/loadavg") as file:
        print(f"load {file.read().split()[0]}")


if __name__ == "__main__":
    main(min(int(sys.argv[1]) if len(sys.argv) > 1 else 150, MOST // _OF_A_RULE))
