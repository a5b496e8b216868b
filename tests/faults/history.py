"""What was asked and answered, and whether that can have been right.

Rule: nothing of the product is used here. An address belongs to an attachment (a container's interface) from the moment
its ADD answered with it until the moment somebody asked for its end: a DEL, or a GC that does not name it. No two
attachments may have one at once, whatever was killed meanwhile.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ENDS = ("DEL", "GC")


@dataclass(frozen=True)
class Operation:
    """One call. Times are of the clock that all processes of the host share; ``rc`` None: it was killed.

    ``container`` is the attachment: "container ID/interface". A GC is there once for each that it does not name.
    """

    began: float
    ended: float
    command: str
    container: str
    rc: int | None
    addresses: tuple[str, ...] = ()
    code: int = 0
    text: str = ""


@dataclass(frozen=True)
class Ownership:
    address: str
    container: str
    since: float
    until: float


@dataclass
class Verdict:
    """``violations``: sentences; empty when nothing went wrong. ``cleaned``: handles that the janitor removed."""

    operations: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    texts: dict[int, str] = field(default_factory=dict)  # one for each code
    violations: list[str] = field(default_factory=list)
    cleaned: int = 0


def read_history(path: Path) -> tuple[list[Operation], set[str]]:
    """The calls that ended, and the attachments of which a call has begun and not ended."""
    ended: list[Operation] = []
    open_now: set[str] = set()
    for line in path.read_text().splitlines() if path.exists() else ():
        entry = json.loads(line)
        if "begins" in entry:
            open_now.update(entry["begins"])
            continue
        ended.append(Operation(**{**entry, "addresses": tuple(entry["addresses"])}))
        open_now.discard(entry["container"])
    return ended, open_now


def ownerships(history: Iterable[Operation]) -> list[Ownership]:
    """Who certainly had which address when; for ever where nobody asked for its end."""
    held: dict[str, Operation] = {}
    found: list[Ownership] = []

    def close(container: str, at: float) -> None:
        operation = held.pop(container, None)
        if operation is not None:
            found.extend(Ownership(address, container, operation.ended, at) for address in operation.addresses)

    for operation in sorted(history, key=lambda each: each.began):
        if operation.command == "ADD" and operation.rc == 0:
            close(operation.container, operation.began)
            held[operation.container] = operation
        elif operation.command in ENDS:
            close(operation.container, operation.began)
    for container in list(held):
        close(container, float("inf"))
    return found


def find_double(owned: Sequence[Ownership]) -> list[str]:
    """Addresses that two attachments had at once."""
    by_address = defaultdict(list)
    for each in owned:
        by_address[each.address].append(each)
    found = []
    for address, owners in by_address.items():
        owners.sort(key=lambda each: each.since)
        for i, earlier in enumerate(owners):
            found += [
                f"{address} belonged to {earlier.container} until {earlier.until:.4f} "
                f"and to {later.container} from {later.since:.4f}"
                for later in owners[i + 1 :]
                if later.since < earlier.until and later.container != earlier.container
            ]
    return found


def judge(history: Sequence[Operation], verdict: Verdict | None = None) -> Verdict:
    """What was found is added to ``verdict``."""
    verdict = verdict or Verdict()
    verdict.violations += find_double(ownerships(history))
    for operation in {(each.command, each.began): each for each in history}.values():  # a GC once
        verdict.operations[operation.command] += 1
        how = (
            "killed" if operation.rc is None else "succeeded" if operation.rc == 0 else f"failed with {operation.code}"
        )
        verdict.outcomes[f"{operation.command} {how}"] += 1
        if operation.code:
            verdict.texts[operation.code] = f"{operation.command} of {operation.container}: {operation.text}"
        if operation.code == 199:
            verdict.violations.append(
                f"{operation.command} of {operation.container} is a defect (199): {operation.text}"
            )
    return verdict
