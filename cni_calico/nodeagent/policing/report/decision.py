"""Tells the CNI plugin what is decided: an ADD waits for its endpoint's policy only where that may come.

Rule: a decision is told before the endpoints' status files can be relied on for it, and lasts as long as this process.
"""

from __future__ import annotations

from cni_calico.daemon.said import Said
from cni_calico.directories import POLICY_DECISION
from cni_calico.kernel.held_file import HeldFile
from cni_calico.log import Log
from cni_calico.nodeagent.policing.report.status_files import status_directory
from cni_calico.nodeagent.status.policing import Standing
from cni_calico.plugin.policy_decision import ENFORCED, OFF, UNDECIDED, PolicyDecision
from cni_calico.regular import make_directories


class DecisionFile:
    """For the engine's thread."""

    def __init__(self, run_dir: str, log: Log) -> None:
        self._run_dir = run_dir
        self._file = HeldFile(f"{run_dir}/{POLICY_DECISION}")
        self._said = Said(log)
        self._told: PolicyDecision | None = None

    def tell(self, standing: Standing, prefix: str) -> None:
        """``prefix``: of the directory with the endpoints' status files, "" if there are none."""
        state = ENFORCED if standing.in_force else OFF if standing.ready else UNDECIDED
        decision = PolicyDecision(state, status_directory(prefix))
        if decision == self._told:
            return
        failed = ""
        try:
            make_directories(self._run_dir, 0o755)
            self._file.write(decision.render())
            self._told = decision
        except OSError as e:
            failed = f"cannot tell the CNI plugin what is decided: {self._file.path}: {e.strerror or e}"
        self._said.say("decision", [failed] if failed else [], "error")
