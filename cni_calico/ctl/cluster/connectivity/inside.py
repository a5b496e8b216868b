"""What runs inside the pods of ``calicoctl cluster check``: one pod answers, the other one tries connections and
reports its findings.

Rule: each line that is printed is a JSON object, which the check outside reads from the pod's log.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import asdict

from cni_calico.ctl.cluster.connectivity.findings import Trial, parse_plan
from cni_calico.ctl.cluster.connectivity.probes import answer, open_listeners, own_socket, try_all
from cni_calico.errors import InvalidConfig

ANSWERING = "answer"
_FORBID, _DONE, _FINDING = "forbid", "done", "finding"


def act(task: str, say: Callable[[str], None]) -> str:
    """``task`` is ANSWERING, or a plan. Raises InvalidConfig."""
    if task == ANSWERING:
        answer(open_listeners(own_socket), threading.Event())
    try:
        plan = parse_plan(task)
    except (ValueError, KeyError, TypeError) as e:
        raise InvalidConfig(f"cannot read the plan of a check: {e}") from e
    for finding in try_all(plan, own_socket, lambda: say(_line(_FORBID, True))):
        say(_line(_FINDING, asdict(finding)))
    return _line(_DONE, True)


def _line(name: str, value: object) -> str:
    return json.dumps({name: value}) + "\n"


# -- computed from what was read --------------------------------------------------------------------------------------


class Progress:
    """What a pod's log says so far."""

    def __init__(self, log: str) -> None:
        self.findings: list[Trial] = []
        self.wants_policy = False
        self.is_done = False
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
        except (ValueError, TypeError):
            self.others.append(line)
