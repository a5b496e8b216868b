"""Deadlines of tests: none is reached unless something is wrong."""

from __future__ import annotations

from cni_calico.deadline import Deadline

SOON = Deadline.after(86400)  # made once, at import: longer than any run


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(seconds)
