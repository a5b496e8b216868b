"""The policy engine's work where another data plane is driven: what is calculated goes to the driver, not to a kernel.

Rule: a driver is told what the packet filter would enforce, and nothing before everything has been read once. If it
fails the thread ends with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.daemon.said import Said
from cni_calico.datastore.interface import Datastore
from cni_calico.model.selectors import Labels
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.driver.cluster import OTHER, Fact, FactName, encode_bgp, encode_facts
from cni_calico.nodeagent.driver.messages import encode_config, parse_said, select_config
from cni_calico.nodeagent.driver.process import DriverProcess
from cni_calico.nodeagent.driver.records import DriverRecords
from cni_calico.nodeagent.driver.reports import DriverReports
from cni_calico.nodeagent.driver.services import FollowedServices
from cni_calico.nodeagent.driver.stream import DriverStream
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.feed.incoming import Incoming
from cni_calico.nodeagent.policing.loop import AskedOfEngine
from cni_calico.nodeagent.policing.report.problems import describe_http
from cni_calico.nodeagent.status.policing import Standing
from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.sync.messages import encode_in_sync
from cni_calico.nodeagent.sync.profiles import FollowedProfiles
from cni_calico.nodeagent.view.snapshot import Snapshot

_LOOK_S = 1.0


class DriverLoop:
    """For the engine's thread: ``step`` again and again, then ``stop``. ``use`` and ``wake`` from any."""

    def __init__(
        self,
        context: Context,
        node: str,
        environ: Mapping[str, str],
        asked: AskedOfEngine,
        incoming: Incoming,
        engine: PolicyEngine,
    ) -> None:
        """Starts the driver. Raises DriverFailed."""
        felix = asked.felix
        self._environ, self._asked = environ, asked
        self._status = _DriverStatus(context, engine, felix.dataplane_driver)
        self._figures, self._woken = engine.figures, threading.Event()
        self._records = DriverRecords(context, node, felix, incoming, engine)
        self._stream = DriverStream()
        self._reports = DriverReports(context, felix.endpoint_status_prefix, self._stream.endpoints)
        self._accounts = _Accounts(context.followed, self.wake)
        self._cluster = _DriverCluster(context, self._records, self.wake)
        self._snapshot: Snapshot | None = None
        self._config: dict[str, str] | None = None
        self._in_sync = False
        self._process = DriverProcess(felix.dataplane_driver, self._receive, self.wake)
        context.log.info(f"the data plane driver {felix.dataplane_driver} runs (process {self._process.pid})")

    # -- from other threads -------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something has happened."""
        self._woken.set()

    def use(self, snapshot: Snapshot) -> None:
        """What is known of the cluster besides policy."""
        self._snapshot = snapshot
        self.wake()

    def _receive(self, message: bytes) -> None:
        """Raises ValueError."""
        said = parse_said(message)
        if said is not None and self._reports.note(said):
            self.wake()

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def step(self, asked: AskedOfEngine, stopping: threading.Event) -> None:
        """Tell what has happened, and wait for the next thing to happen. Raises DriverFailed."""
        self._woken.clear()
        self._process.require_alive()
        if asked is not self._asked:
            self._asked = asked
            self._records.configure(asked.felix)
        snapshot = self._snapshot
        synced, taken = self._records.step(told=self._in_sync)
        if snapshot is not None:
            self._tell_config(snapshot, stopping)
            if synced and self._accounts.complete and self._cluster.complete:
                self._tell_changes(snapshot, stopping)
        waits = self._records.end(taken)
        counts = {"endpoints": len(self._stream.endpoints), "hosts": len(self._stream.hosts)}
        prefix = asked.felix.policy_sync_prefix
        problems = [*self._reports.problems(), *self._cluster.problems()]
        self._status.tell(self._records, problems, counts, prefix, in_sync=self._in_sync)
        if not (waits or stopping.is_set()):
            self._woken.wait(_LOOK_S)

    def stop(self) -> None:
        """End the driver."""
        self._process.stop()
        self._accounts.stop()
        self._cluster.stop()
        self._records.stop()
        self._reports.stop()

    def _send(self, message: bytes, stopping: threading.Event) -> None:
        self._process.send(message, stopping.is_set)

    def _tell_config(self, snapshot: Snapshot, stopping: threading.Event) -> None:
        """It is the first message."""
        config = select_config(self._environ, snapshot)
        if config != self._config:
            self._config = config
            self._send(encode_config(config), stopping)

    def _tell_changes(self, snapshot: Snapshot, stopping: threading.Event) -> None:
        changes, begun = self._records.take_changes(), time.monotonic()
        for message in self._stream.receive(changes) if changes is not None else ():
            self._send(message, stopping)
        for message in self._accounts.take():
            self._send(message, stopping)
        facts = self._cluster.changed_facts(snapshot)
        for message in self._stream.become(facts) if facts is not None else ():
            self._send(message, stopping)
        if not self._in_sync:
            self._send(encode_in_sync(), stopping)
            self._in_sync = not stopping.is_set()
        self._records.told()
        if changes is not None:
            self._figures.apply.observe(time.monotonic() - begun)
        self._reports.keep_files({} if changes is None else changes.endpoints)


class _DriverCluster:
    """What is told besides policy, which is put together only when some of it has changed."""

    def __init__(self, context: Context, records: DriverRecords, wake: Callable[[], None]) -> None:
        self._records = records
        self._services = FollowedServices(context.followed_kubernetes, wake)
        self._of: tuple[Snapshot, Mapping[str, Any]] | None = None
        self._facts: dict[FactName, Fact] = {}

    @property
    def complete(self) -> bool:
        return self._services.complete

    def problems(self) -> list[str]:
        return [self._services.problem] if self._services.problem else []

    def changed_facts(self, snapshot: Snapshot) -> dict[FactName, Fact] | None:
        """None: it is as it was."""
        bgp, of = self._records.bgp, self._of
        if of is not None and of[0] is snapshot and of[1] is bgp and not self._services.changed:
            return None
        if of is None or of[0] is not snapshot:
            self._facts = encode_facts(snapshot)
        self._of = snapshot, bgp
        return {**self._facts, (OTHER, "BGP"): (encode_bgp(bgp), b""), **self._services.facts()}

    def stop(self) -> None:
        self._services.stop()


class _DriverStatus:
    """``tell`` tells the engine and the log what is new."""

    def __init__(self, context: Context, engine: PolicyEngine, name: str) -> None:
        self._log, self._said = context.log, Said(context.log)
        self._engine, self._name = engine, name
        self._standing = Standing()

    def tell(
        self, records: DriverRecords, problems: list[str], counts: Mapping[str, int], prefix: str, *, in_sync: bool
    ) -> None:
        """``counts``: of what the driver knows. ``prefix``: of policy sync."""
        intake, facts, unread = records.intake, records.facts, records.unread
        standing = Standing(
            decided=in_sync or bool(records.error),
            in_force=in_sync,
            ready=in_sync,
            why_not="" if in_sync else "the policies have not been read yet",
            failing=unread or ("" if in_sync else records.error),
            problems=(*records.problems(), *problems),
            warnings=(*describe_http(intake.warnings, prefix), *records.warnings()),
            counts={
                "records": len(intake.policies),
                "policies": facts.governing,
                "over_budget": len(facts.over.denied),
                "disputed": len(facts.disputes),
                **counts,
            },
            by=self._name,
        )
        if standing == self._standing:
            return
        self._said.say("standing", sorted({*standing.problems, *standing.warnings, *filter(None, [unread])}))
        if standing.in_force != self._standing.in_force:
            self._log.info(standing.sentence)
        self._standing = standing
        self._engine.tell(standing)


class _Accounts:
    """Namespaces and service accounts; their listing is read in another thread."""

    def __init__(self, store: Datastore, wake: Callable[[], None]) -> None:
        self._guard, self._wake = threading.Lock(), wake
        self._known, self._told = ClusterAccounts(most_gone=1 << 62), 0
        self._profiles = FollowedProfiles(store, self._receive)

    @property
    def complete(self) -> bool:
        return self._known.complete

    def _receive(self, labels: Mapping[str, Labels | None], *, complete: bool) -> None:
        with self._guard:
            for profile, its in labels.items():
                self._known.put(profile, its)
            self._known.complete |= complete
        self._wake()

    def take(self) -> list[bytes]:
        """What has not been told."""
        with self._guard:
            messages, self._told = self._known.since(self._told), self._known.version
        return messages

    def stop(self) -> None:
        self._profiles.stop()
