"""Finds and runs the programs of the packet filters.

Rule: they get a fixed PATH and the C locale, so that neither the caller's environment nor its language changes what
they do or print.
"""

from __future__ import annotations

import os

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.process import run

_PLACES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin")
ENVIRONMENT = {"PATH": ":".join(_PLACES), "LC_ALL": "C"}


def find_program(name: str) -> str:
    """The path of a program on the host, "" if it is not installed."""
    places = [*os.environ.get("PATH", "").split(":"), *_PLACES]
    for place in places:
        path = f"{place}/{name}"
        if place and os.access(path, os.X_OK):
            return path
    return ""


def run_program(argv: list[str], stdin: bytes, deadline: Deadline) -> bytes:
    """Run a program; returns its stdout. Raises KernelError with the program's own message if it fails."""
    done = run(argv, stdin=stdin, env=ENVIRONMENT, deadline=deadline)
    if done.rc:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise KernelError(f"cannot run {' '.join(argv)}: {said[0] if said else f'it ended with status {done.rc}'}")
    return done.stdout
