"""Which policies wait when memory is short, and that others do not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from cni_calico.kernel.cgroup import LimitedGroup
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.policing.feed.changes import FedChange, FedRecord, Refusal, Undecoded, Unread
from cni_calico.nodeagent.policing.feed.held import LARGE_BYTES
from cni_calico.nodeagent.policing.feed.limits import MemoryLimits
from cni_calico.nodeagent.policing.feed.memory import MemoryGuard
from cni_calico.nodeagent.policing.feed.sizes import estimate_record
from cni_calico.policy.records import PolicyRecord, parse_policy

MIB = 1 << 20


class Host:
    """100 MiB of a group, of which ``used`` are used; the setting's are unlimited."""

    def __init__(self, path: Path, used: int, limit_mib: int = 100) -> None:
        self.now = 0.0
        self._path = path
        self.use(used)
        (path / "memory.stat").write_text("")
        group = LimitedGroup(str(path), limit_mib * MIB, "memory.current", ())
        self.groups = (group,) if limit_mib else ()
        self.guard = MemoryGuard(MemoryLimits(0, lambda: self.now, lambda: self.groups), lambda: self.now)

    def use(self, mib: int) -> None:
        (self._path / "memory.current").write_text(str(mib * MIB))
        self.now += 1

    def give(self, key: ResourceKey, change: FedChange) -> FedRecord | str:
        """What the graph gets; "nothing" if it gets nothing."""
        return give(self.guard, key, change)


def give(guard: MemoryGuard, key: ResourceKey, change: FedChange) -> FedRecord | str:
    guard.begin()
    for one in guard.admit(key, change):
        assert not isinstance(one, Unread | Undecoded)
        guard.note({key: one})
        return one
    return "nothing"


def key_of(namespace: str, name: str = "p") -> ResourceKey:
    return ResourceKey("NetworkPolicy", name, namespace)


@cache
def policy(namespace: str, rules: int, name: str = "p") -> PolicyRecord:
    """Each rule needs 16 of the packet filter, about 36 KB."""
    side = {"selector": "app == 'a'", "ports": [80, "name"]}
    listed = [{"action": "Allow", "protocol": "TCP", "source": side, "destination": side}] * rules
    key = key_of(namespace, name)
    return parse_policy(key, Resource(key.kind, Metadata(name, namespace), {"types": ["Ingress"], "ingress": listed}))


def is_denied(record: FedRecord | str) -> bool:
    assert isinstance(record, PolicyRecord) and record.wanted.ingress is not None
    return [rule.action for rule in record.wanted.ingress] == ["Deny"]


def test_without_a_limit_everything_is_taken_in(tmp_path: Path) -> None:
    host = Host(tmp_path, 1000, limit_mib=0)
    large = policy("a", 1250)
    assert host.give(key_of("a"), large) is large and not host.guard.problems()
    assert host.guard.judge("NetworkPolicy", {"ingress": [{}] * 100_000}) == (0, True)


def test_a_large_policy_waits_and_is_denied_until_there_is_room(tmp_path: Path) -> None:
    host = Host(tmp_path, 50)
    large = policy("a", 1000)
    assert 30 * MIB < estimate_record(large) < 40 * MIB
    assert is_denied(host.give(key_of("a"), large))
    assert host.guard.waiting() == {"a": 1} and "of namespace a" in host.guard.problems()[0]
    assert host.guard.next_due() is None
    host.use(30)
    assert host.guard.next_due() == key_of("a")
    assert host.guard.next_due() is None  # it has been asked for
    assert host.give(key_of("a"), large) is large and not host.guard.waiting()


def test_what_was_taken_in_counts_before_it_is_measured(tmp_path: Path) -> None:
    host = Host(tmp_path, 20)
    assert host.give(key_of("a"), policy("a", 1000)) == policy("a", 1000)
    host.use(21)
    assert is_denied(host.give(key_of("b"), policy("b", 1000)))
    assert host.give(key_of("a"), None) is None  # removed
    assert host.guard.next_due() == key_of("b")


def test_a_larger_version_waits_and_a_smaller_one_does_not(tmp_path: Path) -> None:
    host = Host(tmp_path, 50)
    assert host.give(key_of("a"), policy("a", 125)) == policy("a", 125)
    assert host.give(key_of("a"), policy("a", 1000)) == "nothing"
    assert "stay in force" in host.guard.problems()[0]
    host.use(99)
    assert host.give(key_of("a"), policy("a", 112)) == policy("a", 112) and not host.guard.waiting()


def test_a_cheap_namespace_has_the_rest(tmp_path: Path) -> None:
    host = Host(tmp_path, 20)
    for number in range(4):
        host.give(key_of("costly", f"p{number}"), policy("costly", 75, f"p{number}"))
    host.use(82)
    assert is_denied(host.give(key_of("costly", "small"), policy("costly", 12, "small")))
    assert host.give(key_of("cheap"), policy("cheap", 12)) == policy("cheap", 12)
    host.use(91)
    assert is_denied(host.give(key_of("cheap", "more"), policy("cheap", 12, "more")))
    assert host.guard.waiting() == {"cheap": 1, "costly": 1}


def test_many_small_policies_of_a_namespace_count_as_large_ones_do(tmp_path: Path) -> None:
    host = Host(tmp_path, 20)
    assert estimate_record(policy("a", 50)) < LARGE_BYTES
    given = [host.give(key_of("a", f"p{i}"), policy("a", 50, f"p{i}")) for i in range(60)]
    denied = sum(map(is_denied, given))
    assert 10 < denied < 40 and not any(map(is_denied, given[:20]))


def test_a_dropped_document_is_asked_for(tmp_path: Path) -> None:
    host = Host(tmp_path, 60)
    needs, is_kept = host.guard.judge("NetworkPolicy", {"ingress": [{"action": "Allow"}] * 2000})
    assert needs > LARGE_BYTES and not is_kept
    stand_in = policy("a", 1)
    assert host.give(key_of("a"), Unread(needs, stand_in)) is stand_in
    assert host.guard.next_due() == key_of("a")
    host.give(key_of("a"), policy("a", 250))
    assert host.give(key_of("a"), Unread(needs, stand_in)) == "nothing"  # a version of it is in force


def test_what_is_in_force_stays_when_a_limit_appears(tmp_path: Path) -> None:
    host = Host(tmp_path, 99)
    groups, host.groups = host.groups, ()
    host.now += 60
    for change in (policy("a", 10), Refusal("garbage", (policy("a", 10),))):
        host.give(key_of("a"), change)
        host.groups = groups
        host.now += 60
        assert host.give(key_of("a"), policy("a", 1000)) == "nothing"
        host.groups = ()
        host.now += 60
        host.give(key_of("a"), None)
    host.groups = groups
    host.now += 60
    assert is_denied(host.give(key_of("a"), policy("a", 1000)))  # it had been removed


def test_what_came_before_a_refusal_is_in_force(tmp_path: Path) -> None:
    host = Host(tmp_path, 50)
    host.give(key_of("a"), Refusal("garbage", (policy("a", 10),)))
    assert host.give(key_of("a"), policy("a", 1000)) == "nothing"
    host.give(key_of("b"), Refusal("garbage", (policy("b", 1000),)))
    assert is_denied(host.give(key_of("b"), policy("b", 1000)))  # only a stand-in was


def test_a_dropped_document_is_asked_for_without_a_limit(tmp_path: Path) -> None:
    """The limit has gone meanwhile."""
    host = Host(tmp_path, 60, limit_mib=0)
    stand_in = policy("a", 1)
    assert host.give(key_of("a"), Unread(MIB, stand_in)) is stand_in
    assert host.guard.next_due() == key_of("a")
    assert host.give(key_of("a"), policy("a", 250)) == policy("a", 250) and not host.guard.waiting()
    refused = host.give(key_of("a"), Refusal("garbage", (Unread(MIB, stand_in),)))
    assert refused == Refusal("garbage")  # a version of it is in force


def test_other_threads_only_read_what_is_used(tmp_path: Path) -> None:
    """What is reserved is the engine's, which changes it meanwhile."""
    host = Host(tmp_path, 20)
    host.groups = ()
    host.now += 60
    assert host.guard.judge("NetworkPolicy", {"ingress": [{}] * 2000})[0]
    host.use(99)
    assert not host.guard.judge("NetworkPolicy", {"ingress": [{}] * 2000})[1]
    host.guard.begin()
    assert host.guard.judge("NetworkPolicy", {"ingress": [{}] * 2000}) == (0, True)


def test_an_unreadable_policy_does_not_wait(tmp_path: Path) -> None:
    host = Host(tmp_path, 79)
    large = policy("a", 1000)
    host.give(key_of("a"), large)
    refused = host.give(key_of("a"), Refusal("garbage", (policy("a", 1, "p"), large)))
    assert isinstance(refused, Refusal) and [is_denied(one) for one in refused.first if isinstance(one, PolicyRecord)]
    assert not host.guard.waiting()


def test_the_settings_limit_counts_the_agents_own_memory() -> None:
    guard = MemoryGuard(MemoryLimits(100, lambda: 0.0, lambda: (), lambda: 70 * MIB), lambda: 0.0)
    large = policy("a", 1000)
    assert is_denied(give(guard, key_of("a"), large))
    assert "FELIX_POLICYMEMORYLIMITMIB, 100 MiB" in guard.problems()[0]


def test_what_waits_is_looked_at_once_a_second() -> None:
    now, reads = 0.0, 0

    def used() -> int:
        nonlocal reads
        reads += 1
        return 99 * MIB

    guard = MemoryGuard(MemoryLimits(100, lambda: now, lambda: (), used), lambda: now)
    for number in range(50):
        give(guard, key_of("a", f"p{number}"), Unread((number + 2) * MIB, policy("a", 1)))
    for _ in range(2):
        reads, now = 0, now + 30
        assert not any(guard.next_due() for _ in range(100))
        assert 0 < reads < 5


def test_one_that_has_no_room_does_not_keep_others_waiting(tmp_path: Path) -> None:
    host = Host(tmp_path, 20)
    host.give(key_of("a"), policy("a", 300))
    host.give(key_of("costly"), policy("costly", 600))
    host.use(82)
    host.give(key_of("costly", "new"), Unread(MIB // 8, policy("costly", 1, "new")))
    host.give(key_of("cheap"), Unread(MIB // 4, policy("cheap", 1)))
    host.give(key_of("b"), Unread(4 * MIB, policy("b", 1)))
    host.give(key_of("a"), Unread(8 * MIB, policy("a", 1)))
    assert {host.guard.next_due(), host.guard.next_due()} == {key_of("cheap"), key_of("a")}
    assert host.guard.next_due() is None
    host.use(20)
    assert host.guard.next_due() == key_of("costly", "new")


def test_caches_are_dropped_only_where_that_gives_room(tmp_path: Path) -> None:
    """To collect garbage holds up everything: what is only reserved is not freed by it; it has 1 % of the time."""
    host, dropped = Host(tmp_path, 10), []

    def forget() -> None:
        dropped.append(host.now)
        host.now += 5  # so long it takes

    host.guard.use(forget)
    host.give(key_of("a"), policy("a", 1250))
    assert is_denied(host.give(key_of("b"), policy("b", 1250)))  # reserved, not used
    assert not dropped
    host.use(79)
    assert is_denied(host.give(key_of("c"), policy("c", 500))) and len(dropped) == 1
    for _ in range(50):
        host.now += 9
        assert is_denied(host.give(key_of("d"), policy("d", 500)))
    assert len(dropped) == 1
    host.now += 51
    assert is_denied(host.give(key_of("e"), policy("e", 500))) and len(dropped) == 2
