"""What this host has recorded of a connection that is explained (docs/flows.md).

Rule: only a sentence beside what is computed; without a recorder that answers there is none, and nobody waits long.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime

from cni_calico import directories
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.policy.explain import Packet
from cni_calico.policy.ports import WITH_PORTS

_HOUR_S, _ANSWER_S = 3600, 5.0


def describe_seen(packet: Packet, now: Callable[[], float] = time.time, answer_s: float = _ANSWER_S) -> str:
    """The sentence, "" for none."""
    path = f"{directories.run_dir(os.environ)}/{directories.FLOW_SOCKET}"
    if not os.path.exists(path):
        return ""
    from cni_calico.flows.client import RecorderSlow, ask
    from cni_calico.flows.query import ONLY_DENIED, PROTOCOLS, Condition, FlowQuery

    protocol = PROTOCOLS.get(packet.protocol, str(packet.protocol))
    wanted = {"from": str(packet.source), "to": str(packet.destination), "protocol": protocol}
    if packet.protocol in WITH_PORTS:
        wanted["port"] = str(packet.destination_port)
    conditions = tuple(Condition(field, (value,)) for field, value in wanted.items())
    counts, last, nothing = Counter[str](), dict[str, str](), "nothing"
    query = FlowQuery(conditions, since=now() - _HOUR_S, aggregate=True)
    try:
        for document in ask(path, query, Deadline.after(answer_s), whole=True):
            if "verdict" in document:
                verdict = document["verdict"]
                counts[verdict] += document["connections"]
                last[verdict] = max(last.get(verdict, ""), document["last"])
            elif document.get(ONLY_DENIED):
                nothing = "nothing denied; what is let through is not recorded"
    except RecorderSlow:
        return f"Seen on this host in the last hour: unknown, its flow recorder did not answer within {answer_s:g} s."
    except CalicoError:
        return ""
    if not counts:
        return f"Seen on this host in the last hour: {nothing}."
    parts = [f"{counts[one]} {one}, last {_time(last[one])}" for one in sorted(counts, reverse=True)]
    return f"Seen on this host in the last hour: {'; '.join(parts)}."


def _time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return "at an unknown time"
