"""A recorder that is stopped (SIGSTOP) under load: what it misses is counted, to the packet.

    nice -n 10 .venv/bin/python -m tests.bench.flows.stopped [SECONDS [CONNECTIONS_PER_SECOND]]

Connections as in ``lasting``, from 16 pods, while the recorder is stopped for so long; it has read the rules' counters
before. Then nothing is sent, so no report tells by its number what was lost before it, until all is recorded or lost by
the recorder's own comparison each minute; then 1,000 connections to the recorder that runs. Prints what was sent, what
the rules have counted (a denied packet is let through on its way out), and which reports were recorded and lost. Exits
with 1 unless traffic was as without a recorder, and recorded and lost ones are, of each kind, as many as were counted,
before and after the last connections.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.client import ask
from cni_calico.flows.losses import ALLOWED, DENIED
from cni_calico.flows.query import FlowQuery
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.bench.flows.lasting import LIVES_S, counted, pods, recorder, send, workload
from tests.bench.flows.packets import documents
from tests.deadlines import until
from tests.netns.wire import open_wire
from tests.unit.policy.cluster import graph_of

PODS, LATER_S, LATER_RATE = 16, 1, 1_000
_COMPARED_S = 240.0  # the recorder compares each minute


def main(seconds: int, rate: int) -> int:
    numbers = RuleNumbers()
    with (
        tempfile.TemporaryDirectory() as root,
        open_wire(FilterSettings(recording=Recording(numbers))) as wire,
        pods(wire, PODS) as speaking,
    ):
        graph = graph_of({**documents(), **{("WorkloadEndpoint", "a", f"p{i}"): workload(i) for i in range(PODS)}})
        graph.flush()
        wire.apply(graph.wanted())
        wire.host.set_sysctl("netfilter/nf_conntrack_udp_timeout", str(LIVES_S))
        with recorder(wire, root, graph.wanted(), numbers) as child:

            def status() -> dict[str, Any]:
                (found,) = ask(f"{root}/run/{FLOW_SOCKET}", FlowQuery(status=True), Deadline.after(60))
                return found

            def missing(found: dict[str, Any]) -> list[int]:
                reports, lost = found["reports"], found["lost"]
                told = (ALLOWED, counted(wire)["allowed"]), (DENIED, counted(wire)["denied"])
                return [count - reports[source] - lost[source] for source, count in told]

            def tell(when: str) -> dict[str, Any]:
                found, told = status(), counted(wire)
                print(f"{when}: rules counted {told['allowed']} let through and {told['denied']} denied")
                print(f"  recorded {found['reports']}, lost {found['lost']}; neither, of each kind: {missing(found)}")
                print(
                    f"  by the recorder's own account: {found['unaccounted']}; connections: {found['allowed']}",
                    flush=True,
                )
                return found

            until(lambda: status()["unaccounted"] is not None, "two comparisons", _COMPARED_S, pause_s=1.0)
            os.kill(child.pid, signal.SIGSTOP)
            try:
                sent, denied = send(speaking, seconds, rate)
            finally:
                os.kill(child.pid, signal.SIGCONT)
            print(f"{sent} connections, {denied} denied packets while it was stopped", flush=True)
            told = counted(wire)
            same = (told["allowed"], told["denied"]) == (2 * sent + denied, denied)
            tell("soon after that")
            until(lambda: not any(missing(status())), "what was lost is known", _COMPARED_S, pause_s=1.0)
            tell("by the rules' counters")
            print(f"{send(speaking, LATER_S, LATER_RATE)} connections and denied packets more", flush=True)
            until(lambda: not any(missing(status())), "they are recorded", _COMPARED_S, pause_s=1.0)
            found = tell("with those")
    return 0 if same and not found["unaccounted"] else 1


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    sys.exit(main(*given, *(60, 10_000)[len(given) :]))
