"""PURE: the addresses that are no workload's, in parts that no rule of either state can tell apart.

Rule: the parts cover both families whole. A part is cut wherever a network or an address begins or ends that a rule or
a set names, so one address of it answers for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cni_calico.policy.judge.classes import packed_net
from cni_calico.policy.wanted import Packed, PackedNet, Wanted

_SIZES = {4: 4, 6: 16}


@dataclass(frozen=True, slots=True)
class OutsidePart:
    """``around``: the smallest network that is named and has it, None: it is in none. ``example``: one of its
    addresses, which is no workload's.
    """

    example: Packed
    around: PackedNet | None


def nets_named(wanted: Wanted) -> set[PackedNet]:
    """Networks and single addresses of rules and sets; sets of endpoints name addresses, too."""
    found = {net for members in wanted.sets.values() for net in members.nets}
    for members in wanted.sets.values():
        found.update((address, 8 * len(address)) for address in members.addresses)
        found.update((address, 8 * len(address)) for address, _, _ in members.ports)
    for policy in wanted.policies.values():
        for rule in policy.rules():
            for side in (rule.source, rule.destination):
                found.update(map(packed_net, (*side.nets, *side.not_nets)))
    return found


def outside_parts(nets: Iterable[PackedNet], taken: set[Packed]) -> Iterator[OutsidePart]:
    """``taken``: the workloads' addresses. A part that has no other ones is left out."""
    named = set(nets)
    for family, size in _SIZES.items():
        its = sorted(
            (int.from_bytes(packed, "big"), length) for packed, length in named if len(packed) == size
        )  # a network comes before those inside it
        used = {int.from_bytes(packed, "big") for packed in taken if len(packed) == size}
        yield from _parts(its, 8 * size, used, family)


def _parts(its: list[tuple[int, int]], bits: int, used: set[int], family: int) -> Iterator[OutsidePart]:
    end = 1 << bits
    size = _SIZES[family]
    inside: list[tuple[int, int, int]] = []  # (last, first, length) of the networks around ``at``
    seen: set[tuple[int, int] | None] = set()
    at = 0

    def part(low: int, before: int) -> Iterator[OutsidePart]:
        around = (inside[-1][1], inside[-1][2]) if inside else None
        if around in seen:
            return
        number = low
        while number < before and number in used:
            number += 1
        if number < before:
            seen.add(around)
            net = None if around is None else (around[0].to_bytes(size, "big"), around[1])
            yield OutsidePart(number.to_bytes(size, "big"), net)

    for first, length in [*its, (end, bits)]:
        while inside and inside[-1][0] < first:
            last = inside[-1][0]
            yield from part(at, last + 1)
            at = last + 1
            inside.pop()
        yield from part(at, min(first, end))
        at = first
        if first < end:
            inside.append((first + (1 << (bits - length)) - 1, first, length))
