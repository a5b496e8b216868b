"""What was asked and answered, and whether that can have been right.

Rule: nothing of the product is used here. An address belongs to a container from the moment its ADD answered with it
until the moment its first DEL was made; no two containers may have one at once, whatever was killed meanwhile.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Operation:
    """One call. Times are of the clock that all processes of the host share; ``rc`` None: it was killed."""

    began: float
    ended: float
    command: str
    container: str
    rc: int | None
    addresses: tuple[str, ...] = ()
    code: int = 0


@dataclass(frozen=True)
class Ownership:
    address: str
    container: str
    since: float
    until: float


@dataclass
class Verdict:
    """``violations``: sentences; empty when nothing went wrong."""

    operations: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def ownerships(history: Iterable[Operation]) -> list[Ownership]:
    """Who certainly had which address when; for ever where no DEL was made."""
    added: dict[str, Operation] = {}
    released: dict[str, float] = {}
    for operation in sorted(history, key=lambda each: each.began):
        if operation.command == "ADD" and operation.rc == 0:
            added[operation.container] = operation
        elif operation.command == "DEL" and operation.container in added:
            released.setdefault(operation.container, operation.began)
    return [
        Ownership(address, container, operation.ended, released.get(container, float("inf")))
        for container, operation in added.items()
        for address in operation.addresses
    ]


def find_double(owned: Sequence[Ownership]) -> list[str]:
    """Addresses that two containers had at once."""
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


def judge(history: Sequence[Operation]) -> Verdict:
    verdict = Verdict(violations=find_double(ownerships(history)))
    for operation in history:
        verdict.operations[operation.command] += 1
        how = (
            "killed" if operation.rc is None else "succeeded" if operation.rc == 0 else f"failed with {operation.code}"
        )
        verdict.outcomes[f"{operation.command} {how}"] += 1
        if operation.code == 199:
            verdict.violations.append(f"{operation.command} of {operation.container} was answered as a defect (199)")
    return verdict
