"""Rounds that fail: what waits for them, what does not, and when they are tried again."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.model.netfilter import NftTable, TableId
from cni_calico.nodeagent.context.context import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.policing.feed import Refusal
from cni_calico.nodeagent.policing.rounds import RETRY_FIRST_S, Rounds
from cni_calico.nodeagent.status.policing import Standing
from tests.fakes.memory_store import MemoryStore
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.fabric import FELIX

POLICY = ResourceKey("GlobalNetworkPolicy", "deny")


@dataclass
class Unreadable(FakePacketFilter):
    reads: int = 0
    broken: bool = True

    def read_table(self, table: TableId, deadline: Deadline) -> NftTable | None:
        self.reads += 1
        if self.broken:
            raise KernelError("cannot read tables")
        return FakePacketFilter.read_table(self, table, deadline)


@dataclass
class Host:
    """Without Kubernetes, at a time that is set; its kernel cannot be read."""

    directory: Path
    time: float = 1000.0
    enforcement: str = "Enabled"
    kernel: Unreadable = field(default_factory=Unreadable)
    told: list[Standing] = field(default_factory=list)

    def rounds(self) -> Rounds:
        context = Context(parse_settings({}), MemoryStore(), SILENT, lambda _: True)
        felix = replace(
            FELIX,
            policy_enforcement=self.enforcement,
            endpoint_status_prefix=str(self.directory),
            nftables_refresh_s=90,
        )
        return Rounds(context, "n1", felix, self.kernel, None, self.told.append, now=lambda: self.time)


def test_what_upstream_left_may_go_where_nothing_is_policed_though_the_kernel_cannot_be_read(tmp_path: Path) -> None:
    for enforcement in ("Enabled", "Disabled"):  # without a policy
        host = Host(tmp_path, enforcement=enforcement)
        host.rounds().once()
        assert host.told[-1].upstream_goes and host.told[-1].failing and not host.told[-1].ready


def test_a_policy_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    host = Host(tmp_path)
    rounds = host.rounds()
    rounds.take({POLICY: Refusal("no")})
    rounds.once()
    assert not host.told[-1].upstream_goes
    host.kernel.broken = False
    rounds.once()
    assert host.told[-1].in_force and host.kernel.tables
    rounds.take({POLICY: None})
    rounds.once()
    assert not host.told[-1].in_force and not host.kernel.tables
    rounds.take({POLICY: Refusal("no")})
    rounds.once()
    assert host.told[-1].in_force and host.kernel.tables


def test_a_failure_is_waited_after(tmp_path: Path) -> None:
    host = Host(tmp_path)
    rounds = host.rounds()
    rounds.take({POLICY: Refusal("no")})
    assert not rounds.waits_to_retry and rounds.patience_s() == 0
    rounds.once()
    assert rounds.waits_to_retry and rounds.patience_s() > RETRY_FIRST_S / 2
    host.time += 2 * RETRY_FIRST_S
    assert not rounds.waits_to_retry
    host.kernel.broken = False
    rounds.once()
    assert not rounds.waits_to_retry and round(rounds.patience_s()) == 90


def test_what_is_not_read_yet_keeps_nothing_back(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.take({POLICY: Refusal("no")})
    rounds.once((), "EndpointSlice not read yet")
    assert host.told[-1].in_force and host.told[-1].failing == "EndpointSlice not read yet"
    assert not rounds.waits_to_retry
    rounds.once()
    assert host.told[-1].failing == ""
