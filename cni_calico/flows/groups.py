"""The pair of nfnetlink_log groups to which rules report: one for what is let through, one for what is denied.

Rule: the recorder chooses the first pair to which no other program listens, and says which in a file; the agent's rules
follow. Without the file it is the first one.
"""

from __future__ import annotations

import os

from cni_calico.flows.deciders import ALLOWED_GROUP
from cni_calico.kernel.files import Files
from cni_calico.regular import read_regular

WHAT, DENIED_ONLY = "CALICO_FLOWS_RECORDED", "Denied"  # a variable of the recorder: it records only what is denied
CHOSEN, PAIRS = "flow-groups", 8
_MOST_BYTES = 8


def groups_of(pair: int) -> tuple[int, int]:
    """(of what is let through, of what is denied)."""
    return ALLOWED_GROUP + 2 * pair, ALLOWED_GROUP + 2 * pair + 1


def read_pair(run_dir: str) -> int:
    """The chosen one; the first for a file that is not ours."""
    try:
        pair = int(read_regular(f"{run_dir}/{CHOSEN}", _MOST_BYTES))
    except (OSError, ValueError):
        return 0
    return pair if 0 <= pair < PAIRS else 0


def write_pair(run_dir: str, pair: int) -> None:
    """Raises OSError."""
    if pair != read_pair(run_dir):
        os.makedirs(run_dir, exist_ok=True)
        Files().write_atomic(f"{run_dir}/{CHOSEN}", f"{pair}\n".encode(), 0o600, durable=False)
