"""What runs inside the pods of ``calicoctl cluster check``: one pod answers, the other one tries connections and
reports its findings; where encryption is enabled, one on each of the two hosts looks at the wires.

Rule: each line that is printed is a JSON object, which the check outside reads from the pod's log.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

from cni_calico.ctl.cluster.connectivity.findings import Trial, parse_plan
from cni_calico.ctl.cluster.connectivity.probes import answer, open_listeners, own_socket, try_all
from cni_calico.ctl.cluster.connectivity.sightings import Sighting, WirePlan, parse_wire_plan
from cni_calico.ctl.cluster.connectivity.wires import exchange, watch
from cni_calico.errors import InvalidConfig

ANSWERING = "answer"
_FORBID, _DONE, _FINDING, _EXCHANGED = "forbid", "done", "finding", "exchanged"
_SEEN, _BLIND = "seen", "blind"
_LOOK_S = 0.5


def act(task: str, say: Callable[[str], None]) -> str:
    """``task`` is ANSWERING, or a plan. Raises InvalidConfig."""
    if task == ANSWERING:
        answer(open_listeners(own_socket), threading.Event())
    try:
        wire = parse_wire_plan(task)
        plan = parse_plan(task) if wire is None else None
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidConfig(f"cannot read the plan of a check: {e}") from e
    if plan is None:
        assert wire is not None
        return _watch_wires(wire, say)
    for finding in try_all(plan, own_socket, lambda: say(_line(_FORBID, True))):
        say(_line(_FINDING, asdict(finding)))
    for address, token in plan.tokens.items():
        say(_line(_EXCHANGED, {address: exchange(own_socket, address, token)}))
    return _line(_DONE, True)


def _watch_wires(plan: WirePlan, say: Callable[[str], None]) -> str:
    """Until the pod is ended."""
    try:
        for sighting in watch(plan, own_socket, lambda: time.sleep(_LOOK_S)):
            say(_line(_SEEN, asdict(sighting)))
    except OSError as e:
        return _line(_BLIND, e.strerror or str(e))
    raise AssertionError("it looks for ever")


def _line(name: str, value: object) -> str:
    return json.dumps({name: value}) + "\n"


# -- computed from what was read --------------------------------------------------------------------------------------


class Progress:
    """What a pod's log says so far."""

    def __init__(self, log: str) -> None:
        self.findings: list[Trial] = []
        self.wants_policy = False
        self.is_done = False
        self.exchanged: dict[str, int] = {}  # packets there and back, by address
        self.seen: Sighting | None = None  # the last one
        self.blind = ""  # why nothing can be seen
        self.others: list[str] = []  # other lines of the log, which say why the pod failed
        for line in log.splitlines():
            self._read(line)

    def _read(self, line: str) -> None:
        try:
            document = json.loads(line)
            if not isinstance(document, dict):
                raise TypeError(line)
            if _FINDING in document:
                self.findings.append(Trial(**document[_FINDING]))
            self.wants_policy |= _FORBID in document
            self.is_done |= _DONE in document
            self.exchanged |= document.get(_EXCHANGED) or {}
            if _SEEN in document:
                self.seen = Sighting(**document[_SEEN])
            self.blind = str(document.get(_BLIND) or self.blind)
        except (ValueError, TypeError):
            self.others.append(line)
