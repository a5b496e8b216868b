"""``calico-node -rehearse``: what this version of the agent would change on this host if it were started here now.

Rule: the records, the environment and the kernel are the live ones, the calculations are the agent's own, and nothing
is changed: before anything else is done the process loses what it could change the host with (kernel/read_only.py).
What cannot be rehearsed is trouble, and is in the answer, beside what could.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from cni_calico import BUILD, __version__
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.host_routes import read_host_routes
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.read_only import become_read_only
from cni_calico.kernel.tunnels import read_tunnels
from cni_calico.log import SILENT
from cni_calico.nodeagent.bgp.config.snapshot import parse_bgp_environment
from cni_calico.nodeagent.bgp.keeper import BgpKeeper
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.configurations import sources_of
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.open import Opened, open_context
from cni_calico.nodeagent.context.settings import without_effect
from cni_calico.nodeagent.context.unused import unused_of
from cni_calico.nodeagent.dataplane.desired import Desired, desired_state, with_routes_in_doubt
from cni_calico.nodeagent.dataplane.parts.tunnels import DEVICES
from cni_calico.nodeagent.dataplane.routes import decide_writer
from cni_calico.nodeagent.policing.enforce.filters import NFTABLES
from cni_calico.nodeagent.policing.feed.parameters import select_tunnels
from cni_calico.nodeagent.rehearsal.bird import describe_bird
from cni_calico.nodeagent.rehearsal.connections import judge_connections
from cni_calico.nodeagent.rehearsal.dataplane import RehearsedPlane, rehearse_plane
from cni_calico.nodeagent.rehearsal.files import RehearsedFiles
from cni_calico.nodeagent.rehearsal.found import Rehearsed
from cni_calico.nodeagent.rehearsal.policies import RehearsedPolicies, rehearse_policies
from cni_calico.nodeagent.rehearsal.records import rehearse_startup
from cni_calico.nodeagent.view.last_valid import VIEW_FILE, LastValid
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.nodeagent.view.sources import Sources

_DEADLINE_S, _STEP_S = 300.0, 0.05
RECORDS, TABLES, BIRD = "records", "tables", "BIRD"


def rehearse(environ: Mapping[str, str]) -> str:
    """The document, as JSON. For a process that does nothing else. Raises CalicoError if nothing can be said."""
    path = environ.get("DATASTORE_PATH", "").strip()
    become_read_only([os.path.dirname(path)] if path and environ.get("DATASTORE_TYPE", "").strip() == "local" else [])
    quiet = {**environ, "CALICO_DISABLE_FILE_LOGGING": "true"}
    opened = open_context(quiet, "rehearse", lambda seconds: True)
    try:
        found = Rehearsed()
        _Rehearsal(opened, found, Deadline.after(_DEADLINE_S)).run()
        return json.dumps(found.document(f"v{__version__}{BUILD}", opened.node), indent=1) + "\n"
    finally:
        opened.context.store.close()


class _Rehearsal:
    """One. Each part that fails is trouble, and the others go on."""

    def __init__(self, opened: Opened, found: Rehearsed, deadline: Deadline) -> None:
        self._context: Context = replace(opened.context, files=RehearsedFiles(), log=SILENT)
        self._node, self._environ = opened.node, opened.environ
        self._found, self._deadline = found, deadline
        found.unused += [*(f"not used: {text}" for text in opened.wrong), *without_effect(opened.environ)]
        self._bird_makes: bool | None = None

    def run(self) -> None:
        self._try(RECORDS, self._records)
        snapshot = self._snapshot()
        self._settings(snapshot)
        self._try(BIRD, lambda: self._bird(snapshot))
        felix = self._felix(snapshot)
        desired, policies = self._desired(snapshot, felix), RehearsedPolicies()
        try:
            policies = self._policies(snapshot, felix, desired)
        except (CalicoError, OSError) as e:
            self._found.trouble.append(f"{TABLES}: {e}")
        settings = self._context.settings
        by_nftables = policies.standing.by == NFTABLES
        plane = RehearsedPlane(desired, felix, policies.standing, by_nftables, f"{settings.state_dir}/mtu")
        rehearse_plane(plane, self._found, self._deadline)
        if policies.standing.in_force and not policies.was_there:
            self._try(
                "connections",
                lambda: judge_connections(policies.wanted, settings.run_dir, self._found, self._deadline),
            )

    def _try(self, what: str, part: Callable[[], object]) -> None:
        try:
            part()
        except (CalicoError, OSError) as e:
            self._found.trouble.append(f"{what}: {e}")

    # -- what is there ------------------------------------------------------------------------------------------------

    def _snapshot(self) -> Snapshot:
        """Raises CalicoError: without the records nothing can be said."""
        settings, changed = self._context.settings, threading.Event()
        sources = Sources(
            self._context.followed,
            self._node,
            changed.set,
            use_pod_cidr=settings.use_pod_cidr,
            brief=self._context.is_kubernetes_datastore,
            partial_blocks=self._context.relayed is not None,
            last_valid=LastValid(self._context.files, self._context.log, settings.state_dir, VIEW_FILE),
            floating=lambda felix: parse_felix(self._environ, *felix).settings.floating_ips == "Enabled",
        )
        try:
            sources.wait_synced(self._deadline)
            while not sources.has_asked and self._deadline.remaining_s() > 0:
                changed.wait(_STEP_S)
                changed.clear()
            snapshot = sources.snapshot()
        finally:
            sources.stop()
        self._found.uncertain += [f"{key} cannot be read" for key in sorted(map(str, snapshot.unread))]
        return snapshot

    def _felix(self, snapshot: Snapshot) -> FelixSettings:
        parsed = parse_felix(self._environ, snapshot.felix_node, snapshot.felix_default, snapshot.felix_scoped)
        return decide_writer(parsed.settings, self._bird_makes, self._context.settings.backend)[0]

    def _settings(self, snapshot: Snapshot) -> None:
        given = snapshot.felix_node, snapshot.felix_default, snapshot.felix_scoped
        parsed = parse_felix(self._environ, *given)
        said = [*parsed.errors, *parsed.warnings]
        for label, source in sources_of(self._environ, *given):
            for lower, (name, text) in source.items():
                row, shown = unused_of(lower), f"{label.format(name)}={text!r}"
                if row is not None and text and not any(known.startswith(shown) for known in said):
                    said.append(f"{shown}: {row.here}")
        self._found.unused += said

    def _desired(self, snapshot: Snapshot, felix: FelixSettings) -> Desired:
        interfaces = read_interfaces(self._deadline)
        desired = desired_state(snapshot, interfaces, felix, self._context.settings.backend)
        if snapshot.unproven or snapshot.unread_of("WorkloadEndpoint"):
            desired = with_routes_in_doubt(desired, snapshot, read_host_routes(self._deadline), felix)
        self._found.notes += desired.problems
        return desired

    # -- what would change --------------------------------------------------------------------------------------------

    def _records(self) -> None:
        for text in rehearse_startup(self._context, self._deadline):
            self._found.change(RECORDS, text)

    def _bird(self, snapshot: Snapshot) -> None:
        def agent_makes(bird: bool) -> bool:
            self._bird_makes = bird
            felix = self._felix(snapshot)
            return felix.program_cluster_routes == "Enabled" and not felix.route_sync_disabled

        environment = parse_bgp_environment(self._environ, node_name=self._node)
        config = BgpKeeper(self._context, self._node, environment).rehearse(snapshot, agent_makes, self._deadline)
        self._found.notes += map(str, config.problems)
        for text in describe_bird(config.files, self._context.settings.bird_config_dir, self._context.files):
            self._found.change(BIRD, text)

    def _policies(self, snapshot: Snapshot, felix: FelixSettings, desired: Desired) -> RehearsedPolicies:
        there = read_tunnels(DEVICES, self._deadline)
        wanted = {name: device.port for name, device in desired.devices.items() if device.port}
        ports = wanted | {name: device.port for name, device in there.items() if device.port}
        devices = frozenset((*desired.devices, *there))
        tunnels = select_tunnels(snapshot, felix, self._context.settings.backend, devices, ports.values())
        pools = frozenset(pool.cidr for pool in snapshot.pools)
        policies = rehearse_policies(self._context, self._node, felix, tunnels, self._deadline, pools)
        for text in policies.differences:
            self._found.change(TABLES, text)
        standing = policies.standing
        self._found.notes += [f"then {standing.sentence}", *standing.problems, *standing.warnings, *standing.notes]
        return policies
