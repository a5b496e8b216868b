"""Which interface has which address: when it is read, and what counts while it cannot be."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.model.host import HostInterface
from cni_calico.nodeagent.policing.feed import addresses
from cni_calico.nodeagent.policing.feed.addresses import HostAddresses
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.unit.policy.cluster import NODE, document, graph_of, put

FIRST, SECOND = ip_address("192.0.2.1"), ip_address("192.0.2.2")


@dataclass
class Addressed:
    """A host with a host endpoint; ``address`` is that of eth0, None: the interfaces cannot be read."""

    address: object = FIRST
    reads: int = 0
    watched: int = 0
    goal: Goal = field(default_factory=lambda: Goal(FilterSettings()))

    def __post_init__(self) -> None:
        self.addresses = HostAddresses(self.watch)

    def watch(self) -> None:
        self.watched += 1

    def read(self, deadline: object) -> tuple[HostInterface, ...]:
        self.reads += 1
        if self.address is None:
            raise KernelError("cannot read the interfaces: scripted")
        return (HostInterface(2, "eth0", True, 1500, (ip_interface(f"{self.address}/24"),)),)

    def put_host(self) -> None:
        graph = graph_of({})
        put(graph, ("HostEndpoint", "", "h"), document({"node": NODE, "interfaceName": "eth0"}, {}))
        self.goal.update(graph.flush().changes)

    def read_after(self, happened: Happened) -> bool:
        """Whether the interfaces are read after this."""
        before = self.reads
        self.addresses.notice(happened, ("cali",))
        self.addresses.read_again(self.goal)
        return self.reads > before


@pytest.fixture
def addressed(monkeypatch: pytest.MonkeyPatch) -> Addressed:
    made = Addressed()
    monkeypatch.setattr(addresses, "read_interfaces", made.read)
    return made


def test_nothing_is_read_without_a_host_endpoint(addressed: Addressed) -> None:
    assert not addressed.read_after(Happened(links=None, addresses=True)) and not addressed.watched
    addressed.put_host()
    assert addressed.read_after(Happened(links={})) and addressed.watched == 1
    assert addressed.addresses.owners == {FIRST: "eth0"}
    assert addressed.goal.hosts.interfaces.by_name


def test_it_is_read_again_only_after_changes_that_are_not_a_workloads(addressed: Addressed) -> None:
    addressed.put_host()
    addressed.read_after(Happened(links=None))
    for happened, is_read in (
        (Happened(links={}), False),
        (Happened(links={"cali1": None}), False),
        (Happened(links={"cali1": None, "eth1": None}), True),
        (Happened(links={}, addresses=True), True),
        (Happened(links=None), True),
        (Happened(links={}), False),
    ):
        assert addressed.read_after(happened) is is_read, happened
    addressed.address = SECOND
    assert addressed.read_after(Happened(links={}, addresses=True))
    assert addressed.addresses.owners == {SECOND: "eth0"}


def test_until_they_have_been_read_once_nothing_goes_on(addressed: Addressed) -> None:
    addressed.put_host()
    addressed.address = None
    for _ in range(2):
        with pytest.raises(KernelError):
            addressed.read_after(Happened(links={}))
    addressed.address = FIRST
    assert addressed.read_after(Happened(links={}))


def test_later_the_last_known_ones_count_and_are_read_again(addressed: Addressed) -> None:
    addressed.put_host()
    addressed.read_after(Happened(links=None))
    addressed.address = None
    assert addressed.read_after(Happened(links={"eth1": None}))
    assert addressed.addresses.owners == {FIRST: "eth0"}
    addressed.address = SECOND
    assert addressed.read_after(Happened(links={})), "in the next round"
    assert addressed.addresses.owners == {SECOND: "eth0"}
