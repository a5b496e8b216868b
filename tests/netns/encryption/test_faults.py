"""A routing rule that the kernel refuses, or whose answer is lost: the same call again brings it about."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel.routing_rules import ensure_rule, read_rules, remove_rule
from cni_calico.model.host import RoutingRule
from tests.deadlines import soon
from tests.netns.namespaces import namespace

pytestmark = pytest.mark.netns

RULES = [
    RoutingRule(family=4, priority=99, table=1, mark=0x200000, mask=0x200000, invert=True, source=None),
    RoutingRule(family=6, priority=98, table=2, mark=0, mask=0, invert=False, source=ip_network("fd00:65::/64")),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("rule", RULES, ids=["IPv4", "IPv6"])
def test_the_same_again_brings_it_about(rule: RoutingRule, when: str) -> None:
    with namespace("rules") as ns:
        for change, fault, wanted in (
            (ensure_rule, "netlink.rule-add", True),
            (remove_rule, "netlink.rule-del", False),
        ):
            with pytest.raises(KernelError):
                ns.call(change, rule, soon(), fault=f"{fault}:{when}:1:fail")
            assert (rule in ns.call(read_rules, rule.family, soon())) == (wanted if when == "after" else not wanted)
            ns.call(change, rule, soon())
            assert (rule in ns.call(read_rules, rule.family, soon())) == wanted
