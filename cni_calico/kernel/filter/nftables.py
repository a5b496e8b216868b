"""nftables through its program: one script applied as a whole or not at all, one table read back as JSON.

Rule: only the table named is touched. What is read is normalised (no handles, no counters), so that two readings of
the same rules are equal.
"""

from __future__ import annotations

import json
import os
from typing import Any

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.process import run

APPLY = faults.declare("nft.apply")
_PLACES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/local/bin")
_VOLATILE = ("handle", "index", "packets", "bytes")


def find_program(name: str) -> str:
    """The path of a program of the host, "" when it is not installed."""
    places = [*os.environ.get("PATH", "").split(":"), *_PLACES]
    for place in places:
        path = f"{place}/{name}"
        if place and os.access(path, os.X_OK):
            return path
    return ""


def run_program(argv: list[str], stdin: bytes, deadline: Deadline) -> bytes:
    """Its stdout. Raises KernelError with what it said when it fails."""
    done = run(argv, stdin=stdin, env={"PATH": ":".join(_PLACES), "LC_ALL": "C"}, deadline=deadline)
    if done.rc:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise KernelError(f"cannot run {' '.join(argv)}: {said[0] if said else f'it ended with status {done.rc}'}")
    return done.stdout


def apply_script(script: str, deadline: Deadline) -> None:
    """All of the script in one transaction. Raises KernelError."""
    program = find_program("nft")
    if not program:
        raise KernelError("cannot apply nftables rules: nft is not installed")
    try:
        faults.before(APPLY)
        run_program([program, "-f", "-"], script.encode(), deadline)
        faults.after(APPLY)
    except faults.Injected as e:
        raise KernelError(f"cannot apply nftables rules: {e}", errno=e.errno or 0) from e


def read_table(family: str, name: str, deadline: Deadline) -> Any:
    """The table as nft -j lists it, normalised; None when there is none. Raises KernelError."""
    program = find_program("nft")
    if not program:
        return None
    try:
        listed = run_program([program, "-j", "list", "table", family, name], b"", deadline)
    except KernelError as e:
        if "No such file" in e.message:
            return None
        raise
    return [_normal(item) for item in json.loads(listed)["nftables"] if "metainfo" not in item]


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items() if key not in _VOLATILE}
    return [_normal(item) for item in value] if isinstance(value, list) else value


def usable(deadline: Deadline) -> bool:
    """Whether nft is there and this kernel understands it."""
    program = find_program("nft")
    if not program:
        return False
    try:
        run_program([program, "list", "tables"], b"", deadline)
    except KernelError:
        return False
    return True
