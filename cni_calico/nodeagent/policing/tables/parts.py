"""PURE: long chains in parts, so that they can be written piece by piece before anything leads to them.

Rule: a part's name is derived from its content, so a part never changes, and an equal chain has equal parts after a
restart, too. The chain itself only leads through its parts, in order: replacing it is one small transaction. Where a
part may pass a packet on to the next tier, the chain looks at the mark behind it.
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would load libcrypto
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cni_calico.netfilter.rules import RETURN, NftRule, jump
from cni_calico.netfilter.tables import NftChain, NftTable
from cni_calico.nodeagent.policing.tables.matches import ListSet

LARGE_RULES = 500  # of a chain that is made in parts
PART_RULES = 200  # a part is written at once
# sets that the kernel passes by in one transaction, some 50 ns each: to find one it searches all of the table
SEARCHED = 1_000_000
_FEWEST = 50  # look-ups of a part, however many sets there are
_LOOKUPS = 8  # of a rule, at most: four tests of each side
_BETWEEN = "//"  # no other name of ours contains it
_DIGEST_BYTES = 10


@dataclass(frozen=True, slots=True)
class RenderedRules:
    """Rules that belong together, and the lists that they look up."""

    rules: Sequence[NftRule]
    lists: Mapping[str, ListSet] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChainPart:
    """``lists``: what its rules look up."""

    chain: NftChain
    lists: Mapping[str, ListSet]


@dataclass(frozen=True, slots=True)
class PartedChain:
    """``lists``: what the chain's own rules look up. A short chain has no parts."""

    chain: NftChain
    parts: tuple[ChainPart, ...] = ()
    lists: Mapping[str, ListSet] = field(default_factory=dict)


def whole_name(chain: str) -> str:
    """The name of the chain that a part belongs to; of any other chain its own."""
    return chain.partition(_BETWEEN)[0]


def _part_name(chain: str, rules: Iterable[NftRule]) -> str:
    shown: dict[int, str] = {}  # many tests are the same objects in all rules
    found = blake2b(digest_size=_DIGEST_BYTES)
    for rule in rules:
        for part in (*rule.tests, *rule.actions):
            text = shown.get(id(part))
            if text is None:
                text = shown[id(part)] = repr(part)
            found.update(text.encode("utf-8", "surrogatepass"))
        found.update(b"\0" + rule.comment.encode("utf-8", "surrogatepass") + b"\0")
    return f"{chain}{_BETWEEN}{found.hexdigest()}"


def split(name: str, rendered: Iterable[RenderedRules], sets: int = 0) -> Iterator[ChainPart]:
    """The parts of a long chain; the last one is yielded even if it is short. One of its rules is not divided.
    ``sets``: how many its rules look up.
    """
    rules: list[NftRule] = []
    lists: dict[str, ListSet] = {}
    most, lookups = max(_FEWEST, SEARCHED // max(1, sets)), 0
    counted = most < PART_RULES * _LOOKUPS
    for one in rendered:
        rules += one.rules
        lists.update(one.lists)
        if counted:
            lookups += sum(len(rule.lookups()) for rule in one.rules)
        if len(rules) >= PART_RULES or lookups >= most:
            yield _part(name, rules, lists)
            rules, lists, lookups = [], {}, 0
    if rules:
        yield _part(name, rules, lists)


def named_part(name: str, rules: Sequence[NftRule]) -> ChainPart:
    """A part that looks up no lists."""
    return _part(name, rules, {})


def _part(name: str, rules: Sequence[NftRule], lists: Mapping[str, ListSet]) -> ChainPart:
    return ChainPart(NftChain(_part_name(name, rules), tuple(rules)), lists)


def join(name: str, parts: Sequence[ChainPart], passed: NftRule | None = None) -> PartedChain:
    """The chain with these parts; ``passed`` comes after each part that may return early."""
    if len(parts) == 1:
        return PartedChain(NftChain(name, parts[0].chain.rules), (), parts[0].lists)
    rules: list[NftRule] = []
    for part in parts:
        rules.append(NftRule((), (jump(part.chain.name),)))
        if passed is not None and any(rule.verdict == RETURN for rule in part.chain.rules):
            rules.append(passed)
    unique = {part.chain.name: part for part in parts}  # equal parts are one chain
    return PartedChain(NftChain(name, tuple(rules)), tuple(unique.values()))


def count_rules_of(table: NftTable, name: str) -> int:
    """The rules of a chain with those of its parts, whether they are recognised or not; -1 if there is no such chain.

    A chain leads to each of its parts by a rule: where there are more parts, some are left over, maybe the largest.
    """
    if name not in table.chains:
        return -1
    own = len(table.chains[name].rules)
    parts = (chain for other, chain in table.chains.items() if other != name and whole_name(other) == name)
    sizes = sorted(len(part.rules) for part in parts)
    return sum(sizes[:own]) if sizes else own
