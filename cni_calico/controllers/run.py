"""The controllers of one process: threads that are started and ended as the configuration requires.

Rule: changes of the configuration take effect without a restart. A thread that fails unexpectedly ends the process,
because half a set of controllers looks like a whole one; the Deployment starts it again.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.controllers.attempts import Leading
from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.conditions.run import POOLS, TIERS, GuardLoop
from cni_calico.controllers.copies.loop import CopyLoop
from cni_calico.controllers.copies.rules import COPY_RULES, NODES, CopyRule
from cni_calico.controllers.counters import JanitorCounters, LoopNumbers
from cni_calico.controllers.elsewhere import read_why_refused
from cni_calico.controllers.health import ROUND_S, Health, write_status
from cni_calico.controllers.host_endpoints import run as host_endpoints
from cni_calico.controllers.host_endpoints.rules import HostEndpointWish
from cni_calico.controllers.host_endpoints.run import HostEndpointLoop
from cni_calico.controllers.janitor.options import JanitorOptions
from cni_calico.controllers.janitor.run import Janitor, make_election
from cni_calico.controllers.leader import Leader, SharedElection, UpstreamsElection
from cni_calico.controllers.loadbalancer import run as loadbalancer
from cni_calico.controllers.loadbalancer.rules import ALL_SERVICES
from cni_calico.controllers.loadbalancer.run import LoadBalancerLoop
from cni_calico.controllers.metrics import render_metrics
from cni_calico.controllers.parts import LEADER, ControllerParts
from cni_calico.controllers.settings import (
    COMPACTION_S,
    DEFAULT_SPEC,
    ControllersSettings,
    Running,
    merge,
    parse_environment,
    render_status,
)
from cni_calico.daemon.ending import end_in_time
from cni_calico.daemon.exposition import Exposition
from cni_calico.daemon.http_server import TEXT, Page
from cni_calico.daemon.http_servers import HttpServers
from cni_calico.daemon.process_metrics import add_process_metrics
from cni_calico.daemon.said import Said
from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.cache import Cache
from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.election import Terms
from cni_calico.datastore.ensure import ensure_present, ensure_record
from cni_calico.datastore.interface import Document
from cni_calico.datastore.remembered import Kept
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.log import LEVELS, Log, wants_json
from cni_calico.model.access import without_prefixes
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import CONTROLLERS_DEFAULT, ResourceList

CALL_S = 10.0
LOOK_S = 1.0
ELSEWHERE_S, LOOK_ELSEWHERE_S = 10.0, 3.0  # how often, and for how long at most
WRITE_S = 3.0  # for the configuration: the main thread writes it, and hears of a signal only afterwards
END_S = 6.0  # from the signal on; the wrapper kills after 8 s, the kubelet after 10
NOT_ON_KUBERNETES = "with the Kubernetes datastore there is nothing to copy: nodes read Kubernetes' objects themselves"


class Controllers:
    """``status_file`` is the path of the health file."""

    def __init__(self, environ: Mapping[str, str], status_file: str) -> None:
        """Raises InvalidConfig, DatastoreError."""
        self._environ = environ
        self._settings: ControllersSettings = parse_environment(environ)
        self._log = Log(self._settings.log_level or "info", as_json=wants_json(environ))
        self._status_file = Path(status_file)
        self.stopping = Stopping()
        self.failed = False
        self._looked_elsewhere_at = float("-inf")
        self._cluster = open_cluster(environ, self._log)
        terms = Terms(look_s=5.0, priority=True)
        holder = environ.get("HOSTNAME", "").strip() or socket.gethostname()
        election = make_election(self._cluster, holder, terms)
        if self._cluster.is_kubernetes_datastore:
            election = UpstreamsElection(election, terms, self._log)
        self._leader = Leader(election, terms, self._log)
        self._http_servers = HttpServers(self._log)
        self._parts = ControllerParts(self._log, self._fail)
        self._running: Running | None = None
        self.numbers: dict[str, LoopNumbers] = {}
        self.counters = JanitorCounters()
        self._said = Said(self._log)

    def run(self) -> int:
        """Run until a signal or a failure; returns the exit status."""
        self.stopping.on_signals(signal.SIGTERM, signal.SIGINT)
        end_in_time(self.stopping, END_S, lambda: int(self.failed), self._log.warning)
        settings: Cache[Document] = Cache(
            self._cluster.store,
            Kept(ResourceList("KubeControllersConfiguration", "", "default"), lambda item: item.value),
        )
        try:
            while not self.stopping.wait(LOOK_S):
                if self._are_records_elsewhere():
                    break
                if settings.synced:
                    found = settings.get(CONTROLLERS_DEFAULT)
                    self._use(settings.record(CONTROLLERS_DEFAULT), is_there=found is not None)
                elif settings.error is not None:
                    hint = f" ({settings.error.details})" if settings.error.details else ""
                    self._said.once(f"waiting for the datastore: {settings.error}{hint}")
                    self._not_started(str(settings.error))
        finally:
            settings.dismiss()
            self._parts.end(self._parts.names())
            self._http_servers.close()
            self._cluster.store.close()
        return 1 if self.failed else 0

    def _are_records_elsewhere(self) -> bool:
        """Whether the records are kept elsewhere, or are being moved, so that these controllers must not run."""
        kubernetes, now = self._cluster.kubernetes, time.monotonic()
        if kubernetes is None or not self._cluster.is_kubernetes_datastore:
            return False
        if now - self._looked_elsewhere_at < ELSEWHERE_S:
            return False
        self._looked_elsewhere_at = now
        try:
            why = read_why_refused(kubernetes, Deadline.after(LOOK_ELSEWHERE_S))
        except CalicoError:
            return False  # asked again
        if why:
            self._log.error(why)
            self.failed = True
        return bool(why)

    # -- the configuration --------------------------------------------------------------------------------------------

    def _use(self, found: Document | None, *, is_there: bool) -> None:
        running = merge(self._settings, None if found is None else found.get("spec"))
        if running != self._running:
            self._running = running
            self._log.threshold = LEVELS.get(running.log_level, 20)
            self._log.info("running: " + (", ".join(running.periods_s) or "no controller"))
            for text in running.wrong:
                self._log.warning(f"KubeControllersConfiguration default: {text}; it counts as not given")
        self._apply(running)
        self._http_servers.keep("metrics", ("", running.metrics_port) if running.metrics_port else None, self._pages)
        on_kubernetes = self._cluster.is_kubernetes_datastore
        status = render_status(self._settings, running, self._environ, is_kubernetes=on_kubernetes)
        if not is_there or (found is not None and found.get("status") != status):
            self._write_configuration(status)

    def _write_configuration(self, status: Mapping[str, Any]) -> None:
        """Create it if it is absent; only the leader writes its status."""
        if not self._leader.leads():
            return
        store = self._leader.fenced(self._cluster.store)
        document = {
            "apiVersion": API_VERSION,
            "kind": CONTROLLERS_DEFAULT.kind,
            "metadata": {"name": CONTROLLERS_DEFAULT.name},
            "spec": DEFAULT_SPEC,
        }

        def plan(old: Document | None) -> Document | None:
            return None if old is None else {**old, "status": status}

        deadline = Deadline.after(WRITE_S)
        try:
            ensure_present(store, CONTROLLERS_DEFAULT, document, deadline)
            ensure_record(store, CONTROLLERS_DEFAULT, plan, deadline)
        except CalicoError as e:
            self._said.once(f"cannot write KubeControllersConfiguration default: {e}")

    # -- the threads --------------------------------------------------------------------------------------------------

    def _apply(self, running: Running) -> None:
        wanted = self._works(running)
        gone = [name for name in self._parts.names() if name not in wanted]
        self._parts.end(gone)
        for name in gone:
            self.numbers.pop(name, None)
        for name, work in wanted.items():
            if name not in self._parts:
                self._parts.start(name, work)

    def _works(self, running: Running) -> dict[str, Callable[[Stopping], object]]:
        cluster = self._cluster
        works: dict[str, Callable[[Stopping], object]] = {LEADER: self._leader.run}
        if running.health:
            works["health"] = self._keep_health
        for name in running.periods_s:
            if name == "node":
                works["node"] = self._keep_clean
                works[host_endpoints.NAME] = self._host_endpoint_loop().run
                if running.sync_labels and not cluster.is_kubernetes_datastore:
                    works[NODES.name] = self._copy_loop(NODES).run
            elif name == loadbalancer.NAME:
                works[name] = self._load_balancer_loop().run
            elif name in COPY_RULES and not cluster.is_kubernetes_datastore:
                works[name] = self._copy_loop(COPY_RULES[name]).run
            else:
                self._said.once(f"{name}: {NOT_ON_KUBERNETES}")
        kubernetes = cluster.kubernetes
        if cluster.is_kubernetes_datastore and kubernetes is not None and kubernetes.group.is_native:
            for guarded in (POOLS, TIERS):
                works[guarded.name] = GuardLoop(guarded, self._leading(guarded.name, "node")).run
        if cluster.store.kind == "etcdv3" and running.compaction_s > 0:
            works["compaction"] = self._compact
        return works

    def _copy_loop(self, rule: CopyRule) -> CopyLoop:
        kubernetes = self._cluster.kubernetes
        assert kubernetes is not None
        return CopyLoop(rule, kubernetes, self._leading(rule.name, "node" if rule is NODES else rule.name))

    def _host_endpoint_loop(self) -> HostEndpointLoop:
        return HostEndpointLoop(
            self._leading(host_endpoints.NAME, "node"),
            lambda: HostEndpointWish() if self._running is None else self._running.host_endpoints,
        )

    def _load_balancer_loop(self) -> LoadBalancerLoop:
        kubernetes = self._cluster.kubernetes
        assert kubernetes is not None
        return LoadBalancerLoop(
            kubernetes,
            self._leading(loadbalancer.NAME, loadbalancer.NAME),
            lambda: ALL_SERVICES if self._running is None else self._running.assign_ips,
        )

    def _leading(self, name: str, controller: str) -> Leading:
        """``controller``: whose period in the settings counts."""
        return Leading(
            self._leader.fenced(self._cluster.store),
            self._leader.remaining_s,
            lambda: self._period_s(controller),
            self._log,
            self.numbers.setdefault(name, LoopNumbers()),
        )

    def _period_s(self, name: str) -> float:
        period_s = (self._running.periods_s if self._running is not None else {}).get(name, 0.0)
        return period_s or float("inf")

    def _keep_clean(self, stopping: Stopping) -> None:
        options = JanitorOptions(terms=Terms(look_s=LOOK_S))
        Janitor(self._cluster, SharedElection(self._leader), self.counters, options).run(stopping)

    def _compact(self, stopping: Stopping) -> None:
        """Compact etcd from time to time. Every process takes part: the key in etcd decides whose turn it is."""
        from cni_calico.datastore.etcd.compaction import EtcdCompaction
        from cni_calico.datastore.etcd.store import EtcdStore

        assert isinstance(self._cluster.store, EtcdStore)
        compaction = EtcdCompaction(self._cluster.store)
        while not stopping.is_set():
            try:
                revision = compaction.step(Deadline.after(CALL_S))
                if revision:
                    self._log.debug(f"compacted etcd to revision {revision}")
            except CalicoError as e:
                self._said.once(f"cannot compact etcd: {e}")
            stopping.wait((self._running.compaction_s if self._running is not None else 0) or COMPACTION_S)

    def _keep_health(self, stopping: Stopping) -> None:
        kubernetes = self._cluster.kubernetes
        assert kubernetes is not None
        health = Health(
            self._status_file, self._cluster.store, lambda deadline: kubernetes.api.text("/healthz", deadline, "ask")
        )
        while not stopping.is_set():
            try:
                health.look()
            except OSError as e:
                self._said.once(f"cannot write the status file {self._status_file}: {e.strerror or e}")
            stopping.wait(ROUND_S)

    def _not_started(self, why: str) -> None:
        try:
            write_status(self._status_file, {"Startup": {"Ready": False, "Reason": why}})
        except OSError as e:
            self._said.once(f"cannot write the status file {self._status_file}: {e.strerror or e}")

    def _fail(self) -> None:
        self.failed = True
        self.stopping.set()

    # -- what is told -------------------------------------------------------------------------------------------------

    def _pages(self) -> dict[str, Page]:
        def page() -> tuple[int, str, bytes]:
            text = render_metrics(self._leader.leads(), dict(self.numbers), self.counters)
            process = Exposition()
            add_process_metrics(process)
            return 200, "text/plain; version=0.0.4; charset=utf-8", (text + process.render()).encode()

        return {"/metrics": page, "/": lambda: (200, TEXT, b"metrics are at /metrics\n")}


def open_cluster(environ: Mapping[str, str], log: Log) -> Cluster:
    """Raises InvalidConfig, DatastoreError."""
    environ = without_prefixes(environ)
    config = parse_datastore(JsonFields({}), {**environ, "DATASTORE_TYPE": environ.get("DATASTORE_TYPE") or "etcdv3"})
    if config.type == "local":
        raise InvalidConfig(
            "cannot run controllers: DATASTORE_TYPE=local is for a single host",
            details="they copy from Kubernetes into etcd; set DATASTORE_TYPE to etcdv3 or kubernetes",
        )
    from cni_calico.datastore.kubernetes.store import KubernetesStore

    store = open_datastore(config)
    kubernetes = store if isinstance(store, KubernetesStore) else KubernetesStore(config.kubernetes)
    return Cluster(store, log, kubernetes, isinstance(store, KubernetesStore))


def run_controllers(status_file: str, environ: Mapping[str, str] = os.environ) -> int:
    """Raises InvalidConfig, DatastoreError."""
    return Controllers(environ, status_file).run()
