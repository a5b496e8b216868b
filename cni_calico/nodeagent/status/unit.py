"""When calico-node.service is ready, for systemd, which starts what has containers only then.

Rule: ready is once it is decided what workloads may do: the policies are in force, or none is due. No host waits for
ever: after DEADLINE_S it is ready all the same and says why not; and already after ANSWER_S where a datastore that may
be a container of this very host has not answered. Until it is decided the boot table keeps workloads closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from cni_calico.daemon.notify import READY, tell_systemd
from cni_calico.log import Log
from cni_calico.nodeagent.status import file as status

DEADLINE_S, ANSWER_S = 30.0, 5.0
ANSWERED_NAME = "datastore-answered"  # start-up has read from the datastore since calico-node was started
VARIABLE = "NOTIFY_SOCKET"


def note_answered(run_dir: str) -> None:
    """The datastore has answered start-up. Raises OSError."""
    with open(f"{run_dir}/{ANSWERED_NAME}", "wb"):
        pass


def forget_answered(run_dir: str) -> None:
    """Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(f"{run_dir}/{ANSWERED_NAME}")


def why_ready(fields: Mapping[str, Any], now: float, waited_s: float, *, may_be_here: bool, answered: bool) -> str:
    """PURE: why the unit is ready, in words; "" if it is not.

    ``fields``: the agent's status; ``now``: seconds since boot; ``waited_s``: since the unit was started;
    ``may_be_here``: the datastore may be a container of this host; ``answered``: it has answered.
    """
    policing = fields.get("policing") or {}
    not_live = status.why_not_live(fields, now)
    if not not_live and policing.get("ready"):
        return str(policing.get("sentence"))
    error = fields.get("startup_error") or fields.get("datastore_error")
    if may_be_here and not answered and waited_s >= ANSWER_S:
        return f"not decided what workloads may do: the datastore has not answered{f': {error}' if error else ''}"
    if waited_s >= DEADLINE_S:
        return f"not decided what workloads may do: {not_live or error or policing.get('sentence')}"
    return ""


class UnitReadiness:
    """Tells systemd once; ``look`` is called again and again, by one thread.

    ``may_be_here``: see ``why_ready``. ``data_plane`` False: another agent decides, and there is nothing to wait for.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        run_dir: str,
        log: Log,
        *,
        may_be_here: bool,
        data_plane: bool = True,
        now: Callable[[], float] = status.since_boot,
    ) -> None:
        self._environ, self._run_dir, self._log, self._now = environ, run_dir, log, now
        self._may_be_here, self._data_plane = may_be_here, data_plane
        self._begun = now()
        self._told = VARIABLE not in environ

    def look(self) -> None:
        if self._told:
            return
        now = self._now()
        why = "another agent maintains the data plane"
        if self._data_plane:
            answered = os.path.exists(f"{self._run_dir}/{ANSWERED_NAME}")
            fields = status.read_status(self._run_dir)
            why = why_ready(fields, now, now - self._begun, may_be_here=self._may_be_here, answered=answered)
        if why:
            self._told = True
            tell_systemd(f"{READY}\nSTATUS={why}", self._environ)
            self._log.info(f"the unit is ready after {now - self._begun:.1f} s: {why}")
