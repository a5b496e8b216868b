"""What the policy engine of this node has decided, as it tells the plugin: a file that it holds as long as it lives.

Rule: what cannot be read counts as undecided, never as open.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cni_calico.kernel.files import Files
from cni_calico.kernel.held_file import read_held

UNDECIDED, ENFORCED, OFF = "undecided", "enforced", "off"
_STATE, _DIRECTORY = "state", "endpointStatus"


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """``directory``: of the endpoints' status files, "" if it writes none. ``lives``: the engine does."""

    state: str = UNDECIDED
    directory: str = ""
    lives: bool = False

    @property
    def is_due(self) -> bool:
        """Whether an endpoint's status file is worth waiting for."""
        return self.state != OFF and not (self.lives and not self.directory)

    def render(self) -> bytes:
        return json.dumps({_STATE: self.state, _DIRECTORY: self.directory}).encode()


def read_decision(files: Files, path: str) -> PolicyDecision:
    """The decision in a file; undecided if there is none."""
    try:
        data, lives = read_held(files.path(path))
    except OSError:
        return PolicyDecision()
    try:
        fields = json.loads(data)
        state, directory = fields[_STATE], fields[_DIRECTORY]
    except (ValueError, KeyError, TypeError, RecursionError):
        return PolicyDecision(lives=lives)
    known = state if state in (UNDECIDED, ENFORCED, OFF) else UNDECIDED
    return PolicyDecision(known, directory if isinstance(directory, str) else "", lives)
