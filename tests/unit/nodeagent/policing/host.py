"""A host whose rounds the tests drive, with a packet filter that fails as they say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.log import SILENT, Log
from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.tables import NftTable, TableId
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import KubernetesFacts
from cni_calico.nodeagent.policing.enforce.filters import KernelSide, OpenFilter
from cni_calico.nodeagent.policing.rounds import Rounds
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.hosts import HostRecord
from cni_calico.policy.records import Labelled
from tests.fakes.memory_store import MemoryStore
from tests.fakes.nftables import FakePacketFilter
from tests.netns.policing.lab import private_settings
from tests.unit.nodeagent.fabric import FELIX

WORKLOAD = ResourceKey("WorkloadEndpoint", "n1-k8s-a-eth0", "default")


POLICY = ResourceKey("GlobalNetworkPolicy", "deny")


@dataclass
class Unreadable(FakePacketFilter):
    reads: int = 0
    broken: bool = True

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        self.reads += 1
        if self.broken:
            raise KernelError("cannot read tables")
        return FakePacketFilter.read_table(self, table, deadline)


class OnKubernetes:
    """A node of Kubernetes that nobody asks anything."""

    def read_facts(self, deadline: Deadline) -> KubernetesFacts:
        raise AssertionError

    def set_network_unavailable(self, unavailable: bool, deadline: Deadline) -> None:
        raise AssertionError


@dataclass
class Host:
    """Without Kubernetes, at a time that is set; its kernel cannot be read."""

    directory: Path
    time: float = 1000.0
    enforcement: str = "Enabled"
    kubernetes: bool = False  # with another datastore
    kernel: Unreadable = field(default_factory=Unreadable)
    told: list[Standing] = field(default_factory=list)

    def rounds(
        self, figures: PolicyFigures | None = None, log: Log = SILENT, watch: Callable[[], None] = lambda: None
    ) -> Rounds:
        context = Context(private_settings(self.directory), MemoryStore(), log, lambda _: True)
        context.kubernetes = OnKubernetes() if self.kubernetes else None
        felix = replace(
            FELIX,
            policy_enforcement=self.enforcement,
            endpoint_status_prefix=str(self.directory),
            nftables_refresh_s=90,
        )
        kernel = KernelSide(OpenFilter(self.kernel), watch_rules=watch)
        return Rounds(context, "n1", felix, kernel, self.told.append, figures, lambda: self.time)


def policed(host: Host) -> bool:
    """Whether policies' chains are in the kernel; standing rules do not count."""
    return any("from-workloads" in table.chains for table in host.kernel.tables.values())


def host_record(node: str, profiles: tuple[str, ...] = (), **labels: str) -> HostRecord:
    return HostRecord(node, "eth0", Labelled(frozenset(labels.items()), profiles))


def status_files(host: Host) -> list[Path]:
    return list((host.directory / "endpoint-status").glob("*"))
