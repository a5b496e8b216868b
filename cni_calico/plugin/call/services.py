"""What a call needs from the process that serves it: datastores, their allocators, the caller's files, a log."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any, Protocol, TypeVar

from cni_calico.cni.netconf import NetConf
from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore, Document, Versioned
from cni_calico.datastore.kubernetes.objects import KubernetesObjects
from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_SOCKET, run_dir, state_dir
from cni_calico.errors import AttachmentBusy, KernelError, TeardownIncomplete
from cni_calico.ipam.allocator import Allocator
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT, Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import Key
from cni_calico.shortage import shortage_of

ActResult = TypeVar("ActResult")

IPAM_LOCK_S = 1.0  # a DEL that waited until its deadline would fail for no reason
STUCK_LOCK_S = 3.0  # a stuck server that holds the lock will hardly release it now
BESIDE_MAX = 1024 * 1024  # bytes; the socket of a server that will not come back also stays there


class CallDatastore(Protocol):
    """The datastore of a call's configuration, as the serving process sees it. ``from_memory``: ``store`` may not yet
    know what another process has just written. Methods that open the datastore raise InvalidConfig, DatastoreError.
    """

    config: DatastoreConfig
    from_memory: bool

    @property
    def store(self) -> Datastore:
        """The datastore that a call reads and writes, with any cache in front of it."""

    @property
    def fresh_store(self) -> Datastore:
        """The datastore itself, bypassing anything remembered."""

    @property
    def allocator(self) -> Allocator: ...

    @property
    def kubernetes(self) -> KubernetesObjects:
        """Pods, namespaces and nodes of the Kubernetes that the configuration names."""

    def read(self, key: Key, deadline: Deadline) -> Document | None:
        """A record that a call reads but does not write; from the cache if there is one."""

    def remember(self, stored: Versioned) -> None:
        """Note a record that was written without going through ``store``."""

    def before_addresses(self, node: str, deadline: Deadline) -> None:
        """Called before an ADD takes addresses: repairs records of older versions, once per boot.

        Raises DatastoreError, DeadlineExceeded, TryAgain.
        """

    def was_deleted(self, label: str) -> bool:
        """Whether an attachment was released a moment ago and not added again: runtimes repeat their DELs."""

    def note_deleted(self, label: str) -> None:
        """Note that an attachment has been released."""

    def note_added(self, label: str) -> None:
        """Note that an attachment is about to be added."""


class OwnDatastore:
    """The datastore of a one-shot process, which has no cache."""

    from_memory = False

    def __init__(
        self, config: DatastoreConfig, services: Services, open_store: Callable[[DatastoreConfig], Datastore]
    ) -> None:
        self.config = config
        self._services = services
        self._open = open_store
        self._store: Datastore | None = None
        self._kubernetes: KubernetesObjects | None = None  # opened here if the datastore is not Kubernetes

    @property
    def store(self) -> Datastore:
        if self._store is None:
            self._store = self._open(self.config)
        return self._store

    @property
    def fresh_store(self) -> Datastore:
        return self.store

    @property
    def allocator(self) -> Allocator:
        from cni_calico.ipam.allocator import Allocator

        return Allocator(self.store)

    @property
    def kubernetes(self) -> KubernetesObjects:
        from cni_calico.datastore.kubernetes.api import KubernetesAPI
        from cni_calico.datastore.kubernetes.objects import KubernetesObjects
        from cni_calico.datastore.kubernetes.store import KubernetesStore

        store = self.store if self.config.type == "kubernetes" else None
        if isinstance(store, KubernetesStore):
            return KubernetesObjects(store.api)
        if self._kubernetes is None:
            self._kubernetes = KubernetesObjects(KubernetesAPI(self.config.kubernetes))
        return self._kubernetes

    def read(self, key: Key, deadline: Deadline) -> Document | None:
        found = self.store.get(key, deadline)
        return None if found is None else found.value

    def remember(self, stored: Versioned) -> None:
        """Do nothing: there is no cache."""

    def before_addresses(self, node: str, deadline: Deadline) -> None:
        if self.config.type == "kubernetes":
            from cni_calico.datastore.kubernetes.store import KubernetesStore
            from cni_calico.plugin.call.first_use import label_once

            assert isinstance(self.store, KubernetesStore)
            services = self._services
            label_once(services.files, services.run_dir, services.log, self.store, node, deadline)

    def was_deleted(self, label: str) -> bool:
        return False

    def note_deleted(self, label: str) -> None:
        """Do nothing: there is no cache."""

    def note_added(self, label: str) -> None:
        """Do nothing: there is no cache."""

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
        if self._kubernetes is not None:
            self._kubernetes.api.close()


class Services:
    """The services of a one-shot process. The resident server has a subclass, which uses the datastores and records
    that the server keeps between calls.
    """

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        *,
        files: Files | None = None,
        open_store: Callable[[DatastoreConfig], Datastore] = open_datastore,
    ) -> None:
        environ = environ or {}
        self.files = files or Files()
        self.log: Log = SILENT
        self.stderr = True
        self.host: Any = None  # a worker's plugin.network.host.Host; None: each step opens its own
        # carries out a LinkRemoval together with those of other calls
        self.remove_link: Callable[[Any, Deadline], None] | None = None
        self.run_dir = run_dir(environ)
        self.state_dir = state_dir(environ)
        self.timeout_s = inf  # the limit for a whole call, if it must be shorter than usual
        self.server_is_stuck = False  # whether a server took the call first and did not answer in time
        self._open_store = open_store
        self._datastores: dict[DatastoreConfig, OwnDatastore] = {}

    def datastore(self, config: DatastoreConfig) -> CallDatastore:
        """The datastore of a configuration, opened at its first use."""
        found = self._datastores.get(config)
        if found is None:
            found = self._datastores[config] = OwnDatastore(config, self, self._open_store)
        return found

    def begin(self, conf: NetConf, deadline: Deadline) -> None:
        """Called with the configuration once it is parsed."""

    def note_failure(self, error: Exception) -> str:
        """Called with the error of every call that fails. Returns what this process, or this host, lacks ("memory"), ""
        if that is not why; the server judges its own state by these errors.
        """
        return shortage_of(error)

    @contextmanager
    def ipam_lock(self, conf: NetConf, deadline: Deadline) -> Iterator[None]:
        """Upstream's host-wide IPAM lock, so that upstream's plugin and this one can run on one node. Without the lock
        requests only slow each other down, so it is not a failure if it cannot be taken in time.
        """
        from cni_calico.kernel.lock import file_lock

        path = conf.ipam_lock_file or f"{self.run_dir}/ipam.lock"
        with ExitStack() as held:
            try:
                self.files.make_directory(os.path.dirname(path), 0o755)
                held.enter_context(file_lock(self.files.path(path), deadline.sooner(IPAM_LOCK_S)))
            except (AttachmentBusy, KernelError, OSError) as e:
                self.log.warning(f"continuing without the host-wide IPAM lock: {e}")
            yield

    @contextmanager
    def attachment_lock(self, label: str, deadline: Deadline, shown: str = "") -> Iterator[None]:
        """The lock that lets only one process at a time work on an attachment, which errors call ``shown``.

        Raises AttachmentBusy.
        """
        from cni_calico.kernel.lock import attachment_lock

        if self.server_is_stuck:
            deadline = deadline.sooner(STUCK_LOCK_S)
        with attachment_lock(self.files.path(f"{self.run_dir}/cni-locks"), label, deadline, shown):
            self.meet_others()
            try:
                yield
            finally:
                self.meet_others()

    def nothing_removed(self, what: str, failure: KernelError) -> TeardownIncomplete:
        """The error of a DEL that cannot take the lock of its attachment."""
        return TeardownIncomplete(
            f"cannot begin to delete {what}: {failure.message}",
            details=f"nothing has been removed: make {self.run_dir} writable (is its disk full, or read-only?), "
            "then repeat the DEL",
        )

    @property
    def beside(self) -> str:
        """The file that grows whenever a process other than the resident server carries out a call."""
        return f"{self.run_dir}/cni-beside"

    def meet_others(self) -> None:
        """Called after an attachment's lock has been taken and before it is released: tells a resident server that what
        it remembers may be out of date.
        """
        if not self.files.exists(f"{self.run_dir}/{CNI_SOCKET}"):
            return
        try:
            if self.files.append(self.beside, b".") >= BESIDE_MAX:
                self.files.remove(self.beside)  # start again: a different file counts as a change too
        except OSError as e:
            self.log.warning(f"cannot notify the resident server of this call: {e}")

    @contextmanager
    def meanwhile(self, act: Callable[[], ActResult]) -> Iterator[Callable[[], ActResult]]:
        """Carry out ``act`` while the body runs; the function this yields then returns its outcome or raises its error.

        Here ``act`` is carried out after the body, and not at all if the body fails: a thread costs more than it saves.
        """
        outcomes: list[ActResult] = []
        yield outcomes.pop
        outcomes.append(act())

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], bool]]:
        """While a call only waits for what another program does. Yields whether this process can wait no longer.

        Raises Declined if it may not wait at all: the caller then does so itself.
        """
        yield bool

    @contextmanager
    def making_links(self) -> Iterator[None]:
        """While a call sets up its interfaces."""
        yield

    def require_caller(self) -> None:
        """Raises TryAgain if nobody waits for the answer any more: what the call did now would have no owner."""

    def open_netns(self, path: str) -> int:
        """A descriptor of the network namespace that the call names; the caller closes it. Raises NetnsGone."""
        from cni_calico.kernel.netns import open_netns

        return open_netns(self.files.path(path))

    def was_synced(self) -> bool:
        """Whether the datastore has been reached since this node started (the directory is emptied at boot)."""
        return self.files.exists(f"{self.run_dir}/cni-synced")

    def mark_synced(self) -> None:
        if not self.was_synced():
            # a directory: made in one step, so a process that dies leaves nothing half-made
            self.files.make_directory(f"{self.run_dir}/cni-synced", 0o755)

    def new_uid(self) -> str:
        """A random UUID (RFC 4122, version 4)."""
        raw = bytearray(os.urandom(16))
        raw[6], raw[8] = raw[6] & 0x0F | 0x40, raw[8] & 0x3F | 0x80
        text = raw.hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"

    def random_bytes(self, count: int) -> bytes:
        return os.urandom(count)

    def close(self) -> None:
        """Close everything that was opened; do not use the object afterwards."""
        while self._datastores:
            self._datastores.popitem()[1].close()
