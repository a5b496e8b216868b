"""The load-balancer controller: assigns IPAM addresses to Services of type LoadBalancer and writes them to their
status.

Rule: an address is assigned before the status names it, and removed from the status before it is released; so if the
controller dies in between, no two Services claim the same address. Before a release, the Service is read from the API
server, and only the handle of this Service is released. If a request cannot be served, the Service gets an Event and
keeps its status.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from operator import eq
from typing import Any

from cni_calico.controllers.attempts import CALL_S, LOOK_S, Attempts, Leading, Sight
from cni_calico.controllers.loadbalancer.rules import (
    AddressWish,
    BadRequest,
    LoadBalancerService,
    desired_ingress,
    fits,
    is_managed,
    missing_families,
    parse_wish,
    read_service,
    select_kept,
)
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.changed_keys import ChangedKeys
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import CORE_ROOT, SERVICE, object_path_of_kind, quote
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners, decoding
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreError, IPAMError, LeaseLost, TryAgain
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.virtual import VirtualAddresses
from cni_calico.model.documents.codec import decode_pool
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.kubernetes.events import warning_event
from cni_calico.model.resources import Address, IPPool
from cni_calico.model.timestamps import rfc3339

NAME = "loadbalancer"
REASON = "CalicoLoadBalancer"


class ServiceDoor:
    """Reads Services from the API server and writes their status. ``remaining_s`` returns how long the lease is still
    ours; every write checks it.
    """

    def __init__(self, kubernetes: KubernetesStore, remaining_s: Callable[[], float]) -> None:
        self._kubernetes = kubernetes
        self._remaining_s = remaining_s

    def read(self, key: ResourceKey, deadline: Deadline) -> Mapping[str, Any] | None:
        """The Service as it is now. Raises DatastoreError."""
        found = self._kubernetes.get(key, deadline)
        return None if found is None else found.value

    def write_ingress(
        self, key: ResourceKey, obj: Mapping[str, Any], ingress: Iterable[str], deadline: Deadline
    ) -> None:
        """Raises TryAgain when the Service has changed since it was read, LeaseLost, DatastoreError."""
        status = dict(obj.get("status") or {})
        balancer = dict(status.get("loadBalancer") or {})
        known = {entry.get("ip"): entry for entry in balancer.get("ingress") or ()}
        balancer["ingress"] = [known.get(text, {"ip": text}) for text in ingress]
        body = {**obj, "apiVersion": "v1", "kind": SERVICE, "status": {**status, "loadBalancer": balancer}}
        doing, path = f"write the status of Service {key.namespace}/{key.name}", f"{object_path_of_kind(key)}/status"
        reply = self._kubernetes.api.send(
            ApiRequest("PUT", path, doing, body=body, expect=(404, 409)), self._while_ours(doing, deadline)
        )
        if reply.status >= 400:
            raise TryAgain(f"cannot {doing}: it has just been changed or deleted")

    def tell(self, service: LoadBalancerService, text: str, deadline: Deadline) -> None:
        """Create an Event that says why. Raises LeaseLost, DatastoreError."""
        subject = {"kind": SERVICE, "namespace": service.namespace, "name": service.name, "uid": service.uid}
        body = warning_event(subject, REASON, text, rfc3339(time.time()), "calico-kube-controllers")
        doing = f"tell Service {service.namespace}/{service.name} why it has no address"
        path = f"{CORE_ROOT}/namespaces/{quote(service.namespace)}/events"
        self._kubernetes.api.send(
            ApiRequest("POST", path, doing, body=body, expect=(404, 409)), self._while_ours(doing, deadline)
        )

    def _while_ours(self, doing: str, deadline: Deadline) -> Deadline:
        left_s = self._remaining_s()
        if left_s <= 0:
            raise LeaseLost(f"cannot {doing}: the lease that allows it is no longer ours")
        return deadline.sooner(left_s)


class ServiceAddresses:
    """Brings one Service's addresses and status into the wanted state. To be used by one thread."""

    def __init__(self, addresses: VirtualAddresses, door: ServiceDoor, say: Callable[[str], None]) -> None:
        self._addresses = addresses
        self._door = door
        self._say = say
        self._handles: dict[ResourceKey, set[str]] = {}  # handles that may hold addresses, by their Service
        self._told: dict[ResourceKey, str] = {}

    def remember(self, deadline: Deadline) -> set[ResourceKey]:
        """Returns the Services that hold addresses. Raises DatastoreError."""
        found = set()
        for handle_id, said in self._addresses.handles(deadline).items():
            if said.get("service") and said.get("namespace"):
                key = ResourceKey(SERVICE, said["service"], said["namespace"])
                self._handles.setdefault(key, set()).add(handle_id)
                found.add(key)
        return found

    def concerns(self, key: ResourceKey, service: LoadBalancerService | None, assign_ips: str) -> bool:
        return key in self._handles or (service is not None and is_managed(service, assign_ips))

    def reconcile(self, key: ResourceKey, assign_ips: str, pools: Collection[IPPool] | None, deadline: Deadline) -> int:
        """Returns the number of writes. ``pools`` is None if some cannot be read: then no address is released because
        of its pool.

        Raises CalicoError.
        """
        obj = self._door.read(key, deadline)
        service = None if obj is None else read_service(obj)
        managed = service is not None and is_managed(service, assign_ips)
        writes = 0
        for handle_id in sorted(self._handles.get(key, ())):
            if service is None or handle_id != service.handle_id:
                writes += len(self._addresses.release(handle_id, deadline))
                self._forget(key, handle_id)
        if service is None or obj is None:
            self._told.pop(key, None)
            return writes
        if managed:
            return writes + self._serve(key, obj, service, pools, deadline)
        if service.handle_id in self._handles.get(key, ()):
            held = {str(address) for address in self._addresses.held(service.handle_id, deadline)}
            rest = [text for text in service.ingress if text not in held]
            if len(rest) < len(service.ingress):
                self._door.write_ingress(key, obj, rest, deadline)
                writes += 1
            writes += len(self._addresses.release(service.handle_id, deadline))
            self._forget(key, service.handle_id)
        return writes

    def _forget(self, key: ResourceKey, handle_id: str) -> None:
        self._handles[key].discard(handle_id)
        if not self._handles[key]:
            del self._handles[key]

    def _serve(
        self,
        key: ResourceKey,
        obj: Mapping[str, Any],
        service: LoadBalancerService,
        pools: Collection[IPPool] | None,
        deadline: Deadline,
    ) -> int:
        try:
            wish = parse_wish(service)
        except BadRequest as e:
            self._tell(key, service, str(e), deadline)
            return 0
        held = set(self._addresses.held(service.handle_id, deadline))
        believed = pools is None and not wish.addresses
        fitting = {address for address in held if believed or fits(address, wish, tuple(pools or ()))}
        kept = select_kept(service, fitting)
        unfit = held - kept
        # also covers an address that was assigned although the answer was lost
        self._handles.setdefault(key, set()).add(service.handle_id)
        assigned, problems = self._assign(service, wish, kept, unfit, deadline)
        if problems:
            self._tell(key, service, "; ".join(problems), deadline)
        else:
            self._told.pop(key, None)
        writes, has = len(assigned), kept | assigned
        wanted = desired_ingress(wish, has)
        if wanted != service.ingress and (has or not problems or unfit):
            self._door.write_ingress(key, obj, wanted, deadline)
            writes += 1
        for address in sorted(unfit, key=str):
            self._addresses.release_address(address, service.handle_id, deadline)
            writes += 1
        return writes

    def _assign(
        self,
        service: LoadBalancerService,
        wish: AddressWish,
        kept: set[Address],
        unfit: set[Address],
        deadline: Deadline,
    ) -> tuple[set[Address], list[str]]:
        """The addresses that were assigned, and why any others were not."""
        assigned: set[Address] = set()
        problems: list[str] = []
        for address in wish.addresses:
            if address not in kept:
                try:
                    self._addresses.assign_address(address, service.handle_id, service.attributes, deadline)
                    assigned.add(address)
                except IPAMError as e:
                    problems.append(e.message)
        for family in missing_families(wish, kept):
            try:
                names = wish.pools_of(family)
                assigned.add(
                    self._addresses.assign(service.handle_id, service.attributes, family, names, deadline, unfit)
                )
            except IPAMError as e:
                problems.append(e.message)
        return assigned, problems

    def _tell(self, key: ResourceKey, service: LoadBalancerService, text: str, deadline: Deadline) -> None:
        """Create the Event, unless the last one said the same."""
        if self._told.get(key) == text:
            return
        self._say(f"Service {service.namespace}/{service.name}: {text}")
        self._told[key] = text
        try:
            self._door.tell(service, text, deadline)
        except DatastoreError as e:
            self._say(str(e))


class LoadBalancerLoop:
    """``assign_ips``: which Services get addresses."""

    def __init__(self, kubernetes: KubernetesStore, leading: Leading, assign_ips: Callable[[], str]) -> None:
        self._kubernetes, self._leading, self._assign_ips = kubernetes, leading, assign_ips
        self._log, self.numbers = leading.log, leading.numbers
        self._sight = Sight(NAME, leading.numbers, leading.log)
        self._attempts = Attempts(
            lambda key: f"{NAME}: {key.namespace}/{key.name}", leading.leads, leading.numbers, leading.log
        )

    def run(self, stopping: threading.Event) -> None:
        """Work whenever we lead, until ``stopping``."""
        self._leading.work(lambda: self._lead(stopping), stopping)

    def _lead(self, stopping: threading.Event) -> None:
        services, pools = ChangedKeys(), ChangedKeys()
        caches: tuple[Cache[LoadBalancerService], Cache[IPPool]] = (
            Cache(
                self._kubernetes,
                Kept(ResourceList(SERVICE), lambda item: read_service(item.value), keep_documents=False, same=eq),
                Listeners(on_change=services.note),
            ),
            Cache(
                self._leading.store,
                Kept(ResourceList("IPPool"), decoding(decode_pool), keep_documents=False, same=eq),
                Listeners(on_change=pools.note),
            ),
        )
        try:
            addresses = VirtualAddresses(Allocator(self._leading.store))
            door = ServiceDoor(self._kubernetes, self._leading.remaining_s)
            work = ServiceAddresses(addresses, door, lambda text: self._log.warning(f"{NAME}: {text}"))
            self._rounds(work, addresses, caches, services, pools, stopping)
        finally:
            stop_caches(caches)
            self._attempts.forget()

    def _rounds(
        self,
        work: ServiceAddresses,
        addresses: VirtualAddresses,
        caches: tuple[Cache[LoadBalancerService], Cache[IPPool]],
        services: ChangedKeys,
        pools: ChangedKeys,
        stopping: threading.Event,
    ) -> None:
        tasks = self._attempts.tasks
        everything_at, assign_ips = 0.0, ""
        while not stopping.is_set() and self._leading.leads():
            if not self._sight.is_clear(caches):
                stopping.wait(LOOK_S)
                continue
            now = time.monotonic()
            tasks.note(_services(services.take()), now)
            if pools.take() or assign_ips != self._assign_ips() or now >= everything_at:
                assign_ips = self._assign_ips()
                try:
                    tasks.note(work.remember(Deadline.after(CALL_S)), now)
                    addresses.leave_blocks_outside(tuple(caches[1].records().values()), Deadline.after(CALL_S))
                except CalicoError as e:
                    self._fail(str(e))
                    pools.note((ResourceKey("IPPool", ""),))  # check again
                    stopping.wait(LOOK_S)
                tasks.note(_services(caches[0].items()), now)
                everything_at = now + self._leading.period_s()
            self._round(work, caches, assign_ips)
            if not tasks.due(time.monotonic(), 1) and not pools.any.is_set():
                services.any.wait(LOOK_S)

    def _round(
        self,
        work: ServiceAddresses,
        caches: tuple[Cache[LoadBalancerService], Cache[IPPool]],
        assign_ips: str,
    ) -> None:
        known = caches[1].records()
        pools = tuple(known.values()) if len(known) == len(caches[1].items()) else None

        def reconcile(key: ResourceKey, deadline: Deadline) -> int:
            if not work.concerns(key, caches[0].record(key), assign_ips):
                return 0
            return work.reconcile(key, assign_ips, pools, deadline)

        self._attempts.round(reconcile)

    def _fail(self, text: str) -> None:
        self.numbers.failures += 1
        self._log.warning(f"{NAME}: {text}")


def _services(keys: Iterable[Key]) -> set[ResourceKey]:
    return {key for key in keys if isinstance(key, ResourceKey)}
