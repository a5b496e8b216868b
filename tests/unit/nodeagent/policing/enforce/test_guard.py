"""The standing rules: when they are tried, what they guard, and what stays while something is unread."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from errno import ENOMEM, EPERM
from pathlib import Path

from cni_calico.netfilter.tables import AddRules, AddTable, Operation
from cni_calico.nodeagent.policing.feed.changes import Refusal
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from tests.unit.nodeagent.policing.host import POLICY, Host, policed


def test_standing_rules_that_failed_are_tried_when_they_are_wanted_again(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kernel.broken = False
    host.kernel.refuse = lambda operation: ENOMEM if isinstance(operation, AddTable) else 0
    rounds = host.rounds()
    rounds.once()
    assert host.told[-1].problems
    host.kernel.refuse = lambda operation: 0
    wanted = rounds._felix
    rounds.configure(replace(wanted, standing_rules="Disabled"))
    rounds.once()
    rounds.configure(wanted)
    rounds.once()
    assert rounds.guard.stands and not host.told[-1].problems


def test_which_tunnels_are_guarded(tmp_path: Path) -> None:
    """Without a policy, and whether or not the kernel takes the rule; the node is ready in any case."""
    for refused, guarded in ((False, {"vxlan.calico", "tunl0"}), (True, set())):
        host = Host(tmp_path)
        host.kernel.broken = False
        if refused:
            host.kernel.refuse = lambda o: EPERM if isinstance(o, AddRules) and o.chain == "tunnels" else 0
        rounds = host.rounds()
        rounds.use_tunnels(Tunnels(frozenset((4,)), True, frozenset()))
        rounds.once()
        said = host.told[-1]
        assert said.guarded == guarded and said.ready and not said.in_force
        assert any("guard tunnels" in text for text in said.problems) is refused
        assert bool(said.unguardable) is refused


def test_standing_rules_that_fail_are_tried_less_and_less_often(tmp_path: Path) -> None:
    """Where no policy is enforced; other tunnels are tried at once."""
    host = Host(tmp_path)
    host.kernel.broken = False
    tries: list[float] = []

    def refuse(operation: Operation) -> int:
        if isinstance(operation, AddTable):
            tries.append(host.time)
            return ENOMEM
        return 0

    host.kernel.refuse = refuse
    rounds = host.rounds()
    for _ in range(200):
        rounds.once()
        host.time += 1
    when = sorted(set(tries))
    assert 7 <= len(when) <= 12 and when[-1] - when[-2] == 30
    rounds.use_tunnels(Tunnels(frozenset((4,))))
    rounds.once()
    assert tries[-1] == host.time and host.told[-1].problems
    host.kernel.refuse = lambda operation: 0
    host.time += 31
    rounds.once()
    assert not host.told[-1].problems and rounds.guard.stands and rounds.pause().seconds > 60


def test_before_every_listing_has_been_read(tmp_path: Path) -> None:
    """A listing may be refused for ever: what needs none of them stands, and tunnels come up with it."""
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.use_tunnels(Tunnels(frozenset((4,))))
    rounds.wait_for("")
    assert host.told[-1].guarded == {"vxlan.calico"} and host.told[-1].warnings and not host.told[-1].decided
    early = set(host.kernel.tables[FILTER[4]].chains)
    assert early == {"tunnels", "loopback-in", "loopback-out", "from-encapsulated", "to-host-encapsulated"}
    rounds.use_tunnels(Tunnels(frozenset((4,)), True))
    rounds.wait_for("no right to list")
    said = host.told[-1]
    assert said.guarded == {"vxlan.calico", "tunl0"} and said.decided and said.failing == "no right to list"
    count = len(host.told)
    rounds.wait_for("no right to list")
    assert len(host.told) == count
    rounds.once()
    chains = set(host.kernel.tables[FILTER[4]].chains)
    assert chains == early - {"loopback-in"} | {"spoofing"} and not host.told[-1].warnings


def test_policies_in_force_stay_while_a_listing_is_read_that_a_new_rule_needs(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.use_tunnels(Tunnels(vxlan=frozenset({4})))
    rounds.wait_for("")
    rounds.receive({POLICY: Refusal("no")})
    rounds.calculate()
    rounds.once()
    assert policed(host) and host.told[-1].in_force
    rounds.use_tunnels(Tunnels(vxlan=frozenset({4, 6})))  # a node joined
    rounds.wait_for("")
    assert policed(host) and host.told[-1].in_force and not host.told[-1].warnings


def test_rules_of_an_earlier_run_stay_until_everything_has_been_read(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kernel.broken = False
    first = host.rounds()
    first.receive({POLICY: Refusal("no")})
    first.once()
    assert policed(host)
    first.stop()
    before = deepcopy(host.kernel.tables)
    again = host.rounds()
    again.use_tunnels(Tunnels(frozenset((4,))))
    again.wait_for("")
    assert host.kernel.tables == before and not host.told[-1].guarded


def test_a_tunnel_is_not_guarded_by_the_rules_of_another(tmp_path: Path) -> None:
    """The kernel takes the rule for VXLAN, and then not the change that adds the one for IPIP."""
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.use_tunnels(Tunnels(frozenset((4,))))
    rounds.once()
    assert host.told[-1].guarded == {"vxlan.calico"}
    host.kernel.refuse = lambda _: ENOMEM
    rounds.use_tunnels(Tunnels(frozenset((4,)), True))
    rounds.once()
    assert "tunl0" not in host.told[-1].guarded


def test_for_which_ports_tunnels_are_guarded(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.use_tunnels(Tunnels(frozenset((4,)), other_ports=frozenset((4790,))))
    rounds.once()
    assert host.told[-1].vxlan_ports == {4789, 4790} and host.told[-1].guarded == {"vxlan.calico"}
