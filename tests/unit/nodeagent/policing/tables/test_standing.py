"""127.0.0.0/8 stays apart from workloads, whatever a kernel lacks and whatever a workload is allowed."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.netfilter.rules import ACCEPT, DROP
from cni_calico.netfilter.tables import NftChain
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import LOOPBACK, SPOOFING, render_may_spoof
from cni_calico.nodeagent.policing.tables.standing import LOOPBACK_IN, LOOPBACK_OUT, select_standing
from cni_calico.nodeagent.policing.tables.touched import FILTER


def verdicts(chain: NftChain) -> list[object]:
    return [rule.verdict for rule in chain.rules]


def test_a_kernel_that_cannot_check_sources_has_a_chain_of_its_own_for_it() -> None:
    goal = Goal(FilterSettings())
    chains = goal.tables.of[FILTER[4]].chains
    assert LOOPBACK_IN not in chains and "127.0.0.0/8" in chains[SPOOFING].rules[0].comment
    goal.lack(OptionalFeature.SOURCES, "no")
    assert verdicts(chains[LOOPBACK_IN]) == [DROP, DROP] and SPOOFING not in chains
    goal.forgive()  # tried again: while it may be refused once more, nothing opens
    assert LOOPBACK_IN in chains and SPOOFING in chains
    assert LOOPBACK_IN in select_standing(goal.tables.of[FILTER[4]], goal.settings).chains


@pytest.mark.parametrize("allowed", ["0.0.0.0/0", "64.0.0.0/2", "127.0.0.0/8", "127.0.0.1/32"])
def test_nobody_may_send_from_there(allowed: str) -> None:
    chain = render_may_spoof("calia", (ip_network(allowed),), 4, FilterSettings())
    wider = not ip_network(allowed).subnet_of(LOOPBACK)
    assert verdicts(chain) == ([DROP, ACCEPT] if wider else [])
    assert verdicts(render_may_spoof("calia", (ip_network("203.0.113.0/24"),), 4, FilterSettings())) == [ACCEPT]


def test_on_the_way_out() -> None:
    """Legacy iptables cannot drop behind source translation."""
    for by_iptables in (True, False):
        goal = Goal(FilterSettings(by_iptables=by_iptables))
        found = select_standing(goal.tables.of[FILTER[4]], goal.settings).chains
        assert (LOOPBACK_OUT in found) is not by_iptables
        assert LOOPBACK_OUT not in goal.tables.of[FILTER[4]].chains
