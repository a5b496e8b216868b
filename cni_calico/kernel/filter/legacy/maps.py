"""PURE: maps from interfaces to chains as trees of chains of iptables.

Rule: a map is a chain of comparisons; a large one is a tree by the beginnings of names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cni_calico.kernel.filter.legacy.matches import CannotExpress, interface, quoted
from cni_calico.kernel.filter.legacy.names import chain_name
from cni_calico.kernel.filter.legacy.placement import Chains, NotExpressed, PlacedChains, tag_all
from cni_calico.kernel.filter.legacy.rules import map_chain
from cni_calico.netfilter.rules import PacketVerdict

_LEAF = 12  # at most so many comparisons in one chain of a map


def part_of_map(key: tuple[str, str], verdicts: Mapping[bytes, PacketVerdict], before: Chains) -> PlacedChains:
    chains = {}
    for name, rules in _branches(*key, verdicts):
        chains[name] = tag_all(rules)
        if name in before and before[name].tags == chains[name].tags:
            chains[name] = before[name]
    return PlacedChains(chains, frozenset(verdict.chain for verdict in verdicts.values() if verdict.chain))


def _branches(name: str, option: str, verdicts: Mapping[bytes, PacketVerdict]) -> Iterator[tuple[str, list[str]]]:
    """Every chain of the tree; the first one is its root."""
    entries = sorted((key.rstrip(b"\0"), verdict) for key, verdict in verdicts.items())
    last = [entry_of(name, option, *entry) for entry in entries if _is_open(entry[0])]
    waiting = [("", [entry for entry in entries if not _is_open(entry[0])])]
    while waiting:
        prefix, entries = waiting.pop()
        rules = []
        groups: dict[bytes, list[tuple[bytes, PacketVerdict]]] = {}
        if len(entries) <= _LEAF:
            groups = {key: [(key, verdict)] for key, verdict in entries}
        else:
            common = _common(entries[0][0], entries[-1][0]) + 1
            for entry in entries:
                groups.setdefault(entry[0][:common], []).append(entry)
        for beginning, some in sorted(groups.items()):
            if len(some) == 1:
                rules.append(entry_of(name, option, *some[0]))
            else:
                text = beginning.decode("utf-8", "surrogateescape")
                rules.append(f"{interface(option, text, is_prefix=True)} -g {map_chain(name, option, text)}")
                waiting.append((text, some))
        yield map_chain(name, option, prefix), rules + ([] if prefix else last)


def _is_open(key: bytes) -> bool:
    """Whether iptables takes the name for a prefix of names."""
    return key.endswith(b"+")


def _common(first: bytes, last: bytes) -> int:
    """The length of the prefix that these two, and everything sorted between them, have in common."""
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def entry_of(name: str, option: str, key: bytes, verdict: PacketVerdict) -> str:
    """An interface that iptables cannot name can only be denied, with all that begin like it and have no entry."""
    if _is_open(key) and verdict.kind == "drop":
        return f"{option} {quoted(key.decode('utf-8', 'surrogateescape'))} -j DROP"
    try:
        match = interface(option, key.decode("utf-8", "surrogateescape"))
    except CannotExpress as e:
        raise NotExpressed(str(e), map_name=name, key=key.ljust(16, b"\0")) from e
    if verdict.kind == "drop":
        return f"{match} -j DROP"
    if verdict.kind != "jump":
        raise NotExpressed(
            f"iptables has nothing for the verdict {verdict.kind}", map_name=name, key=key.ljust(16, b"\0")
        )
    return f"{match} -g {chain_name(verdict.chain)}"
