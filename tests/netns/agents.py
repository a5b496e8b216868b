"""Agents running in namespaces as processes of their own, and nodes to run them on."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni_calico import faults
from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import BlockKey, Key, ResourceKey
from cni_calico.model.resources import Attribute, Block, Record
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.dataplane.loop import DataplaneLoop
from cni_calico.nodeagent.status.file import read_status
from cni_calico.nodeagent.status.numbers import Numbers
from cni_calico.nodeagent.status.policing import Standing
from tests.deadlines import until
from tests.e2e.forks import Forks
from tests.netns.namespaces import Namespace


@dataclass
class Store:
    """The datastore of a lab, as an administrator writes to it."""

    path: Path

    def environ(self) -> dict[str, str]:
        """As calico-node is told of it."""
        return {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(self.path)}

    def conf(self) -> dict[str, str]:
        """As the CNI plugin is told of it."""
        return {"datastore_type": "local", "datastore_path": str(self.path)}

    def write(self, *writes: Write) -> None:
        store = LocalStore(str(self.path))
        store.commit(writes, Deadline.after(10))
        store.close()

    def put(self, *records: Record) -> None:
        """API resources by their own names."""
        self.write(*(Write.put(key_of(record), encode(record)) for record in records))

    def put_block(self, cidr: str, node: str, *holders: str) -> None:
        """A block of a node; its first addresses held by these nodes, in order."""
        from ipaddress import ip_network

        network = ip_network(cidr)
        count = network.num_addresses
        attributes = tuple(Attribute(f"net.{i}", {"node": holder}) for i, holder in enumerate(holders))
        allocations = (*range(len(holders)), *[None] * (count - len(holders)))
        block = Block(network, f"host:{node}", allocations, tuple(range(len(holders), count)), attributes)
        self.write(Write.put(BlockKey(network), encode(block)))

    def remove(self, key: Key) -> None:
        self.write(Write.remove(key))


class EtcdStore(Store):
    """The same on an etcd that is reached from the namespace ``forks`` is in."""

    def __init__(self, url: str, forks: Forks, **files: str) -> None:
        """``files``: a DatastoreConfig's fields for certificates."""
        super().__init__(Path("/nonexistent"))
        self.url = url
        self._forks, self._files = forks, files

    def environ(self) -> dict[str, str]:
        return {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": self.url}

    def conf(self) -> dict[str, str]:
        return {"datastore_type": "etcdv3", "etcd_endpoints": self.url}

    def write(self, *writes: Write) -> None:
        config = DatastoreConfig("etcdv3", etcd_endpoints=(self.url,), **self._files)
        self._forks.call(_commit, config, writes)


def _commit(config: DatastoreConfig, writes: tuple[Write, ...]) -> None:
    store = open_datastore(config)
    store.commit(writes, Deadline.after(10))
    store.close()


def key_of(record: Any) -> ResourceKey:
    kinds = {"IPPool": "IPPool", "Node": "Node", "WorkloadEndpoint": "WorkloadEndpoint"}
    kind = kinds.get(type(record).__name__) or record.kind
    return ResourceKey(kind, record.metadata.name, record.metadata.namespace)


@dataclass
class Running:
    """An agent's process."""

    ns: Namespace
    store: Store
    node: str
    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    pid: int = 0
    policing: Standing | None = None  # what the policy engine says all the time; None: that there is none
    policies: int = 0  # of how many it knows

    def start(self) -> Running:
        for name in ("run", "lib", "log"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        environ = {
            "CALICO_RUN_DIR": f"{self.root}/run",
            "FELIX_ENDPOINTSTATUSPATHPREFIX": f"{self.root}/run",
            "CALICO_STATE_DIR": f"{self.root}/lib",
            "CALICO_LOG_DIR": f"{self.root}/log",
            **self.environ,
        }
        self.pid = os.fork()
        if self.pid == 0:
            said = self.policing, self.policies
            _run(self.ns, str(self.store.path), self.node, environ, f"{self.root}/agent.log", said)
        return self

    def status(self) -> dict[str, Any]:
        return read_status(f"{self.root}/run")

    def until_synced(self) -> Running:
        until(
            lambda: self.status().get("pid") == self.pid and self.status().get("synced"), "the agent's first pass", 20
        )
        return self

    def stop(self, with_signal: int = signal.SIGTERM) -> int:
        """Its exit status, or minus the signal that ended it."""
        if not self.pid:
            return 0
        os.kill(self.pid, with_signal)
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)

    def has_ended(self) -> bool:
        """Whether it has ended by itself."""
        pid, _ = os.waitpid(self.pid, os.WNOHANG)
        if pid:
            self.pid = 0
        return bool(pid)

    def log(self) -> str:
        return (self.root / "agent.log").read_text()


def _run(
    ns: Namespace, store: str, node: str, environ: Mapping[str, str], log_file: str, engine: tuple[Standing | None, int]
) -> None:
    """Never returns."""
    code = 99
    policing, policies = engine
    try:
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        signal.alarm(300)
        netns.enter(os.open(ns.path, os.O_RDONLY))
        log = Log("debug", log_file, stderr=False)
        faults.install_from_environment(dict(environ))
        context = Context(parse_settings(environ), LocalStore(store), log, wait=lambda _: True)
        said: dict[str, Any] = {"policies": lambda: policies}
        if policing is not None:
            said["policing"] = lambda: policing
        DataplaneLoop(context, node, environ, Numbers(), **said).run(stopping)
        code = 0
    except BaseException:
        with open(log_file, "a") as file:
            traceback.print_exc(file=file)
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


@contextmanager
def running(ns: Namespace, store: Store, node: str, root: Path, **environ: str) -> Iterator[Running]:
    """An agent that has done its first pass; ended with the test."""
    agent = Running(ns, store, node, root, environ)
    try:
        yield agent.start().until_synced()
    finally:
        agent.stop(signal.SIGKILL)
