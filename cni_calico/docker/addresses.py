"""The IPAM driver: addresses of Calico's pools for Docker.

Rule: each address has a handle of its own, which is in a file before it is assigned. What Docker releases is
released, or owed until it can be; an address that a dead endpoint of this node holds may be asked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.docker.context import DockerHost, call_deadline
from cni_calico.docker.documents import (
    ADDRESS_SPACES,
    ANY_POOL,
    EVERYWHERE,
    IPAM_CAPABILITIES,
    NOWHERE_V6,
    AddressRequest,
    RequestFields,
    parse_address,
    parse_pool,
    render_address,
    render_pool,
)
from cni_calico.docker.former import addresses_of, find_former, owe_address, owe_endpoint
from cni_calico.docker.links import is_attached
from cni_calico.docker.pools import read_pools
from cni_calico.docker.removal import (
    handle_of,
    now_or_later,
    owe,
    release_held,
    release_owed,
    soon,
    take_down,
)
from cni_calico.docker.state import DockerEndpoint, HeldAddress
from cni_calico.errors import CalicoError, InvalidConfig, IPAMError
from cni_calico.ipam.allocator import AssignRequest
from cni_calico.model.documents.codec import decode_reservation
from cni_calico.model.identity import LIBNETWORK
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import Address
from cni_calico.plugin.call.ready import require_ready
from cni_calico.plugin.network.host import Host

_LAST_MAX = 4096
_TURN_S = 1.0  # requests that meet in one block only slow each other down
MOVED_S = 60.0  # Docker has moved an interface into its container by then


class AddressDriver:
    """The calls of Docker's IPAM driver API, by name."""

    def __init__(self, host: DockerHost) -> None:
        self._host = host
        self._turn = threading.Lock()
        # by pool and container: one that starts again gets its last address, if nobody has got it meanwhile
        self._said_everywhere = False  # of IPv6, for the network that is being made
        there = [held for held in host.state.addresses.all() if held.container and held.address]
        self._last = {(held.pool, held.container): held.address for held in there}

    def get_capabilities(self, _: RequestFields) -> Mapping[str, Any]:
        return IPAM_CAPABILITIES

    def get_default_address_spaces(self, _: RequestFields) -> Mapping[str, Any]:
        self._said_everywhere = False
        return ADDRESS_SPACES

    def request_pool(self, fields: RequestFields) -> Mapping[str, Any]:
        """Raises InvalidConfig for a subnet that is no pool, and what the datastore raises."""
        asked = parse_pool(fields)
        is_again, self._said_everywhere = self._said_everywhere, asked.subnet is None and asked.family == 6
        if asked.subnet is None:
            # dockerd 20.10 asks again, without an end, while what it gets has the address of a nameserver of the host
            said = NOWHERE_V6 if is_again and asked.family == 6 else EVERYWHERE[asked.family]
            return render_pool(ANY_POOL[asked.family], said, asked.family)
        found = [pool for pool in read_pools(self._host, call_deadline()) if pool.cidr == asked.subnet]
        if not found:
            raise InvalidConfig(
                f"cannot use the subnet {asked.subnet}: no IP pool has this range (calicoctl get ippool)",
                details="make a pool of it with 'calicoctl apply', or leave --subnet out",
            )
        if not found[0].usable:
            raise InvalidConfig(
                f"cannot use the subnet {asked.subnet}: its IP pool {found[0].metadata.name} is disabled"
            )
        return render_pool(found[0].metadata.name, str(asked.subnet), asked.family)

    def release_pool(self, _: RequestFields) -> Mapping[str, Any]:
        return {}

    def request_address(self, fields: RequestFields) -> Mapping[str, Any]:
        """Raises CalicoError, with nothing held."""
        asked, host, deadline = parse_address(fields), self._host, call_deadline()
        require_ready(host.datastore, deadline)
        if asked.address is not None:
            self._take_over(str(asked.address), deadline)
        id = host.state.handles.take(host.boot)
        held = HeldAddress(id, host.boot, asked.pool_id, made_s=host.now(), container=asked.container)
        host.state.addresses.put(held)  # after a power failure the ID is enough
        try:
            address = self._assign_last(asked, held, deadline) or self._assign_any(asked, held, deadline)
            host.state.addresses.put(replace(held, address=str(address)))  # the handle is enough after a crash
        except CalicoError:
            self._give_back(held)
            raise
        if asked.container:
            self._last.pop((asked.pool_id, asked.container), None)
            self._last[asked.pool_id, asked.container] = str(address)
            while len(self._last) > _LAST_MAX:
                self._last.pop(next(iter(self._last)))
        return render_address(address)

    def release_address(self, fields: RequestFields) -> Mapping[str, Any]:
        """Also what is left of an endpoint, of which a killed dockerd says no more than this."""
        host, address = self._host, fields.address("Address")
        if address is None or address.is_link_local:
            return {}  # the gateway, which nobody has requested
        held = host.state.holding(str(address))
        if held is None:
            held = owe_address(host, str(address))
            now_or_later(host, held.address, lambda deadline: self._release_former(held, deadline))
            return {}
        host.state.addresses.change(held.id, owed=True)
        endpoint = host.state.endpoint_with(held.address)
        if endpoint is not None:
            host.state.endpoints.change(endpoint.id, owed=True)
        soon(host, held.address, lambda deadline: release_owed(host, held.id, deadline))
        return {}

    def _release_former(self, held: HeldAddress, deadline: Deadline) -> None:
        """With the endpoint that upstream's plugin has made: a killed dockerd does not delete it."""
        record = find_former(self._host, held.address, deadline)
        if record is None:
            release_held(self._host, held.id, deadline)
        else:
            owe_endpoint(self._host, record.endpoint, addresses=addresses_of(record))
            take_down(self._host, record.endpoint, deadline)

    # -- steps --------------------------------------------------------------------------------------------------------

    def _assign_last(self, asked: AddressRequest, held: HeldAddress, deadline: Deadline) -> Address | None:
        """The address that the container had; None if it had none, or it cannot be had now."""
        last = self._last.get((asked.pool_id, asked.container)) if asked.container and asked.address is None else None
        if last is None:
            return None
        address = ip_address(last)
        if not any(pool.usable and address in pool.cidr for pool in read_pools(self._host, deadline)):
            return None
        before = self._host.state.holding(last)
        try:
            if before is not None and before.owed:  # Docker has its answer, and asks again, before it is released
                release_owed(self._host, before.id, deadline)
            return self._assign(replace(asked, address=address), held, deadline)
        except (IPAMError, InvalidConfig):
            return None

    def _assign_any(self, asked: AddressRequest, held: HeldAddress, deadline: Deadline) -> Address:
        """Where none is free, also one whose release Docker has been told of already: another call may have ended it
        since the first attempt, so that none is owed. Raises CalicoError.
        """
        try:
            return self._assign(asked, held, deadline)
        except IPAMError:
            for id in [each.id for each in self._host.state.addresses.all() if each.owed]:
                release_owed(self._host, id, deadline)
            return self._assign(asked, held, deadline)

    def _assign(self, asked: AddressRequest, held: HeldAddress, deadline: Deadline) -> Address:
        """Raises CalicoError."""
        request = self._plan(asked, held, deadline)
        with _Turn(self._turn, deadline):
            return self._host.datastore.allocator.assign(request, deadline)[0].address

    def _plan(self, asked: AddressRequest, held: HeldAddress, deadline: Deadline) -> AssignRequest:
        host = self._host
        base = AssignRequest(host.node, handle_of(held.id), {"node": host.node, "orchestrator": LIBNETWORK})
        family = next((family for family, pool_id in ANY_POOL.items() if pool_id == asked.pool_id), 0)
        pool = None
        if not family:
            pool = next(
                (pool for pool in read_pools(self._host, deadline) if pool.metadata.name == asked.pool_id), None
            )
            if pool is None:
                raise InvalidConfig(f"cannot assign an address: there is no IP pool {asked.pool_id} any more")
            family = pool.cidr.version
        if asked.address is not None:
            if asked.address.version != family or (pool is not None and asked.address not in pool.cidr):
                outside = f"pool {asked.pool_id}" if pool is not None else "the network's pools"
                raise InvalidConfig(f"cannot assign {asked.address}: it is outside of {outside}")
            self._require_not_reserved(asked.address, deadline)
            return replace(base, addresses=(asked.address,))
        pools = (pool.metadata.name,) if pool is not None else ()
        return replace(base, num4=1, pools4=pools) if family == 4 else replace(base, num6=1, pools6=pools)

    def _require_not_reserved(self, address: Address, deadline: Deadline) -> None:
        for item in self._host.datastore.store.list(ResourceList("IPReservation"), deadline).items:
            if isinstance(item.key, ResourceKey):
                reservation = decode_reservation(item.key, item.value)
                if any(address in cidr for cidr in reservation.reserved_cidrs):
                    raise InvalidConfig(
                        f"cannot assign {address}: it is reserved (IPReservation {reservation.metadata.name})"
                    )

    def _take_over(self, address: str, deadline: Deadline) -> None:
        """Take down a dead endpoint that has this address; of a living one the allocator says that it is in use. Raises
        CalicoError.
        """
        host = self._host
        held, endpoint = host.state.holding(address), host.state.endpoint_with(address)
        if held is None or (endpoint is None and not held.owed):
            return
        if endpoint is not None:
            if not endpoint.owed and self._may_live(endpoint, deadline):
                return
            owe(host, endpoint)
        release_owed(host, held.id, deadline)

    def _may_live(self, endpoint: DockerEndpoint, deadline: Deadline) -> bool:
        if self._host.now() - endpoint.made_s < MOVED_S:
            return True
        with Host() as kernel:
            return is_attached(kernel, endpoint.id, deadline)

    def _give_back(self, held: HeldAddress) -> None:
        """What was perhaps assigned under a handle of which nobody knows."""
        host = self._host
        host.state.addresses.change(held.id, owed=True)
        now_or_later(host, f"handle {handle_of(held.id)}", lambda deadline: release_held(host, held.id, deadline))


class _Turn:
    """One after the other, if that does not take long."""

    def __init__(self, lock: threading.Lock, deadline: Deadline) -> None:
        self._lock, self._deadline, self._has = lock, deadline, False

    def __enter__(self) -> None:
        self._has = self._lock.acquire(timeout=max(0.0, self._deadline.sooner(_TURN_S).remaining_s()))

    def __exit__(self, *_: object) -> None:
        if self._has:
            self._lock.release()
