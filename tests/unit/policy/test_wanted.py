"""A rule whose sets lack members opens nothing, or says that it may."""

from __future__ import annotations

import random
from dataclasses import replace
from ipaddress import ip_address

from cni_calico.policy.explain import Packet, matches
from cni_calico.policy.wanted import Members, Wanted
from tests.unit.nodeagent.policing.tables.worlds import ADDRESS_SETS, PORT_SETS, random_members, random_rule, v4


def test_a_rule_whose_sets_lack_members() -> None:
    """Against the evaluator, with all members and with fewer; both answers of ``may_open`` occur."""
    answers = set()
    for seed in range(3000):
        rng = random.Random(seed)
        names = [*ADDRESS_SETS, *PORT_SETS]
        sets = {name: random_members(rng, name) for name in names}
        incomplete = frozenset(rng.sample(names, 2))
        fewer = {
            name: Members(nets=one.nets if rng.random() < 0.5 else frozenset()) if name in incomplete else one
            for name, one in sets.items()
        }
        side = replace(random_rule(rng).source, nets=(), not_nets=(), ports=(), not_ports=())
        rule = replace(random_rule(rng), source=side, icmp=None, not_icmp=None)
        packet = Packet(
            ip_address(v4(rng.randrange(9))), ip_address(v4(rng.randrange(9))), rule.protocol or 6, 1024, 80
        )
        before, after = matches(Wanted(sets), rule, packet), matches(Wanted(fewer), rule, packet)
        answers.add((rule.may_open(incomplete), before, after))
        if rule.may_open(incomplete):
            continue
        if rule.action == "Allow":
            assert before or not after, rule
        elif rule.action == "Deny":
            assert after or not before, rule
        else:
            assert before == after, rule
    assert {(True, True, False), (True, False, True), (False, True, False), (False, False, True)} <= answers
