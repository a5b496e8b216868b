"""Follows live migrations, and says which workloads of this node get no route, and which an elevated one.

Rule: it exists only where a pod to which a machine came, or is to come, is on this node. The route of a machine that
has announced itself is made at once, by the thread that heard it; the data plane's next pass finds it. Then IPAM learns
where the machine is, because other nodes' routes may follow from that.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from select import POLLIN, poll
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Versioned
from cni_calico.datastore.kubernetes.layout import MIGRATION
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.announcements import Announcements
from cni_calico.kernel.host_routes import apply_host_routes, read_host_routes
from cni_calico.model.host import PROTO_CALICO, HostRoute
from cni_calico.model.keys import ResourceList
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.migration.states import (
    MigrationState,
    PodMigration,
    Role,
    next_state,
    parse_migration,
    select_role,
)
from cni_calico.nodeagent.view.snapshot import Snapshot

SWAP_S, SWAP_TRIES, SWAP_FIRST_S = 30.0, 5, 0.1
ROUTE_S = 5.0
_TROUBLE = "live migrations"
MovingPod = tuple[str, str]  # namespace and name of a pod
MakeRoutes = Callable[[WorkloadEndpoint], set[HostRoute]]


@dataclass(slots=True)
class _Track:
    """One workload; ``since``: when its state began."""

    endpoint: WorkloadEndpoint
    state: MigrationState = MigrationState.BASE
    since: float = 0.0
    listener: Announcements | None = None


def _decode(item: Versioned) -> PodMigration | None:
    return parse_migration(item.value)


class MigrationKeeper:
    """``use`` is called in the data plane's thread, the routes are made in one of its own, in the same namespace.
    ``wake`` asks for the next pass; ``elevated_routes`` makes those of an endpoint.
    """

    def __init__(
        self, context: Context, store: KubernetesStore, wake: Callable[[], None], elevated_routes: MakeRoutes
    ) -> None:
        self._context, self._wake, self._elevated_routes = context, wake, elevated_routes
        self._tracks: dict[MovingPod, _Track] = {}
        self._lock = threading.Lock()
        self._changed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._migrations: Cache[Any] = Cache(
            store,
            Kept(ResourceList(MIGRATION), _decode, keep_documents=False),
            Listeners(on_change=lambda key: wake()),
        )
        threading.Thread(target=self._listen, name="migrations", daemon=True).start()

    # -- the data plane's thread --------------------------------------------------------------------------------------

    def use(self, snapshot: Snapshot, wait_s: float) -> Mapping[str, MigrationState]:
        """By interface, the state of those workloads that do not simply have an ordinary route. ``wait_s``: how long
        other nodes take to follow.
        """
        migrations, error = self._migrations.records().values(), self._migrations.error
        is_known = self._migrations.synced or error is not None
        if error is None:
            self._context.troubles.pop(_TROUBLE, None)
        else:
            self._context.troubles[_TROUBLE] = f"virtual machines may be routed to the wrong node: {error}"
        under_way = [migration for migration in migrations if migration is not None]
        now, there = time.monotonic(), {(e.metadata.namespace, e.pod): e for e in snapshot.endpoints if e.pod}
        with self._lock:
            for place in self._tracks.keys() - there.keys():
                self._close(self._tracks.pop(place))
            for place, endpoint in there.items():
                self._follow(place, endpoint, select_role(endpoint, under_way), now, wait_s, is_known=is_known)
            moving = [track for track in self._tracks.values() if track.state is not MigrationState.BASE]
            states = {track.endpoint.interface_name: track.state for track in moving}
        os.eventfd_write(self._changed, 1)
        return states

    def _follow(
        self, place: MovingPod, endpoint: WorkloadEndpoint, role: Role, now: float, wait_s: float, *, is_known: bool
    ) -> None:
        track = self._tracks.get(place)
        if track is None:
            track = _Track(endpoint, since=now)
            if role is Role.TARGET and self._is_routed(endpoint):
                track.state = MigrationState.LIVE  # an earlier run has heard it
            if role is Role.NONE and not is_known:
                return
            self._tracks[place] = track
        track.endpoint = endpoint
        state = next_state(track.state, role, has_waited=now - track.since >= wait_s)
        if state is not track.state:
            self._context.log.info(f"pod {'/'.join(place)}: live migration: {track.state} -> {state}")
            track.state, track.since = state, now
            if state is MigrationState.WAIT:
                timer = threading.Timer(wait_s, self._wake)
                timer.daemon = True
                timer.start()
                self._swap_later(place, endpoint)
        addresses = frozenset(network.network_address for network in endpoint.ip_networks)
        if track.listener is not None and track.listener.addresses != addresses:
            self._close(track)  # the pod had none yet
        if state is MigrationState.TARGET and track.listener is None and addresses:
            with suppress(CalicoError):  # the interface is not there yet, or no longer: the next pass tries again
                track.listener = Announcements(endpoint.interface_name, addresses)
        elif state is not MigrationState.TARGET:
            self._close(track)

    def _is_routed(self, endpoint: WorkloadEndpoint) -> bool:
        """Whether the host has the elevated routes already."""
        try:
            actual = {(route.dst, route.device, route.metric) for route in read_host_routes(Deadline.after(ROUTE_S))}
        except CalicoError:
            return False
        wanted = {(route.dst, route.device, route.metric) for route in self._elevated_routes(endpoint)}
        return bool(wanted) and wanted <= actual

    def _close(self, track: _Track) -> None:
        if track.listener is not None:
            track.listener.close()
            track.listener = None

    # -- the thread that listens --------------------------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            with self._lock:
                waiting = {s.fileno() for t in self._tracks.values() if t.listener for s in t.listener.sockets}
            poller = poll()
            for descriptor in (self._changed, *waiting):
                poller.register(descriptor, POLLIN)
            poller.poll()
            with suppress(BlockingIOError):
                os.eventfd_read(self._changed)
            with self._lock:
                arrived = [(place, track) for place, track in self._tracks.items() if self._has_arrived(track)]
                for _, track in arrived:
                    track.state, track.since = MigrationState.LIVE, time.monotonic()
                    self._close(track)
            for place, track in arrived:
                self._route(place, track.endpoint)
                self._swap_later(place, track.endpoint)
            if arrived:
                self._wake()

    @staticmethod
    def _has_arrived(track: _Track) -> bool:
        return track.listener is not None and track.listener.has_arrived()

    def _route(self, place: MovingPod, endpoint: WorkloadEndpoint) -> None:
        """Make its routes, and remove those by which the agent reached it on the node where it was."""
        deadline, routes = Deadline.after(ROUTE_S), self._elevated_routes(endpoint)
        try:
            made = apply_host_routes(sorted(routes, key=str), (), deadline)
            wanted = {route.dst for route in routes}
            former = [
                route
                for route in read_host_routes(deadline)
                if route.dst in wanted and route.device != endpoint.interface_name and route.protocol == PROTO_CALICO
            ]
            made = [*made, *apply_host_routes((), former, deadline)]
        except CalicoError as e:
            self._context.log.error(f"cannot route to pod {'/'.join(place)}, to which its machine has come: {e}")
            return
        self._context.log.info(f"pod {'/'.join(place)}: its virtual machine has come")
        for _, error in made:
            self._context.log.error(f"cannot route to pod {'/'.join(place)}: {error}")

    # -- IPAM ---------------------------------------------------------------------------------------------------------

    def _swap_later(self, place: MovingPod, endpoint: WorkloadEndpoint) -> None:
        addresses = [network.network_address for network in endpoint.ip_networks]
        threading.Thread(target=self._swap, args=(place, addresses), name="swap", daemon=True).start()

    def _swap(self, place: MovingPod, addresses: list[Address]) -> None:
        """Make the pod the active owner of its machine's addresses; doing it again changes nothing."""
        from cni_calico.ipam.allocator import Allocator
        from cni_calico.ipam.lasting import LastingAddresses

        store, deadline = self._context.store, Deadline.after(SWAP_S)
        pauses, why = Backoff(SWAP_FIRST_S, SWAP_FIRST_S * 2**SWAP_TRIES), "it is not an owner of them"
        for _ in range(SWAP_TRIES):
            try:
                handles = set(Allocator(store).handles_of(addresses, deadline).values())
                lasting = LastingAddresses(store)
                if handles and all(lasting.swap(handle, *place, deadline) for handle in handles):
                    return
            except CalicoError as e:
                why = e.message
            time.sleep(pauses.next())
        self._context.log.error(
            f"cannot note in IPAM that the addresses of a virtual machine are at pod {'/'.join(place)} now: {why}; "
            "with VXLAN, or IPIP by the agent, other nodes go on sending to the node where it was"
        )
