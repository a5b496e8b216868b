"""A chain of host endpoints that the kernel refuses: in its stage only failsafe ports are open, everything else is as
it should be, and policies count as in force.
"""

from __future__ import annotations

from errno import EINVAL

import pytest

from cni_calico.errors import RulesRefused
from cni_calico.netfilter.rules import DROP
from cni_calico.netfilter.tables import AddRules, Operation
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.hosts.stages import HOST_STAGES, HostStage
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.wanted import Wanted
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.enforce.test_faultfinder import HOW, enforcer_of, jumps_of
from tests.unit.nodeagent.policing.tables.worlds import difference, goal_of
from tests.unit.policy.cluster import NODE, graph_of

KINDS = ({}, {"applyOnForward": True}, {"preDNAT": True}, {"doNotTrack": True})


def with_hosts() -> Wanted:
    """One host endpoint, and a policy of each kind that speaks in every direction it may."""
    rules = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [80]}}, {"action": "Deny"}]
    documents = {
        ("HostEndpoint", "", "named"): {"metadata": {"labels": {}}, "spec": {"node": NODE, "interfaceName": "eth0"}},
    }
    for number, kind in enumerate(KINDS):
        ways = ["Ingress"] if "preDNAT" in kind else ["Ingress", "Egress"]
        spec = {"types": ways, "ingress": rules, **({"egress": rules} if len(ways) > 1 else {}), **kind}
        spec |= {"applyOnForward": True} if kind else {}
        documents["GlobalNetworkPolicy", "", f"p{number}"] = {"metadata": {}, "spec": spec}
    graph = graph_of(documents)
    graph.flush()
    return graph.wanted()


def chain_of(stage: HostStage, wanted: Wanted) -> str:
    [class_id] = wanted.host_classes
    return stage.chain_of(class_id)


def enforcer_with(kernel: FakePacketFilter, wanted: Wanted) -> Enforcer:
    enforcer = enforcer_of(kernel)
    enforcer.goal.use_interfaces({"eth0": frozenset()})
    enforcer.goal.update(difference(Wanted(), wanted))
    return enforcer


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("stage", HOST_STAGES, ids=lambda stage: stage.name)
def test_a_chain_of_host_endpoints_refused(how: str, stage: HostStage) -> None:
    wanted = with_hosts()
    name = chain_of(stage, wanted)
    right = goal_of(wanted, FilterSettings(), {"eth0": frozenset()}).tables.of
    kernel = FakePacketFilter()
    kernel.says_which, kernel.checks = HOW[how]

    def refuse(operation: Operation) -> int:
        return EINVAL if isinstance(operation, AddRules) and operation.chain == name and len(operation.rules) > 2 else 0

    kernel.refuse = refuse
    enforcer = enforcer_with(kernel, wanted)
    enforcer.bring_about(soon())
    [said] = enforcer.goal.left_out()
    assert said.startswith(f"{stage.what} at HostEndpoint named is denied: ")
    for table in FILTER.values():
        chains = dict(kernel.tables[table].chains)
        closed = chains.pop(name)
        direction = "in" if stage.ingress else "out"
        failsafe = {"forward": [], "raw": [f"failsafe-raw-{direction}"]}.get(stage.reach, [f"failsafe-{direction}"])
        assert jumps_of(closed) == failsafe and len(closed.rules) == 1 + len(failsafe)
        assert closed.rules[-1].actions == (DROP,) and not closed.rules[-1].tests
        assert chains == {other: chain for other, chain in right[table].chains.items() if other != name}
    kernel.refuse = lambda operation: 0
    enforcer.goal.forgive()
    enforcer.bring_about(soon())
    assert kernel.tables == right and not enforcer.goal.left_out()


def test_failsafe_ports_and_a_drop_refused_too() -> None:
    """Nothing can take their place: that is said, and policies are not in force."""
    wanted = with_hosts()
    name = chain_of(HOST_STAGES[3], wanted)
    kernel = FakePacketFilter()
    kernel.refuse = lambda o: EINVAL if isinstance(o, AddRules) and o.chain == name else 0
    enforcer = enforcer_with(kernel, wanted)
    with pytest.raises(RulesRefused, match=f"depend on what the kernel refuses: {name}"):
        enforcer.bring_about(soon())


def test_a_refused_chain_is_forgotten_with_its_host_endpoint() -> None:
    wanted, goal = with_hosts(), Goal(FilterSettings())
    goal.update(difference(Wanted(), wanted))
    assert goal.deny_host_chain(chain_of(HOST_STAGES[3], wanted), "no")
    assert goal.left_out() == [f"{HOST_STAGES[3].what} at HostEndpoint named is denied: no"]
    assert not goal.deny_host_chain(chain_of(HOST_STAGES[3], wanted), "no")
    assert not goal.deny_host_chain("host-in-of-nobody", "no") and not goal.deny_host_chain("host-in", "no")
    goal.update(difference(wanted, Wanted()))
    assert not goal.left_out() and not goal.refused
