"""The policy engine's work where another data plane is driven: what is calculated goes to the driver, not to a kernel.

Rule: a driver is told what the packet filter would enforce, in the same order of records and with the same limits, and
nothing before everything has been read once. Changes that need what is not read yet wait together. What the driver says
of endpoints is in the status and in their files; if it fails the thread ends with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from cni_calico.daemon.said import Said
from cni_calico.datastore.interface import Datastore
from cni_calico.model.selectors import Labels
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.driver.messages import DriverSaid, encode_config, encode_facts, parse_said, select_config
from cni_calico.nodeagent.driver.process import DriverProcess
from cni_calico.nodeagent.driver.stream import DriverStream, join_changes, name_of
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.feed.changes import FedRecord
from cni_calico.nodeagent.policing.feed.incoming import Incoming
from cni_calico.nodeagent.policing.feed.intake import Intake
from cni_calico.nodeagent.policing.feed.shares import Taken
from cni_calico.nodeagent.policing.feed.spared import Spared
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.loop import AskedOfEngine
from cni_calico.nodeagent.policing.report.problems import describe_http, describe_problems
from cni_calico.nodeagent.policing.report.status_files import StatusFiles
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.status.policing import Standing
from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.sync.known import EndpointName
from cni_calico.nodeagent.sync.messages import encode_in_sync
from cni_calico.nodeagent.sync.profiles import FollowedProfiles
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import WantedChanges

_LOOK_S = 1.0
_UP, _ERROR = "up", "error"
Named = TypeVar("Named", EndpointName, str)


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
        felix, files, state_dir = asked.felix, context.files, context.settings.state_dir
        self._environ, self._engine, self._log = environ, engine, context.log
        self._name = felix.dataplane_driver
        self._said = Said(context.log)
        self._stream, self._reports, self._woken = DriverStream(), _Reports(), threading.Event()
        self._files = StatusFiles(
            files, context.log, felix.endpoint_status_prefix, lambda: self._stream.endpoints, self._is_up
        )
        graph = Graph(lambda endpoint: endpoint.node == node, lambda host: host.node == node)
        self._goal = Goal(FilterSettings())  # only what a large change needs is made in it, ahead of it
        self._intake = Intake(
            node,
            graph,
            self._goal,
            LastValid(files, context.log, state_dir),
            Spared(files, context.log, state_dir),
            (engine.rules.put,),
        )
        self._felix = felix
        self._configure(felix)
        self._feed, self._memory, self._turns = incoming.feed, incoming.memory, Turns(incoming.memory)
        self._memory.configure(felix.policy_memory_mib)
        self._intake.bound_members(self._memory.admits_members)
        engine.rules.begin()
        self._accounts = _Accounts(context.followed, self.wake)
        self._snapshot: Snapshot | None = None
        self._config: dict[str, str] | None = None
        self._waiting: WantedChanges | None = None
        self._in_sync = False
        self._standing = Standing()
        self._process = DriverProcess(self._name, self._receive, self.wake)
        context.log.info(f"the data plane driver {self._name} runs (process {self._process.pid})")

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
        if asked.felix != self._felix:
            self._configure(asked.felix)
        self._tell_config(stopping)
        synced = self._feed.synced
        taken = self._take(synced=synced)
        if synced or self._in_sync:
            self._calculate()
            synced = self._feed.need(self._engine.rules.needs(self._intake.facts.needs)) and synced
        if synced and self._snapshot is not None and self._accounts.complete:
            self._tell_changes(stopping)
        self._turns.charge(taken)
        self._tell_standing()
        if not (self._turns or stopping.is_set()):
            self._woken.wait(_LOOK_S)

    def stop(self) -> None:
        """End the driver."""
        self._process.stop()
        self._accounts.stop()
        self._feed.stop()
        self._files.clear()

    def _configure(self, felix: FelixSettings) -> None:
        self._felix = felix
        self._intake.set_budget(felix.policy_rule_budget)

    def _take(self, *, synced: bool) -> Taken[FedRecord]:
        intake = self._intake
        taken = self._turns.take(self._feed, intake.ahead, everything=not self._in_sync, synced=synced)
        intake.receive(taken.changes)
        for key, nets in self._memory.take_unread_sets().items():
            intake.hold_back(key, nets)
        self._engine.figures.waiting_for_memory = self._memory.waiting(intake.facts.waiting)
        for due in (self._memory.next_due(), intake.reconsider()):
            if due is not None:
                self._feed.read_again(due)
        return taken

    def _calculate(self) -> None:
        changes = self._intake.flush({}, self._engine.figures.calculation)
        self._engine.rules.note(changes)
        self._intake.offer(self._engine.rules.offer)
        if changes:
            self._waiting = changes if self._waiting is None else join_changes(self._waiting, changes)

    def _send(self, message: bytes, stopping: threading.Event) -> None:
        self._process.send(message, stopping.is_set)

    def _tell_config(self, stopping: threading.Event) -> None:
        """It is the first message."""
        if self._snapshot is None:
            return
        config = select_config(self._environ, self._snapshot)
        if config != self._config:
            self._config = config
            self._send(encode_config(config), stopping)

    def _tell_changes(self, stopping: threading.Event) -> None:
        changes, self._waiting = self._waiting, None
        begun = time.monotonic()
        for message in self._stream.receive(changes) if changes is not None else ():
            self._send(message, stopping)
        for message in self._accounts.take():
            self._send(message, stopping)
        assert self._snapshot is not None
        facts = encode_facts(self._snapshot.nodes.values(), self._snapshot.pools)
        for message in self._stream.become(facts):
            self._send(message, stopping)
        if not self._in_sync:
            self._send(encode_in_sync(), stopping)
            self._in_sync = not stopping.is_set()
        self._intake.keep_last_valid()
        self._engine.rules.applied(self._intake.wanted)
        if changes is not None:
            self._engine.figures.apply.observe(time.monotonic() - begun)
            self._files.note(changes.endpoints)
        self._files.due |= self._reports.take_changed()
        self._files.keep()

    def _is_up(self, interface: str) -> bool:
        there = self._reports.of_workloads
        named = (name_of(endpoint) for endpoint in self._stream.endpoints.values() if endpoint.interface == interface)
        return any(there.get(name) == _UP for name in named)

    def _tell_standing(self) -> None:
        error, intake = self._feed.error, self._intake
        unread = self._feed.unread if self._waiting is not None else ""
        standing = Standing(
            decided=self._in_sync or bool(error),
            in_force=self._in_sync,
            ready=self._in_sync,
            why_not="" if self._in_sync else "the policies have not been read yet",
            failing=unread or ("" if self._in_sync else error),
            problems=(*describe_problems(intake.facts, self._goal), *self._reports.problems()),
            warnings=(
                *describe_http(intake.warnings, self._felix.policy_sync_prefix),
                *self._feed.left_out,
                *self._turns.problems(),
            ),
            counts={
                "records": len(intake.policies),
                "policies": intake.facts.governing,
                "over_budget": len(intake.facts.over.denied),
                "disputed": len(intake.facts.disputes),
                "endpoints": len(self._stream.endpoints),
                "hosts": len(self._stream.hosts),
            },
            by=self._name,
        )
        if standing != self._standing:
            self._said.say("standing", sorted({*standing.problems, *standing.warnings, *filter(None, [unread])}))
            if standing.in_force != self._standing.in_force:
                self._log.info(standing.sentence)
            self._standing = standing
            self._engine.tell(standing)


class _Reports:
    """What the driver has said of endpoints: ``note`` in the thread that reads, the rest in the engine's."""

    def __init__(self) -> None:
        self.of_workloads: dict[EndpointName, str] = {}
        self._of_hosts: dict[str, str] = {}
        self._changed = False

    def note(self, said: DriverSaid) -> bool:
        """Whether it is new."""
        if said.workload is not None:
            changed = _put(self.of_workloads, said.workload, said.status)
        else:
            changed = _put(self._of_hosts, said.host, said.status)
        self._changed |= changed
        return changed

    def take_changed(self) -> bool:
        changed, self._changed = self._changed, False
        return changed

    def problems(self) -> list[str]:
        """A sentence for each endpoint that the driver could not make."""
        failed = [f"workload {name[1]}" for name, status in self.of_workloads.copy().items() if status == _ERROR]
        failed += [f"host endpoint {name}" for name, status in self._of_hosts.copy().items() if status == _ERROR]
        return [f"{name}: the data plane driver reports an error" for name in sorted(failed)]


def _put(known: dict[Named, str], name: Named, status: str) -> bool:
    before = known.get(name, "")
    if status:
        known[name] = status
    else:
        known.pop(name, None)
    return before != status


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
