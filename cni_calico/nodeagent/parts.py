"""The long-running parts of calico-node in one process, besides Felix's: threads around what that has started, and how
they all end.

Rule: a part that fails unexpectedly ends the process, because half an agent looks like a whole one; the supervisor (or
systemd, or the kubelet) starts it again. SIGTERM ends all parts within 4 s and leaves the data plane as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from typing import TypedDict

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.janitor.options import JanitorOptions
from cni_calico.controllers.janitor.run import Janitor, make_election
from cni_calico.daemon.http_servers import HttpServers
from cni_calico.daemon.orphans import VARIABLE
from cni_calico.daemon.supervisor import own_command
from cni_calico.datastore.kubernetes.login import own_namespace
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.flows.host_parameters import HostParameters
from cni_calico.nodeagent.aws.source_check import SourceCheck
from cni_calico.nodeagent.bgp.config.snapshot import parse_bgp_environment
from cni_calico.nodeagent.bgp.facts import BIRD_MAKES_ROUTES
from cni_calico.nodeagent.bgp.keeper import BgpKeeper
from cni_calico.nodeagent.bgp.reporter import Reporter
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.felix_parser import FelixParser
from cni_calico.nodeagent.context.kinds import NOT_CHANGED
from cni_calico.nodeagent.context.kubernetes import ApiNode
from cni_calico.nodeagent.context.recording import WantedRecording, flow_limits, names_all, wanted_recording
from cni_calico.nodeagent.felix import Felix
from cni_calico.nodeagent.keepers.host_status import make_host_status
from cni_calico.nodeagent.keepers.labels import label_keeper
from cni_calico.nodeagent.keepers.node_addresses import address_keeper
from cni_calico.nodeagent.keepers.owed import owed_keeper
from cni_calico.nodeagent.keepers.public_keys import PublicKeyKeeper
from cni_calico.nodeagent.keepers.service_sources import ServiceSourcesLook
from cni_calico.nodeagent.keepers.token import TokenTarget, keep_token
from cni_calico.nodeagent.recording.elsewhere import names_everywhere
from cni_calico.nodeagent.recording.exporting import ExportTeller
from cni_calico.nodeagent.recording.followed_lines import FollowedLines
from cni_calico.nodeagent.recording.keeper import RecorderKeeper
from cni_calico.nodeagent.recording.rules import RulesTeller
from cni_calico.nodeagent.recording.staged import StagedRules
from cni_calico.nodeagent.recording.staging import StagedFollower
from cni_calico.nodeagent.runtimes.names import names_keeper
from cni_calico.nodeagent.startup.completion import announce_network
from cni_calico.nodeagent.startup.doubts import Doubt
from cni_calico.nodeagent.status.alone import tell_alone
from cni_calico.nodeagent.status.metrics import Metrics
from cni_calico.nodeagent.status.pages import health_pages, metrics_files
from cni_calico.nodeagent.sync.switch import PolicySync
from cni_calico.nodeagent.view.follow import follow
from cni_calico.nodeagent.view.snapshot import Snapshot

END_S = 4.0


class Parts:
    """The parts that ``felix`` names as chosen, in this process; it may run already."""

    def __init__(self, felix: Felix) -> None:
        self._felix, self.context, self.node = felix, felix.context, felix.node
        self._chosen, self.stopping = felix.chosen, felix.stopping
        self._agent, policy, environ = felix.plane, felix.policy, felix.given
        self._log = self.context.log
        self._parser = FelixParser(felix.environ)
        settings = self.context.settings
        self._metrics = Metrics(felix.numbers, settings.run_dir, settings.state_dir)
        self._http_servers = HttpServers(self._log)
        self._metrics.janitor = JanitorCounters()
        self._metrics.policing = lambda: (policy.standing, policy.figures)
        # whoever starts the parts one at a time may leave it out
        self._agent.facts["cni_server"] = self._metrics.has_cni_server = VARIABLE in environ
        self._host_status = make_host_status(self.context, self.node)
        self._service_sources = None
        if self.context.kubernetes is not None:
            self._service_sources = ServiceSourcesLook(self.context, self._agent.facts)
        self._tunnels = None
        if "allocate-tunnel-addrs" in self._chosen:
            from cni_calico.nodeagent.keepers.tunnel_addresses import TunnelKeeper  # with all of IPAM

            self._tunnels = TunnelKeeper(self.context, self.node)
        bgp_environment = parse_bgp_environment(felix.environ, node_name=self.node)
        self._bgp = BgpKeeper(
            self.context,
            self.node,
            bgp_environment,
            facts=self._agent.facts,
            tell_sessions=policy.use_sessions,
            tell_routes=self._note_routes,
        )
        troubles = partial(_note, self.context.troubles)
        staged = StagedRules(self.node, self._log, felix.policy.wake, troubles)
        rules = RulesTeller(felix.policy.wake, staged=staged)
        follower = StagedFollower(
            self.context.followed,
            staged,
            stored=not self.context.is_kubernetes_datastore,
            note=partial(troubles, "listings of staged policies"),
        )
        self._recording = RecorderKeeper(
            self.node,
            settings.run_dir,
            self._log,
            own_command(),
            environ,
            lambda work: felix.thread("flows", work),
            self.stopping,
            troubles,
            rules,
            follower,
            self._may_record,
        )
        felix.heard = self._recording.heard
        felix.policy.rules.listeners, felix.policy.rules.records = (rules,), staged
        self._exporting = ExportTeller(self.node, settings.run_dir, self._log, troubles)
        told = settings.run_dir, self._log, troubles
        everywhere = names_everywhere(self.context.followed, self.context.followed_kubernetes, self.node, *told)
        start_sync, tell_sync = partial(felix.thread, "policy-sync"), partial(troubles, "policy sync")
        sync = PolicySync(self.context, policy.rules, policy.wake, start_sync, self.stopping, tell_sync)
        self._followers: tuple[Callable[[FelixSettings], None], ...] = (
            *(partial(_follow_names, lines) for lines in everywhere),
            sync.use,
        )
        self._source_check: SourceCheck | None = None
        self._had_tunl0 = False
        self._keys: PublicKeyKeeper | None = None
        self._doubts: tuple[Doubt, ...] = ()

    def run(self) -> int:
        """Run until a signal or a failure; returns the exit status."""
        for name, work in self._works():
            self._felix.thread(name, work)
        if not self._felix.threads:
            self._log.warning("nothing to do: " + " ".join(f"-{flag}" for flag in sorted(self._chosen)))
        self._felix.hand_to(self._use)
        self.stopping.wait()
        self._felix.end(time.monotonic() + END_S)
        self._http_servers.close()
        self.context.close()
        return 1 if self._felix.failed else 0

    def _works(self) -> list[tuple[str, Callable[[], object]]]:
        """BIRD and the tunnel addresses follow the agent's view; without an agent here, another thread provides the
        view.
        """
        stopping, works = self.stopping, {}
        if "felix" in self._chosen:
            works["owed"] = lambda: owed_keeper(self.context).run(stopping)
            if self.context.is_kubernetes_datastore:
                works["labels"] = lambda: label_keeper(self.context, self.node).run(stopping)
            if self.context.kubernetes is None:  # pods are named by Kubernetes
                works["names"] = lambda: names_keeper(self.context, self.node).run(stopping)
            if self._host_status is not None:
                host_status = self._host_status
                works["host-status"] = lambda: host_status.keeper.run(stopping)
            if self._service_sources is not None:
                service_sources = self._service_sources
                works["service-sources"] = lambda: service_sources.keeper.run(stopping)
            if self.context.settings.janitor:
                from cni_calico.nodeagent.keepers.oldest import oldest_keeper  # with IPAM, and what a DEL needs

                works["janitor"] = self._keep_clean
                works["oldest"] = lambda: oldest_keeper(self.context, self.node).run(stopping)
                if self.context.kubernetes is None:
                    from cni_calico.nodeagent.runtimes.attachments import attachments_keeper

                    works["attachments"] = lambda: attachments_keeper(self.context, self.node).run(stopping)
        elif self._chosen & {"confd", "allocate-tunnel-addrs"}:
            works["follower"] = lambda: follow(self.context.followed, self.node, self._use_only, stopping)
        if "confd" in self._chosen:
            self._metrics.bird = self._bgp.controller
            works["confd"] = lambda: self._bgp.run(stopping)
            if "felix" not in self._chosen:
                run_dir, log = self.context.settings.run_dir, self._log
                works["confd-status"] = lambda: tell_alone(run_dir, self._agent.facts, log, stopping)
        if (tunnels := self._tunnels) is not None:
            works["tunnel-addrs"] = lambda: tunnels.keeper.run(stopping)
        if "monitor-addresses" in self._chosen:
            works["addresses"] = lambda: address_keeper(self.context, self.node, self._doubt).run(stopping)
        if "monitor-token" in self._chosen and self._token_target() is not None:
            works["token"] = self._keep_token
        if "status-reporter" in self._chosen:
            works["status-reporter"] = lambda: Reporter(self.context, self.node).run(stopping)
        if "complete-startup" in self._chosen:
            has_server = self._metrics.has_cni_server
            works["complete"] = lambda: announce_network(self.context, stopping, cni_server=has_server)
        return list(works.items())

    def _use(self, snapshot: Snapshot, felix: FelixSettings) -> None:
        """Hand the agent's newest view to the parts; called in the agent's thread."""
        settings = self.context.settings
        self._metrics.snapshot = snapshot
        hosts = HostParameters(felix.failsafe_inbound, felix.failsafe_outbound, tuple(felix.interface_exclude))
        self._recording.use(
            wanted_recording(felix), snapshot.endpoints, felix.flow_retention_s, hosts, flow_limits(felix)
        )
        self._exporting.use(felix, snapshot.endpoints)
        for use in self._followers:
            use(felix)
        if self._host_status is not None:
            self._host_status.use(felix)
        if self._service_sources is not None:
            self._service_sources.use(snapshot)
        if self._tunnels is not None and not self._agent.held:  # an address tells other nodes that the device stands
            self._tunnels.use(snapshot)
        self._use_source_check(felix.aws_source_check)
        self._tell_keys(snapshot, felix.wireguard_every_s)
        self._bgp.use(self._agent.in_use, **_told_bgp(felix))
        has_tunl0 = "tunl0" in self._agent.devices
        if has_tunl0 and not self._had_tunl0:
            self._bgp.tunnel_made()
        self._had_tunl0 = has_tunl0
        health = (felix.health_host, felix.health_port) if felix.health_enabled else None
        self._http_servers.keep("health", health, lambda: health_pages(settings.run_dir))
        metrics = (felix.metrics_host, felix.metrics_port) if felix.metrics_enabled else None
        self._metrics.has_language, self._metrics.has_process = felix.metrics_go, felix.metrics_process
        self._metrics.has_wireguard = felix.metrics_wireguard
        self._http_servers.keep("metrics", metrics, lambda: {"/metrics": self._metrics.page}, metrics_files(felix))

    def _may_record(self, wanted: WantedRecording) -> bool:
        """Whether a recorder may be started: it waits until what is in force is; nobody's is not needed before."""
        standing = self._felix.policy.standing
        return standing.reports if not wanted.asked else standing.decided

    def _use_source_check(self, wanted: str) -> None:
        if self._source_check is None and wanted != NOT_CHANGED:
            from cni_calico.nodeagent.aws.source_check import SourceCheck

            self._source_check = SourceCheck(
                self._felix.given,
                self._log,
                self._agent.facts,
                lambda work: self._felix.thread("aws", work),
                self.stopping,
            )
        if self._source_check is not None:
            self._source_check.use(wanted)

    def _tell_keys(self, snapshot: Snapshot, every_s: int) -> None:
        if self._agent.public_keys and self._keys is None:
            from cni_calico.nodeagent.keepers.public_keys import PublicKeyKeeper

            keys = self._keys = PublicKeyKeeper(self.context, self.node)
            self._felix.thread("public-keys", lambda: keys.keeper.run(self.stopping))
        if self._keys is not None:
            self._keys.use(self._agent.public_keys, snapshot, self._agent.awaits, every_s)

    def _keep_clean(self) -> None:
        options = JanitorOptions()
        context = self.context
        cluster = Cluster(context.store, context.log, context.kubernetes_store, context.is_kubernetes_datastore)
        election = make_election(cluster, self.node, options.terms)
        Janitor(cluster, election, self._metrics.janitor or JanitorCounters(), options).run(self.stopping)

    def _token_target(self) -> TokenTarget | None:
        """The CNI plugin's kubeconfig, if there is a directory for it that we maintain."""
        settings = self.context.settings
        wanted = settings.manage_cni and isinstance(self.context.kubernetes, ApiNode)
        if not wanted or not os.path.isdir(os.path.dirname(settings.cni_kubeconfig)):
            return None
        own = f"{SERVICE_ACCOUNT_DIR}/token"
        return TokenTarget(settings.cni_kubeconfig, own_namespace(), settings.cni_service_account, own=own)

    def _keep_token(self) -> None:
        target, kubernetes = self._token_target(), self.context.kubernetes
        if target is not None and isinstance(kubernetes, ApiNode):
            tell = partial(_note, self.context.troubles, "the CNI plugin's token")
            keep_token(kubernetes.api, target, self.context.files, self._log, wait=self.stopping.wait, tell=tell)

    def _use_only(self, snapshot: Snapshot) -> None:
        if self._tunnels is not None:
            self._tunnels.use(snapshot)
        given = self._parser.parse(snapshot.felix_node, snapshot.felix_default, snapshot.felix_scoped)
        self._bgp.use(snapshot, **_told_bgp(given.settings))

    def _note_routes(self, bird: bool) -> None:
        """What BGPConfiguration says of who makes routes; the agent decides."""
        facts = self._agent.facts
        if facts.get(BIRD_MAKES_ROUTES) != bird:
            facts[BIRD_MAKES_ROUTES] = bird
            self._agent.wake()

    def _doubt(self, doubts: tuple[Doubt, ...]) -> None:
        for doubt in doubts:
            if doubt not in self._doubts:
                self._log.warning(doubt.text)
        self._doubts = doubts
        counts: dict[tuple[str, int], int] = {}
        for doubt in doubts:
            counts[doubt.code, doubt.family] = counts.get((doubt.code, doubt.family), 0) + 1
        self._felix.numbers.doubts = counts
        self._agent.facts["doubts"] = [doubt.text for doubt in doubts]


class _ToldBgp(TypedDict):
    agent_makes_routes: bool
    priorities: tuple[int, int]


def _told_bgp(felix: FelixSettings) -> _ToldBgp:
    makes = felix.program_cluster_routes == "Enabled" and not felix.route_sync_disabled
    return _ToldBgp(agent_makes_routes=makes, priorities=(felix.normal_priority, felix.normal_priority_v6))


def _note(troubles: dict[str, str], part: str, why: str) -> None:
    if why:
        troubles[part] = why
    else:
        troubles.pop(part, None)


def _follow_names(lines: FollowedLines, felix: FelixSettings) -> None:
    lines.use(wanted=names_all(felix))
