"""The "confd" part: makes BIRD's configuration from the datastore, and puts it in force whenever it changes.

Rule: nodes and pools come from the agent's snapshot, the BGP records from feed.py; one thread renders and applies what
it saw last. A configuration that BIRD refuses is reported and the old one stays; if BIRD is not available now, it is
tried again later. While there is a record that this process has never been able to read, the previous configuration
stays.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.directories import BIRD_PID, BIRD_SOCKET
from cni_calico.errors import CalicoError, CorruptRecord
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.model.documents.codec import describe
from cni_calico.model.resources import Node
from cni_calico.nodeagent.bgp.bird.controller import REFUSAL, BirdController
from cni_calico.nodeagent.bgp.bird.links import ensure_links
from cni_calico.nodeagent.bgp.bird.process import BirdPaths
from cni_calico.nodeagent.bgp.bird.session_ends import SessionEnds
from cni_calico.nodeagent.bgp.config.configuration import find_unequal_priorities
from cni_calico.nodeagent.bgp.config.findings import NOTE, BgpProblem
from cni_calico.nodeagent.bgp.config.fragments import blame
from cni_calico.nodeagent.bgp.config.lifelines import desired_lifelines
from cni_calico.nodeagent.bgp.config.render import BirdConfig, render_bird_config
from cni_calico.nodeagent.bgp.config.snapshot import (
    BgpEnvironment,
    BgpInterface,
    BgpSnapshot,
    LocalBlock,
    snapshot_of,
)
from cni_calico.nodeagent.bgp.custom import read_custom, read_marks
from cni_calico.nodeagent.bgp.facts import ENDS, NOT_CONFIGURED, UNMET
from cni_calico.nodeagent.bgp.feed import PEER, BgpFeed
from cni_calico.nodeagent.bgp.local_workloads import LocalWorkloads
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.view.snapshot import Snapshot, may_use, select_pod_cidrs
from cni_calico.nodeagent.view.sources import Sources
from cni_calico.policy.lifelines import Lifeline

APPLY_S = 20.0
RETRY_S, LAST_RETRY_S = 2.0, 30.0
AGAIN_S = 30.0  # for changes that nothing reports: a Secret, the host's addresses, what BIRD leaves in the kernel
WORKLOADS_S = 2.0  # for the interface of a workload that is being added
SESSIONS_S = 0.4  # BIRD connects again 0.75 to 1 s after an end, and what comes of that replaces the reason
LOOK_S = 0.5  # for BIRD's answer to what the sessions do
FILES_S = 5.0  # for users' files beside BIRD's configuration


class BgpKeeper:
    """``follow`` gives it the agent's snapshot; ``run`` is its thread.

    ``facts`` gets what belongs in the agent's status: "bgp" (why there is none, "" if BGP is as wanted), "bgp_problems"
    (parts of the records that are left out), ENDS (why sessions ended; what an earlier run knew may be there already)
    and UNMET (why the node is not ready without BIRD). ``output_fd`` is where BIRD's own log goes.
    ``tell_sessions`` is told what the sessions need from host endpoints, and the workloads that there are sessions
    with: by their interfaces the name of the BGPPeer. ``tell_routes`` is told whether BIRD is to make the routes to
    other nodes' blocks, as far as BGPConfiguration says.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        environment: BgpEnvironment,
        facts: dict[str, Any] | None = None,
        *,
        output_fd: int = 2,
        tell_sessions: Callable[[tuple[Lifeline, ...], Mapping[str, str]], None] = lambda lifelines, peers: None,
        tell_routes: Callable[[bool], None] = lambda bird_makes_them: None,
    ) -> None:
        self._settings = settings = context.settings
        self._tell_sessions, self._tell_routes = tell_sessions, tell_routes
        self._agent_makes_routes = False
        self._priorities: tuple[int, int] | None = None
        self.facts: dict[str, Any] = {} if facts is None else facts
        self._context = context
        self._log = context.log
        self._node = node
        self._environment = environment
        paths = BirdPaths(
            config_directory=settings.bird_config_dir,
            socket=f"{settings.run_dir}/{BIRD_SOCKET}",
            pid_file=f"{settings.run_dir}/{BIRD_PID}",
            service=settings.bird_service,
            services=settings.services_dir,
        )
        self._confd_dir = os.path.dirname(os.path.normpath(settings.bird_config_dir))
        self._wake = threading.Event()
        self.controller = BirdController(paths, log=context.log, output_fd=output_fd, changed=self._wake.set)
        self._snapshot: Snapshot | None = None
        self._tunnel_made = False
        self._said = Said(context.log)
        self._rendered = False  # the configuration in force was made by this process, from records that it could read
        self._feed = BgpFeed(context, node, self._wake.set)
        self._workloads = LocalWorkloads(lambda: context.followed, self._wake.set)
        self._follows_workloads = False
        self._ends = SessionEnds(self.facts.get(ENDS))
        self.facts[ENDS] = self._ends.ends

    def use(
        self, snapshot: Snapshot, *, agent_makes_routes: bool = False, priorities: tuple[int, int] | None = None
    ) -> None:
        """Take the agent's newest view, whether it makes the routes to other nodes' blocks itself, and the metrics of
        those to its workloads, in IPv4 and IPv6; called from the agent's thread, once it has made them.
        """
        before, given = self._snapshot, (self._agent_makes_routes, self._priorities)
        self._snapshot, self._agent_makes_routes, self._priorities = snapshot, agent_makes_routes, priorities
        if before is None or given != (agent_makes_routes, priorities) or self._differ(before, snapshot):
            self._wake.set()

    def _differ(self, before: Snapshot, after: Snapshot) -> bool:
        return _made_from(before) != _made_from(after) or (
            self._follows_workloads and before.endpoints != after.endpoints
        )

    def tunnel_made(self) -> None:
        """tunl0 appeared: BIRD has given up on routes through it and must write them again."""
        self._tunnel_made = True
        self._wake.set()

    def run(self, stopping: threading.Event) -> None:
        if self._environment.backend == "bird":
            self.facts[UNMET] = [NOT_CONFIGURED]
        retry, next_look, next_marks, next_sessions = Backoff(RETRY_S, LAST_RETRY_S), 0.0, 0.0, 0.0
        marks = read_marks(self._confd_dir)
        try:
            while not stopping.is_set():
                if time.monotonic() >= next_marks:
                    next_marks = time.monotonic() + FILES_S
                    if self._environment.backend == "bird":
                        ensure_links(self._settings.run_dir, self._settings.bird_config_dir, self._log)
                    before, marks = marks, read_marks(self._confd_dir)
                    if marks != before:
                        self._wake.set()
                if time.monotonic() >= next_sessions and self.controller.running:
                    next_sessions = time.monotonic() + SESSIONS_S
                    self._look_at_sessions()
                woken = self._wake.wait(SESSIONS_S)
                if not (woken or time.monotonic() >= next_look) or not self._ready():
                    continue
                self._wake.clear()
                done = self._apply()
                service = self.controller.process.adopted
                self.facts["bird"] = "" if service is None else str(service)
                if done:
                    retry.reset()
                    next_look = time.monotonic() + (WORKLOADS_S if self._workloads.waits else AGAIN_S)
                else:
                    next_look = time.monotonic() + retry.next()
        finally:
            self._feed.stop()
            self._workloads.stop()
            self.controller.close()

    def _look_at_sessions(self) -> None:
        try:
            ended = self._ends.note(self.controller.sessions(Deadline.after(LOOK_S)))
        except CalicoError:
            return  # BIRD starts, or is too busy to answer: the next look tells
        if ended:
            self.facts[ENDS] = self._ends.ends

    def run_once(self, deadline: Deadline) -> bool:
        """Render the configuration and put it into force once, leaving BIRD running; returns whether BIRD runs with it
        now. Raises DatastoreError.
        """
        sources = Sources(self._context.store, self._node, lambda: None)
        try:
            sources.wait_synced(deadline)
            self._feed.wait_synced(deadline)
            self._snapshot = sources.snapshot()
            return self._apply()
        finally:
            sources.stop()
            self._feed.stop()

    def rehearse(self, snapshot: Snapshot, agent_makes: Callable[[bool], bool], deadline: Deadline) -> BirdConfig:
        """The configuration that would be put into force; nothing is written, and BIRD is not asked. ``agent_makes``:
        whether the agent makes the routes itself, from whether BGPConfiguration has BIRD make them. Raises CalicoError.
        """
        try:
            self._feed.wait_synced(deadline)
            built = self._build(snapshot, deadline)
            makes = agent_makes(built.configuration.makes_routes)
            return render_bird_config(replace(built, agent_makes_routes=makes))
        finally:
            self._feed.stop()

    def _ready(self) -> bool:
        return self._snapshot is not None and self._feed.synced

    def _apply(self) -> bool:
        """Whether BIRD now runs with the wanted configuration, or is stopped as wanted."""
        snapshot = self._snapshot
        assert snapshot is not None
        deadline = Deadline.after(APPLY_S)
        config: BirdConfig | None = None
        try:
            if not self._rendered and self._keep_what_is_there(snapshot, deadline):
                self.facts[UNMET] = []
                return False
            built = self._build(snapshot, deadline)
            config = render_bird_config(built)
            workloads = {peer.at[0]: peer.bgp_peer for peer in config.peers if peer.at is not None}
            self._tell_sessions(desired_lifelines(built, config.peers), workloads)
            self._tell_problems(config.problems)
            applied = self.controller.apply(config, deadline)
            if config.files:
                self._reload_after_tunnel(deadline)
        except CalicoError as e:
            self._note_failure(str(e), e.details, snapshot, config)
            self._said.say("BGP", [f"BGP: {e}" + (f" ({e.details})" if e.details else "")])
            return False
        if applied.outcome == REFUSAL:
            culprit = blame(applied.detail, config.files)
            where = f" (fragment custom/{culprit})" if culprit else ""
            why = f"BIRD refused the configuration{where}: {applied.detail}"
            self._note_failure(why, "correct what the text names", snapshot, config)
            self._said.say("BGP", [f"BGP: {self.facts['bgp']}"])
            return False
        self._rendered = True
        try:
            not_given = self._keep_addresses(built, config, deadline)
        except CalicoError as e:
            not_given = [BgpProblem("interfaces of workloads", str(e))]
        if not_given:
            self._tell_problems((*config.problems, *not_given))
        self._said.say("BGP", [])
        self.facts["bgp"], self.facts[UNMET] = "", []
        return True

    def _note_failure(self, why: str, remedy: str, snapshot: Snapshot, config: BirdConfig | None) -> None:
        """If something needs BIRD while it does not run, the node is not ready."""
        self.facts["bgp"] = why
        needed, instead = ("", "") if self.controller.running else what_needs_bird(snapshot, config)
        ways_out = ", or ".join(way for way in (remedy, instead) if way)
        self.facts[UNMET] = [f"{needed}, and BIRD does not run: {why}; {ways_out}"] if needed else []

    def _keep_what_is_there(self, snapshot: Snapshot, deadline: Deadline) -> bool:
        """Whether BIRD is left with the previous configuration, which may contain the records that cannot be read
        now.
        """
        unread = [*snapshot.unread_of("Node", "IPPool"), *self._feed.all_unread()]
        if not unread or self._environment.backend != "bird" or not self.controller.keep(deadline):
            return False
        stays = [BgpProblem(describe(key), "cannot be read; BIRD's configuration stays as it is") for key in unread]
        self._tell_problems([*stays, *read_custom(self._confd_dir)[1]])
        self._reload_after_tunnel(deadline)
        self.facts["bgp"] = ""
        return True

    def _reload_after_tunnel(self, deadline: Deadline) -> None:
        if self._tunnel_made:
            self._tunnel_made = False
            self.controller.reload_kernel(deadline)

    def _build(self, snapshot: Snapshot, deadline: Deadline) -> BgpSnapshot:
        records, blocks = self._feed.read()
        if snapshot.own is None and snapshot.incomplete:
            raise CorruptRecord(f"cannot read Node {self._node}: BIRD's configuration stays as it is")
        secrets, no_secrets = self._feed.secrets.read(records.secrets, deadline)
        announces = bool(self._environment.advertise_cluster_ips) or records.announces_services
        services, no_services = self._feed.services(deadline, wanted=announces)
        there = read_interfaces(deadline)
        self._follows_workloads = any(spec.workload_selector is not None for spec in records.peers)
        workloads = self._workloads.read(snapshot, there, wanted=self._follows_workloads, deadline=deadline)
        interfaces = [BgpInterface(one.name, address) for one in there for address in one.addresses]
        built = snapshot_of(
            records,
            self._node,
            nodes=snapshot.nodes.values(),
            pools=snapshot.pools,
            blocks=blocks + self._pod_cidrs(snapshot.own),
            services=services,
            secrets=secrets,
            environment=self._environment,
            interfaces=interfaces,
        )
        fragments, unused = read_custom(self._confd_dir)
        lost = [BgpProblem(f"BGPPeer {key.name}", "cannot be read; left out") for key in self._feed.unread(PEER)]
        unequal = find_unequal_priorities(built.configuration, self._priorities)
        problems = (*built.problems, *lost, *no_secrets, *no_services, *unused, *unequal)
        self._tell_routes(built.configuration.makes_routes)
        makes = self._agent_makes_routes
        return replace(built, fragments=fragments, problems=problems, agent_makes_routes=makes, workloads=workloads)

    def _keep_addresses(self, built: BgpSnapshot, config: BirdConfig, deadline: Deadline) -> list[BgpProblem]:
        """What workloads connect to."""
        peering = built.configuration.workload_peering.values()
        prefixes = self._environment.interface_prefixes
        return self._workloads.keep_addresses(config.peers, peering, read_interfaces, prefixes, deadline)

    def _pod_cidrs(self, own: Node | None) -> tuple[LocalBlock, ...]:
        """With host-local IPAM they take the place of blocks."""
        if own is None or not self._context.settings.use_pod_cidr:
            return ()
        return tuple(LocalBlock(cidr, confirmed=True) for cidr in select_pod_cidrs(own))

    def _tell_problems(self, problems: Sequence[BgpProblem]) -> None:
        """Put them in the status, and the important ones in the log, each once."""
        spoilt = self._feed.problems()
        self.facts["bgp_problems"] = [*spoilt, *map(str, problems)]
        self._said.say("records", [*spoilt, *(str(problem) for problem in problems if problem.severity != NOTE)])


def what_needs_bird(snapshot: Snapshot, config: BirdConfig | None) -> tuple[str, str]:
    """Two texts: what needs BIRD, and how to do without it. Both are "" for a node that is alone or reaches the others
    by VXLAN. ``config`` None: it is unknown.
    """
    for pool in snapshot.pools:
        if pool.vxlan_mode != "Never":
            continue
        count = sum(1 for name in snapshot.nodes if name != snapshot.node and may_use(snapshot, pool, name))
        if count:
            needed = f"IPPool {pool.metadata.name} needs BGP for the routes to {count} other nodes"
            return needed, "give the pool a vxlanMode in place of its ipipMode"
    routers = [peer for peer in (() if config is None else config.peers) if not peer.node]
    return (f"{routers[0].origin} needs BGP", "remove that record") if routers else ("", "")


def _made_from(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.nodes, snapshot.pools, snapshot.unread_of("Node", "IPPool")
