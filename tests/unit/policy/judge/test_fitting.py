"""Rules by what they need, against a look at each of them."""

from __future__ import annotations

from ipaddress import ip_network

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.policy.judge.classes import AddressClass, packed_net
from cni_calico.policy.judge.fitting import FittingRules
from cni_calico.policy.wanted import WantedRule, WantedSide

SETS = ("s-a", "s-b", "s-c")
NETS = tuple(map(ip_network, ("10.0.0.0/8", "10.1.0.0/16", "fd00::/8")))


def some(of: tuple[object, ...]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(st.sampled_from(of), max_size=2, unique=True).map(tuple)


SIDES = st.builds(WantedSide, nets=some(NETS), not_nets=some(NETS), sets=some(SETS), not_sets=some(SETS))
RULES = st.builds(
    WantedRule,
    st.sampled_from(("Allow", "Deny", "Pass", "Log")),
    st.sampled_from(((4, 6), (4,), (6,))),
    st.sampled_from((None, 6, 17)),
    st.sampled_from((None, 6)),
    source=st.one_of(st.just(WantedSide()), SIDES),
    destination=st.one_of(st.just(WantedSide()), SIDES),
)


def classes(family: int) -> st.SearchStrategy[AddressClass]:
    nets = tuple(packed_net(net) for net in NETS if net.version == family)
    return st.builds(AddressClass, st.just(family), st.frozensets(st.sampled_from(SETS)), some(nets).map(frozenset))


def fits(side: WantedSide, address: AddressClass) -> bool:
    nets = [net for net in side.nets if net.version == address.family]
    return (
        (not nets or any(packed_net(net) in address.nets for net in nets))
        and not any(packed_net(net) in address.nets for net in side.not_nets)
        and all(name in address.sets for name in side.sets)
        and not any(name in address.sets for name in side.not_sets)
    )


@given(st.lists(RULES, max_size=30), st.sampled_from((4, 6)).flatmap(lambda family: st.tuples(*[classes(family)] * 2)))
def test_as_one_by_one(rules: list[WantedRule], ends: tuple[AddressClass, AddressClass]) -> None:
    source, destination = ends
    expected = [
        (index, rule)
        for index, rule in enumerate(rules)
        if rule.action != "Log"
        and source.family in rule.families
        and rule.protocol in (None, 6)
        and rule.not_protocol != 6
        and fits(rule.source, source)
        and fits(rule.destination, destination)
    ]
    assert list(FittingRules(rules).of(source, destination, 6)) == expected
