"""nftables through the nft program: a script is applied completely or not at all, a table is read back as JSON.

Rule: only the table named is touched. What is read is normalised (no handles, no counters), so that two readings of the
same rules are equal.
"""

from __future__ import annotations

import json
from typing import Any

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.programs import find_program, run_program

APPLY = faults.declare("nft.apply")
_VOLATILE = ("handle", "index", "packets", "bytes")


def apply_script(script: str, deadline: Deadline) -> None:
    """Apply all of the script in one transaction. Raises KernelError."""
    program = find_program("nft")
    if not program:
        raise KernelError("cannot apply nftables rules: nft is not installed")
    with Doing("apply nftables rules"):
        faults.before(APPLY)
        run_program([program, "-f", "-"], script.encode(), deadline)
        faults.after(APPLY)


def read_table(family: str, name: str, deadline: Deadline) -> Any:
    """The table as nft -j lists it, normalised; None if there is none. Raises KernelError."""
    listed = _list_table(family, name, deadline)
    return None if listed is None else [_normal(item) for item in listed if "metainfo" not in item]


def count_packets(family: str, name: str, deadline: Deadline) -> int:
    """What all counters of a table's rules say; 0 if there is none. Raises KernelError."""
    rules = (item["rule"] for item in _list_table(family, name, deadline) or () if "rule" in item)
    counters = (one["counter"] for rule in rules for one in rule["expr"] if isinstance(one.get("counter"), dict))
    return sum(int(counter["packets"]) for counter in counters)


def _list_table(family: str, name: str, deadline: Deadline) -> list[dict[str, Any]] | None:
    """As nft -j lists it; None if there is none."""
    program = find_program("nft")
    if not program:
        return None
    try:
        listed: dict[str, Any] = json.loads(run_program([program, "-j", "list", "table", family, name], b"", deadline))
    except KernelError as e:
        if "No such file" in e.message:
            return None
        raise
    found: list[dict[str, Any]] = listed["nftables"]
    return found


def print_table(family: str, name: str, deadline: Deadline) -> str:
    """The table as ``nft list table`` prints it; "" if there is none. Raises KernelError."""
    program = find_program("nft")
    if not program or not has_table(family, name, deadline):
        return ""
    return run_program([program, "list", "table", family, name], b"", deadline).decode(errors="replace")


def has_table(family: str, name: str, deadline: Deadline) -> bool:
    """Whether there is the table; False also without nft or the kernel's support. The tables' rules are not read: they
    may be other programs'.
    """
    program = find_program("nft")
    if not program:
        return False
    try:
        listed = run_program([program, "list", "tables", family], b"", deadline)
    except KernelError:
        return False
    return f"table {family} {name}".encode() in listed.splitlines()


def _normal(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _normal(item) for key, item in value.items() if key not in _VOLATILE}
    return [_normal(item) for item in value] if isinstance(value, list) else value


def usable(deadline: Deadline) -> bool:
    """Whether nft is installed and this kernel has its tables of IPv4: it may have nf_tables without them."""
    program = find_program("nft")
    if not program:
        return False
    try:
        run_program([program, "--check", "add", "table", "ip", "calico-probe"], b"", deadline)
    except KernelError:
        return False
    return True
