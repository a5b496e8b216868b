"""PURE: the rules of one direction of a policy, made ready to be asked for many pairs of address classes.

Rule: what was written is looked at once, in time linear in it; afterwards rules that need a set or a network in which
the addresses are not cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cni_calico.policy.judge.classes import AddressClass, packed_net
from cni_calico.policy.wanted import PackedNet, WantedRule, WantedSide

_FEW = 8  # rules that are not worth an index
NeededPlace = str | PackedNet  # a set that the address has to be in, or a network that a rule names
_Places = dict[NeededPlace, list[int]]


class _AddressTest:
    """What a side asks of an address, whatever the port."""

    __slots__ = ("nets", "not_nets", "not_sets", "sets")

    def __init__(self, side: WantedSide) -> None:
        self.sets, self.not_sets = side.sets, side.not_sets
        self.nets = {
            family: found
            for family in (4, 6)
            if (found := frozenset(packed_net(net) for net in side.nets if net.version == family))
        }
        self.not_nets = frozenset(map(packed_net, side.not_nets))

    def holds(self, address: AddressClass) -> bool:
        nets = self.nets.get(address.family)
        return (
            (nets is None or not nets.isdisjoint(address.nets))
            and self.not_nets.isdisjoint(address.nets)
            and address.sets.issuperset(self.sets)
            and address.sets.isdisjoint(self.not_sets)
        )


def _address_test(side: WantedSide) -> _AddressTest | None:
    """None: any address."""
    return _AddressTest(side) if side.sets or side.not_sets or side.nets or side.not_nets else None


class FittingRules:
    """``of`` gives those that can match. Rules that only log are left out: they decide nothing."""

    def __init__(self, rules: Sequence[WantedRule]) -> None:
        self._rules = [
            (index, rule, _address_test(rule.source), _address_test(rule.destination))
            for index, rule in enumerate(rules)
            if rule.action != "Log"
        ]
        self._always: list[int] = []  # places in _rules
        self._at_source: _Places = {}
        self._at_destination: _Places = {}
        for place, (_, rule, source, destination) in enumerate(self._rules):
            self._put(place, rule, source, destination)

    def _put(self, place: int, rule: WantedRule, source: _AddressTest | None, destination: _AddressTest | None) -> None:
        """Where it is found if one side has what it needs."""
        if len(self._rules) > _FEW:
            for test, places in ((source, self._at_source), (destination, self._at_destination)):
                needed = _needed(test, rule)
                if needed:
                    for one in needed:
                        places.setdefault(one, []).append(place)
                    return
        self._always.append(place)

    def of(self, source: AddressClass, destination: AddressClass, protocol: int) -> Iterator[tuple[int, WantedRule]]:
        """(index, rule) of those that match addresses of these classes with some port, in order."""
        family = source.family
        for place in self._candidates(source, destination):
            index, rule, of_source, of_destination = self._rules[place]
            if family not in rule.families or rule.protocol not in (None, protocol) or rule.not_protocol == protocol:
                continue
            if of_source is not None and not of_source.holds(source):
                continue
            if of_destination is None or of_destination.holds(destination):
                yield index, rule

    def _candidates(self, source: AddressClass, destination: AddressClass) -> Sequence[int]:
        if not self._at_source and not self._at_destination:
            return self._always
        found = set(self._always)
        for places, address in ((self._at_source, source), (self._at_destination, destination)):
            for there in (address.sets, address.nets):
                few, many = (places, there) if len(places) < len(there) else (there, places)
                for one in few:
                    if one in many:
                        found.update(places[one])
        return sorted(found)


def _needed(test: _AddressTest | None, rule: WantedRule) -> Sequence[NeededPlace]:
    """The address must have one of these; () if it may be any, at least in one family."""
    if test is None:
        return ()
    if test.sets:
        return test.sets[:1]
    if all(family in test.nets for family in rule.families):
        return [net for family in rule.families for net in test.nets[family]]
    return ()
