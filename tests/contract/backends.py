"""The datastores that the contract suite runs against.

A backend joins by adding a class to ``BACKENDS`` (and its address to ``open_address`` when it can be used by several
processes). ``fresh`` gives an empty store for one test or example; ``Space.open`` one more client of that same store.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path

from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.datastore.interface import Datastore, Document
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.access import API_GROUP, NATIVE_GROUP, KubernetesAccess
from cni_calico.model.keys import BlockKey, HandleKey, Key, ResourceKey
from tests.conftest import LAB_CACHE
from tests.contract import etcd_process
from tests.e2e.kubernetes.cluster import native_cluster, shared_cluster
from tests.fakes.memory_store import MemoryStore


@dataclass
class Space:
    """An empty store. ``address``: for ``open_address`` in another process; "" when there is no such thing."""

    first: Datastore
    address: str = ""
    opened: list[Datastore] = field(default_factory=list)

    def open(self) -> Datastore:
        if not self.address:
            return self.first
        self.opened.append(open_address(self.address))
        return self.opened[-1]


class Backend(ABC):
    """``history``: lists at old revisions; ``verbatim``: documents come back as they were written; ``exact_deletes``:
    a watch from the revision of a delete does not tell of that delete;
    ``processes``: several processes can use it; ``missing``: why it cannot be tested here.
    """

    name = ""
    missing = ""
    history = True
    verbatim = True
    exact_deletes = True
    processes = True

    @abstractmethod
    def fresh(self) -> AbstractContextManager[Space]:
        """An empty datastore."""

    def __init__(self) -> None:
        self.started = ExitStack()  # for the whole run

    def close(self) -> None:
        self.started.close()


class Memory(Backend):
    name = "memory"
    processes = False

    @contextmanager
    def fresh(self) -> Iterator[Space]:
        yield Space(MemoryStore())


class Local(Backend):
    name = "local"

    @contextmanager
    def fresh(self) -> Iterator[Space]:
        directory = tempfile.mkdtemp(prefix="cct-local-")
        address = f"local:{directory}/datastore.db"
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, directory)
            space = Space(open_address(address), address)
            undo.callback(space.first.close)
            undo.callback(lambda: [store.close() for store in space.opened])
            yield space


class Etcd(Backend):
    """One real etcd for the whole run; every test starts by deleting what the one before left."""

    name = "etcd"
    missing = "" if etcd_process.etcd_binary() else "no etcd: run tests/setup/build-go-tools.sh"

    def __init__(self) -> None:
        super().__init__()
        self._server = self.started.enter_context(etcd_process.single())
        self._address = f"etcd:{self._server.urls[0]}"

    @contextmanager
    def fresh(self) -> Iterator[Space]:
        with ExitStack() as undo:
            cleaner = EtcdStore(EtcdConfig(endpoints=(self._server.urls[0],)))
            undo.callback(cleaner.close)
            empty_etcd(cleaner)
            space = Space(open_address(self._address), self._address)
            undo.callback(space.first.close)
            undo.callback(lambda: [store.close() for store in space.opened])
            yield space


def empty_etcd(store: EtcdStore) -> None:
    delete = pb.DeleteRangeRequest(key=b"/calico/", range_end=b"/calico0")
    request = pb.TxnRequest(success=[pb.RequestOp(request_delete_range=delete)])
    store._cluster.write("Txn", request, "empty etcd", Deadline.after(10))
    store.round_trips.reads = store.round_trips.writes = 0


class Kubernetes(Backend):
    """One real API server for the whole run, emptied for every test; documents' metadata is the server's own."""

    name = "kubernetes"
    group = API_GROUP
    start = staticmethod(shared_cluster)
    history = False
    verbatim = False
    exact_deletes = False
    missing = (
        "" if (LAB_CACHE / "bin" / "kube-apiserver").is_file() else "kubernetes: tests/setup/kubernetes.sh builds it"
    )

    def __init__(self) -> None:
        super().__init__()
        self._cluster = self.start()
        self._cluster.ensure_namespace("space")

    @contextmanager
    def fresh(self) -> Iterator[Space]:
        address = f"kubernetes:{self._cluster.url} {self._cluster.ca} {self.group}"
        with ExitStack() as undo:
            self._cluster.empty(f"/apis/{self.group}")
            space = Space(open_address(address), address)
            undo.callback(space.first.close)
            undo.callback(lambda: [store.close() for store in space.opened])
            yield space


class Native(Kubernetes):
    """The same with the records in the other API group, at a server of its own."""

    name = "native"
    group = NATIVE_GROUP
    start = staticmethod(native_cluster)


BACKENDS: dict[str, type[Backend]] = {made.name: made for made in (Memory, Local, Etcd, Kubernetes, Native)}


def open_address(address: str) -> Datastore:
    """A client of the store that ``Space.address`` names."""
    kind, _, rest = address.partition(":")
    if kind == "local":
        return LocalStore(rest, poll_s=0.005)
    if kind == "etcd":
        return EtcdStore(EtcdConfig(endpoints=(rest,)))
    if kind == "kubernetes":
        url, ca, group = rest.split(" ")
        return KubernetesStore(
            KubernetesAccess(api_root=url, token="admin-token", certificate_authority=ca, api_group=group)
        )
    raise ValueError(address)


# -- documents every backend can store, told apart by a number ---------------------------------------------------------

BLOCK = ip_network("10.65.0.0/26")
KEYS: tuple[Key, ...] = (
    HandleKey("net.one"),
    HandleKey("net.two"),
    HandleKey("net.three"),
    BlockKey(BLOCK),
    BlockKey(ip_network("fd00:65::40/122")),
    ResourceKey("GlobalNetworkSet", "first"),
    ResourceKey("GlobalNetworkSet", "second"),
    ResourceKey("NetworkSet", "third", "space"),
)


def document(key: Key, n: int) -> Document:
    if isinstance(key, HandleKey):
        return {"block": {str(BLOCK): n}, "deleted": False}
    if isinstance(key, BlockKey):
        return {
            "cidr": str(key.cidr),
            "affinity": "host:node-1",
            "allocations": [None] * key.cidr.num_addresses,
            "unallocated": list(range(key.cidr.num_addresses)),
            "attributes": [],
            "sequenceNumber": n,
            "sequenceNumberForAllocation": {},
            "deleted": False,
        }
    assert isinstance(key, ResourceKey)
    name = {"name": key.name, "namespace": key.namespace} if key.namespace else {"name": key.name}
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": key.kind,
        "metadata": name,
        "spec": {"nets": [f"10.{n // 256 % 256}.{n % 256}.0/24"]},
    }


def number(key: Key, value: Document) -> int:
    if isinstance(key, HandleKey):
        return int(value["block"][str(BLOCK)])
    if isinstance(key, BlockKey):
        return int(value["sequenceNumber"])
    _, high, low, _ = value["spec"]["nets"][0].split(".")
    return int(high) * 256 + int(low)


def scratch_file(space: Space) -> Path:
    """The file of an embedded store."""
    return Path(space.address.removeprefix("local:"))
