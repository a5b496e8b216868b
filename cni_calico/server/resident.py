"""What the resident server keeps between calls (datastores with their caches and allocators, one netlink socket per
worker), and the services of a call based on it.

Rule: a path in a request means the caller's; a call that this process cannot serve exactly as the caller would is
declined.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from cni_calico.batching import Batcher
from cni_calico.cni.netconf import NetConf
from cni_calico.daemon.exposition import Exposition
from cni_calico.daemon.threads import SideThreads
from cni_calico.datastore.connect import reader
from cni_calico.datastore.interface import Datastore, Document, Versioned
from cni_calico.datastore.kubernetes.login import runs_program
from cni_calico.datastore.kubernetes.objects import KubernetesObjects
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, NodeNotSetUp, TryAgain
from cni_calico.ipam.allocator import Allocator
from cni_calico.kernel.files import Files
from cni_calico.kernel.netns import require_netns
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import CLUSTER, Key
from cni_calico.plugin.call import protocol
from cni_calico.plugin.call.node_name import read_nodename
from cni_calico.plugin.call.serve import CALL_TIMEOUT_S, Declined
from cni_calico.plugin.call.services import ActResult, Services
from cni_calico.plugin.network.host import Host
from cni_calico.plugin.network.teardown import LinkRemoval, remove_links_together
from cni_calico.server import descriptors
from cni_calico.server.backends import Backend, BackendKey, Backends
from cni_calico.server.connections import CallRequest
from cni_calico.server.exhaustion import Exhaustion
from cni_calico.server.metrics import CniMetrics, add_backends, count_sizes
from cni_calico.server.policy_waits import TOO_MANY_WAIT, PolicyWaits
from cni_calico.server.turns import LinkTurn
from cni_calico.shortage import shortage_of

LINKS_AT_ONCE = 64
DESCRIPTORS_LEFT = 24  # what a call needs while it runs, and some more for others that are running
WAITING_SHARE = 0.75  # of the workers, at most, wait for a policy: DELs need the others
PLACES_KEPT = 64  # roots and run directories of callers: a host has few, but mount namespaces come and go


class _Worker(threading.local):
    """What one of the server's threads keeps between calls."""

    host: Host | None = None


class Resident:
    """Owns everything that outlives a call."""

    def __init__(
        self, log: Log, metrics: CniMetrics, exhaustion: Exhaustion | None = None, calls_at_once: int = 32
    ) -> None:
        self.log = log
        self.metrics = metrics
        self.exhaustion = exhaustion or Exhaustion()
        self.backends = Backends(log)
        self._beside: dict[object, tuple[int, int] | None] = {}  # ordered by when they were last checked, oldest first
        self._meeting = threading.Lock()
        self._worker = _Worker()
        self._own_root = _identity("/", "/proc/self/ns/mnt")
        self.links: Batcher[LinkRemoval, None] = Batcher(self._remove_links, limit=LINKS_AT_ONCE)
        self.turn = LinkTurn()
        self.waits = PolicyWaits(max(1, int(calls_at_once * WAITING_SHARE)))
        descriptors.raise_limit()
        self.meanwhile = SideThreads(calls_at_once, "cni-meanwhile")

    @contextmanager
    def services(self, request: CallRequest) -> Iterator[Services]:
        """The services of one call, on the calling worker's thread."""
        services = ResidentServices(self, request, self._host())
        try:
            yield services
        finally:
            services.leave()

    def _host(self) -> Host:
        host = self._worker.host
        if host is None:
            host = self._worker.host = Host()
        return host

    def require_descriptors(self) -> None:
        """Raises Declined if few are left: a call would fail in the middle of its work without them."""
        for _ in range(2):
            if descriptors.are_left(DESCRIPTORS_LEFT):
                return
            self.backends.close_idle(all_of_them=True)
        raise Declined("the server is short of file descriptors")

    def end_worker(self) -> None:
        """Called by a worker when it ends."""
        host, self._worker.host = self._worker.host, None
        if host is not None:
            host.close()

    def files_of(self, request: CallRequest) -> Files:
        """The caller's files: this process's own if the caller has the same root and mounts."""
        root, mounts = request.descriptors.get(protocol.ROOT), request.descriptors.get(protocol.MOUNTS)
        if root is None or mounts is None or _identity(root, mounts) == self._own_root:
            return Files()
        return Files(root)

    def root_of(self, request: CallRequest) -> tuple[int, int, int]:
        root, mounts = request.descriptors.get(protocol.ROOT), request.descriptors.get(protocol.MOUNTS)
        return self._own_root if root is None or mounts is None else _identity(root, mounts)

    def forget_after(self, beside: str, key: object) -> None:
        """Forget what other processes may have changed, if the file ``beside`` shows that one has worked since ``key``
        was last checked.
        """
        try:
            found = os.stat(beside)
        except OSError:
            mark = None
        else:
            mark = (found.st_ino, found.st_size)
        with self._meeting:  # no call continues before everything is forgotten
            same = key in self._beside and self._beside.pop(key) == mark
            self._beside[key] = mark
            if same:
                return
            if len(self._beside) > PLACES_KEPT:
                del self._beside[
                    next(iter(self._beside))
                ]  # at the next check for this place, everything is forgotten once
            for backend in self.backends.open_now():
                backend.endpoints.forget()
                backend.deleted.clear()

    def _remove_links(self, removals: Sequence[LinkRemoval]) -> Sequence[BaseException | None]:
        try:
            remove_links_together(self._host(), list(dict.fromkeys(removals)), Deadline.after(30))
        except CalicoError as e:
            if len(removals) == 1:
                return [e]
            return [_alone(self._host(), removal) for removal in removals]
        return [None] * len(removals)

    def add_metrics(self, page: Exposition) -> None:
        """Add the metrics that metrics.py does not count itself."""
        add_backends(page, self.backends.open_now(), self.backends.closed)
        meaning = "Requests to the kernel for interfaces, by how many shared one."
        count_sizes(page, "calico_cni_link_batches_total", meaning, self.links.sizes)
        page.gauge("calico_cni_links_waiting", "Interfaces that wait for the request under way.", self.links.waiting)

    def close(self) -> None:
        self.meanwhile.close()
        self.backends.close()


class BackendDatastore:
    """One of the server's open datastores during one call, with the server's caches of it."""

    from_memory = True

    def __init__(self, config: DatastoreConfig, services: ResidentServices) -> None:
        self.config = config
        self._services = services
        self._backend: Backend | None = None

    @property
    def backend(self) -> Backend:
        if self._backend is None:
            self._backend = self._services.use_backend(self.config)
        return self._backend

    def leave(self) -> None:
        if self._backend is not None:
            self._services.leave_backend(self._backend)

    @property
    def store(self) -> Datastore:
        """For an ADD, a datastore that skips some reads: creating the record shows by a conflict whether it existed."""
        return self.backend.door(adding=self._services.is_adding)

    @property
    def fresh_store(self) -> Datastore:
        return self.backend.grouped

    @property
    def allocator(self) -> Allocator:
        return self.backend.allocator

    @property
    def kubernetes(self) -> KubernetesObjects:
        return self.backend.kubernetes()

    def read(self, key: Key, deadline: Deadline) -> Document | None:
        if key == CLUSTER:
            known, document = self.backend.caches.cluster_information()
            if known and document is not None and document.get("spec", {}).get("datastoreReady"):
                return document  # a call must not be refused because of a condition that may have ended a moment ago
        found = self.store.get(key, deadline)
        return None if found is None else found.value

    def remember(self, stored: Versioned) -> None:
        self.backend.endpoints.learn((stored,))

    def before_addresses(self, node: str, deadline: Deadline) -> None:
        if self.config.type == "kubernetes":
            services = self._services
            self.backend.before_addresses(services.files, services.run_dir, services.log, node, deadline)

    def was_deleted(self, label: str) -> bool:
        return label in self.backend.deleted

    def note_deleted(self, label: str) -> None:
        self.backend.deleted.note(label)

    def note_added(self, label: str) -> None:
        self.backend.deleted.forget(label)


class ResidentServices(Services):
    """Services of one call, using what the server keeps."""

    def __init__(self, resident: Resident, request: CallRequest, host: Host) -> None:
        super().__init__(request.environ, files=resident.files_of(request))
        self._resident = resident
        self._request = request
        self.host = host
        self.stderr = False
        self.remove_link = self._remove_link
        self._node = ""
        self._has_worked = False  # whether an attachment's lock has been held and released
        self._deadline = Deadline.after(CALL_TIMEOUT_S)
        self._in_use: dict[DatastoreConfig, BackendDatastore] = {}

    def datastore(self, config: DatastoreConfig) -> BackendDatastore:
        found = self._in_use.get(config)
        if found is None:
            found = self._in_use[config] = BackendDatastore(config, self)
        return found

    def use_backend(self, config: DatastoreConfig) -> Backend:
        """The backend for a configuration as this call's caller means it; in use until the call is over."""
        key = BackendKey(config, self._node, self._resident.root_of(self._request))
        return self._resident.backends.use(key, self.files, self._deadline)

    def leave_backend(self, backend: Backend) -> None:
        self._resident.backends.leave(backend)

    @property
    def is_adding(self) -> bool:
        return self._request.environ.get("CNI_COMMAND") == "ADD"

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], bool]]:
        with self._resident.waits.one() as must_end:
            yield must_end

    @contextmanager
    def making_links(self) -> Iterator[None]:
        with self._resident.turn.taken():
            yield

    def leave(self) -> None:
        """Called when the call is over."""
        while self._in_use:
            self._in_use.popitem()[1].leave()

    def begin(self, conf: NetConf, deadline: Deadline) -> None:
        """Raises Declined, also if this process is short of what a call needs: nothing has been done yet."""
        self._deadline = deadline
        if self._resident.exhaustion.noted:
            raise Declined("the server was refused memory and is ending")
        if self.is_adding and self._resident.waits.are_too_many:
            raise Declined(TOO_MANY_WAIT)
        require_reach(conf, self.files)
        self._resident.require_descriptors()
        try:
            self._node = read_nodename(conf, self.files, deadline, for_ipam=self._request.executable == "calico-ipam")
        except NodeNotSetUp:
            self._node = ""  # the command reports it, if it matters there
        try:
            _ = self.datastore(conf.datastore).backend  # opened here, while the call can still be declined
        except Exception as e:
            if lacking := shortage_of(e):
                self._resident.backends.close_idle(all_of_them=True)
                raise Declined(f"the server is short of {lacking}") from e
            # the command reports it, if it needs the datastore at all

    def note_failure(self, error: Exception) -> str:
        return self._resident.exhaustion.note(error)

    @contextmanager
    def ipam_lock(self, conf: NetConf, deadline: Deadline) -> Iterator[None]:
        """Do nothing: a lock that is held until the datastore answers would prevent group commits. Compare-and-swap
        protects against one-shot processes.
        """
        yield

    @contextmanager
    def attachment_lock(self, label: str, deadline: Deadline, shown: str = "") -> Iterator[None]:
        """Take the lock, then check that the caller still waits: if not, it or its runtime has gone on, and may already
        have undone what this call is about. Calls have effects only under a lock. Raises Declined if this process lacks
        what the first lock needs.
        """
        with ExitStack() as held:
            try:
                held.enter_context(super().attachment_lock(label, deadline, shown))
            except Exception as e:
                if not self._has_worked and (lacking := shortage_of(e)):
                    raise Declined(f"the server is short of {lacking}") from e
                raise
            self.require_caller()
            try:
                yield
            finally:
                self._has_worked = True

    @contextmanager
    def meanwhile(self, act: Callable[[], ActResult]) -> Iterator[Callable[[], ActResult]]:
        """``act`` runs at the same time as the body and has ended when this context ends, so it runs under the
        attachment's lock.
        """
        begun = self._resident.meanwhile.submit(act)
        try:
            yield begun.result
        finally:
            begun.wait()

    def meet_others(self) -> None:
        key = (self._resident.root_of(self._request), self.beside)
        self._resident.forget_after(self.files.path(self.beside), key)

    def require_caller(self) -> None:
        if self._request.caller_has_gone():
            raise TryAgain(f"cannot serve {self._request.environ.get('CNI_COMMAND')}: its caller has gone")

    def open_netns(self, path: str) -> int:
        given = self._request.descriptors.get(protocol.NETNS)
        if given is None or path != self._request.environ.get("CNI_NETNS"):
            return super().open_netns(path)
        require_netns(given, path)
        return os.dup(given)

    def _remove_link(self, removal: LinkRemoval, deadline: Deadline) -> None:
        self._resident.links.submit(removal, deadline, f"delete interface {removal.name}")


def require_reach(conf: NetConf, files: Files) -> None:
    """Raises Declined if a process with another root or other mounts than its caller's cannot serve this
    configuration.
    """
    if files.root_fd is None:
        return
    if conf.datastore.type == "local" and not _is_same_file(conf.datastore.path, files):
        raise Declined(f"{conf.datastore.path} is not the same file here as for the caller")
    if conf.ipam.type and not conf.ipam.is_calico:
        raise Declined(f"IPAM plugin {conf.ipam.type} must run in its caller's environment")
    kubeconfig = conf.datastore.kubernetes.kubeconfig
    if kubeconfig and runs_program(kubeconfig, read=reader(files.path)):
        raise Declined(f"the credential program of {kubeconfig} must run in its caller's environment")


def _is_same_file(path: str, files: Files) -> bool:
    """Whether a path means the same file, existing or not, here and below the caller's root."""
    for each in (os.path.dirname(path), path):
        try:
            theirs: os.stat_result | None = os.stat(files.path(each))
        except OSError:
            theirs = None
        try:
            ours: os.stat_result | None = os.stat(each)
        except OSError:
            ours = None
        if theirs is None or ours is None:
            return each == path and theirs is ours
        if (theirs.st_dev, theirs.st_ino) != (ours.st_dev, ours.st_ino):
            return False
    return True


def _alone(host: Host, removal: LinkRemoval) -> BaseException | None:
    try:
        remove_links_together(host, [removal], Deadline.after(30))
    except CalicoError as e:
        return e
    return None


def _identity(root: str | int, mounts: str | int) -> tuple[int, int, int]:
    """Which directory a root is, and in which mount namespace."""
    found = os.stat(root)
    return found.st_dev, found.st_ino, os.stat(mounts).st_ino
