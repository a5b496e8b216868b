"""A table of connections without room: what the kernel then drops was never asked about, and what was is recorded."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.node.status import describe_recorder
from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.client import ask
from cni_calico.flows.query import FlowQuery
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.bench.flows.lasting import counted, recorder
from tests.deadlines import until
from tests.netns.flows.test_faults import DOCUMENTS, SAID, UDP
from tests.netns.wire import UPLINK, Wire, entered, open_wire
from tests.unit.policy.cluster import graph_of

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.kernel("machine")]  # all namespaces have one limit

CONNECTIONS, ROOM = 120, 50
PLACES = {"dropped": 65_536, "forgotten": 1024}
"""Where a connection that nobody has answered is near the place of the new one, the kernel forgets that instead."""


@contextmanager
def limited(**limits: int) -> Iterator[None]:
    """Of connection tracking; those of all network namespaces are set in the first one."""
    paths = {Path(f"/proc/sys/net/netfilter/nf_conntrack_{name}"): value for name, value in limits.items()}
    before = {path: path.read_text() for path in paths}
    try:
        for path, value in paths.items():
            path.write_text(str(value))
        yield
    finally:
        for path, text in before.items():
            path.write_text(text)


def test_only_what_rules_were_asked_about_is_recorded(tmp_path: Path) -> None:
    numbers, root = RuleNumbers(), str(tmp_path)
    with open_wire(FilterSettings(recording=Recording(numbers))) as wire:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        graph = graph_of(DOCUMENTS)
        graph.flush()
        wanted = graph.wanted()
        wire.apply(wanted)
        wire.route({UDP["destination"]: "cali1"})
        wire.host.set_sysctl("netfilter/nf_conntrack_udp_timeout", "3600")
        with recorder(wire, root, wanted, numbers):
            passed = Counter[int]()
            for turn, (what, buckets) in enumerate(PLACES.items()):
                sports = range(1024 + turn * CONNECTIONS, 1024 + (turn + 1) * CONNECTIONS)
                with limited(buckets=buckets, max=ROOM):
                    passed += send(wire, sports)
                    check(wire, root, passed, (turn + 1) * 2 * CONNECTIONS, what)
                with entered(wire.host), Nfnetlink() as netlink:
                    netlink.request(CTNETLINK << 8 | 2, 0, general(""), "forget all", Deadline.after(10))


def send(wire: Wire, sports: range) -> Counter[int]:
    """To both ports from each; returns from where what may pass has passed."""
    packets = [(UPLINK, "cali1", {**UDP, "sport": sport, "dport": port}) for sport in sports for port in (53, 54)]
    arrived = [packet for (*_, packet), came in zip(packets, wire.arrivals(packets), strict=True) if came]
    assert {packet["dport"] for packet in arrived} == {53}
    return Counter(packet["sport"] for packet in arrived)


def check(wire: Wire, root: str, passed: Counter[int], sent: int, what: str) -> None:
    told, found = counted(wire), list[dict[str, Any]]()

    def all_recorded() -> bool:
        found[:] = list(ask(f"{root}/run/{FLOW_SOCKET}", FlowQuery(since=0.0), Deadline.after(30)))
        return len(found) - 1 >= told["allowed"] + told["denied"]

    until(all_recorded, "what rules have counted is recorded")
    (status,) = ask(f"{root}/run/{FLOW_SOCKET}", FlowQuery(status=True), Deadline.after(30))
    ending, flows = found[-1], found[:-1]
    assert ending["end"] and ending["lost"] == []
    denied = Counter(one["source"]["port"] for one in flows if one["verdict"] == "denied")
    assert Counter(one["source"]["port"] for one in flows if one["verdict"] == "allowed") == passed
    assert told == {"allowed": passed.total(), "denied": denied.total()} and set(denied.values()) == {1}
    for one in flows:
        assert [each["said"] for each in one["decided"]] == SAID[one["destination"]["port"]]
    dropped, forgotten = status["without_room"]
    assert dropped == sent - passed.total() - denied.total() and {"dropped": dropped, "forgotten": forgotten}[what] > 0
    assert f"conntrack's table was full: {dropped} packets dropped, " in describe_recorder(status)
    assert not status["disagreed"] and not status["unaccounted"]
