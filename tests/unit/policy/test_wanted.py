"""A change laid over what was wanted gives what is wanted."""

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.wanted import Members, PolicyId, SetChange, Wanted, WantedChanges, WantedEndpoint, WantedPolicy

OLD, NEW = b"\x0a\x00\x00\x01", b"\x0a\x00\x00\x02"
NET = (b"\x0a\x01\x00\x00", 16)
POLICY = WantedPolicy(PolicyId("GlobalNetworkPolicy", "p"), "default", (), None)
ENDPOINT = WantedEndpoint(ResourceKey("WorkloadEndpoint", "e", "ns"), "calia", "c", (OLD,))


def test_changes_are_laid_over() -> None:
    before = Wanted(
        {"s-kept": Members(frozenset((OLD,)), frozenset((NET,))), "s-gone": Members()},
        {POLICY.id: POLICY},
        {},
        {ENDPOINT.key: ENDPOINT},
    )
    changes = WantedChanges(
        {"p-made": Members(ports=frozenset(((OLD, 6, 80),)))},
        {"s-kept": SetChange(Members(frozenset((NEW,))), Members(frozenset((OLD,))))},
        frozenset(("s-gone",)),
        {POLICY.id: None},
        {},
        {},
    )
    after = before.with_changes(changes)
    assert after.sets == {
        "s-kept": Members(frozenset((NEW,)), frozenset((NET,))),
        "p-made": Members(ports=frozenset(((OLD, 6, 80),))),
    }
    assert after.policies == {}
    assert after.endpoints == before.endpoints
    assert set(before.sets) == {"s-kept", "s-gone"}  # the value before is as it was


def test_no_change_is_false() -> None:
    assert not WantedChanges()
    assert not Members()
    assert WantedChanges(sets_removed=frozenset(("s-a",)))
