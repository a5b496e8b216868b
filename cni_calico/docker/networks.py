"""The network driver: networks, and containers that join and leave them.

Rule: a container that starts is closed before its interface is up, and its start waits for its policy; one that
ends is taken down or owed, and Docker is always answered that it is: of its record as soon as that is owed. Each
endpoint's calls take turns.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.daemon.doorbell import ring_bell
from cni_calico.deadline import Deadline
from cni_calico.directories import FORWARD_BELL
from cni_calico.docker.context import DockerHost, call_deadline, start_deadline
from cni_calico.docker.documents import (
    HOPS,
    NETWORK_CAPABILITIES,
    NO_GATEWAY_NEEDED,
    MalformedRequest,
    RequestFields,
    next_hops,
    parse_endpoint,
    parse_network,
    parse_ports,
    render_join,
)
from cni_calico.docker.former import owe_endpoint
from cni_calico.docker.identify import find_owner, identify, record_endpoint
from cni_calico.docker.links import add_next_hop, ensure_gateway, ensure_routes, make_link
from cni_calico.docker.ports import render_forward
from cni_calico.docker.records import write_ports
from cni_calico.docker.removal import leave, now_or_later, soon, take_down
from cni_calico.docker.state import JOINED, DockerEndpoint, DockerNetwork
from cni_calico.errors import AddressInUse, CalicoError, InvalidConfig
from cni_calico.kernel.mtu import mtu_of_default_route
from cni_calico.model.resources import Address
from cni_calico.plugin.former_connections import remove_former_connections
from cni_calico.plugin.mtu import DEFAULT_MTU, MIN_MTU
from cni_calico.plugin.network.host import Host
from cni_calico.plugin.network.plan import format_mac, random_mac

_SANDBOX_S, _SANDBOX_LOOK_S, _SANDBOX_LAST_S = 20.0, 0.01, 0.5
_IDENTIFY_S = 2.0  # Docker's next call for the endpoint waits so long at most


class NetworkDriver:
    """The calls of Docker's network driver API, by name."""

    def __init__(self, host: DockerHost) -> None:
        self._host = host
        self._waits: dict[str, Deadline] = {}  # what the start of a container waits for, and how long

    def activate(self, _: RequestFields) -> Mapping[str, Any]:
        """Docker has begun, and so it may just have let its FORWARD chain drop what it does not know."""
        ring_bell(f"{self._host.services.run_dir}/{FORWARD_BELL}")
        return {"Implements": ["NetworkDriver"]}

    def get_capabilities(self, _: RequestFields) -> Mapping[str, Any]:
        return NETWORK_CAPABILITIES

    def gw_alloc_check(self, _: RequestFields) -> Mapping[str, Any]:
        return NO_GATEWAY_NEEDED

    def create_network(self, fields: RequestFields) -> Mapping[str, Any]:
        """Raises InvalidConfig, KernelError."""
        asked = parse_network(fields)
        self._host.state.networks.put(
            DockerNetwork(asked.id, asked.mtu, asked.ingress, made_s=self._host.now()), durable=True
        )
        return {}

    def delete_network(self, fields: RequestFields) -> Mapping[str, Any]:
        self._host.state.networks.remove(fields.id("NetworkID"))
        return {}

    def create_endpoint(self, fields: RequestFields) -> Mapping[str, Any]:
        """Raises CalicoError, with nothing done; the kernel is not touched."""
        asked, host = parse_endpoint(fields), self._host
        with host.locks.hold(asked.id, call_deadline()):
            for address in asked.addresses:
                self._require_free(asked.id, address)
            mac = asked.mac or format_mac(random_mac(os.urandom(6)))
            endpoint = DockerEndpoint(
                asked.id, asked.network, host.boot, host.now(), [str(address) for address in asked.addresses], mac,
                dict(asked.labels),
            )  # fmt: skip
            host.state.endpoints.put(endpoint)  # after a power failure its record is enough to find it (former.py)
        return {"Interface": {} if asked.mac else {"MacAddress": mac}}

    def _require_free(self, endpoint: str, address: Address) -> None:
        held = self._host.state.holding(str(address))
        if held is None or held.owed:
            raise InvalidConfig(
                f"cannot use {address}: its IPAM driver is another one", details="use --ipam-driver calico-ipam"
            )
        other = self._host.state.endpoint_with(str(address))
        if other is not None and other.id != endpoint:
            raise AddressInUse(f"cannot use {address}: endpoint {other.id[:12]} has it")

    def delete_endpoint(self, fields: RequestFields) -> Mapping[str, Any]:
        host, id = self._host, fields.id("EndpointID")
        found = host.state.endpoints.get(id)
        if found is not None:
            host.state.endpoints.change(id, owed=True)
        else:  # upstream's plugin has made it, or our file of it is lost
            owe_endpoint(host, id)
        is_known = found is not None and not found.former  # else its addresses are judged by its record
        act = soon if is_known else now_or_later
        act(host, f"endpoint {id[:12]}", lambda deadline: take_down(host, id, deadline))
        return {}

    def join(self, fields: RequestFields) -> Mapping[str, Any]:
        """The interface is closed until its policy is in force. Raises CalicoError, with everything undone."""
        host, id, sandbox = self._host, fields.id("EndpointID"), fields.text("SandboxKey")
        with host.locks.hold(id, call_deadline()):
            endpoint = host.state.endpoints.get(id)
            if endpoint is None or endpoint.owed:
                raise MalformedRequest(f"cannot connect the container: there is no endpoint {id[:12]}")
            addresses = [ip_address(address) for address in endpoint.addresses]
            waits = host.gate.is_due()
            endpoint = self._place(replace(endpoint, step=JOINED, sandbox=sandbox, waits=waits))
            deadline = start_deadline()
            try:
                is_recorded = self._set_up(endpoint, addresses, deadline)
            except CalicoError:
                self._undo(id)
                raise
        if not is_recorded:
            self._identify_later(id)
        elif waits:
            self._waits[id] = Deadline.after(host.settings.policy_wait_s)
        return render_join(id, addresses, host.settings.interface_prefix, endpoint.hop)

    def endpoint_oper_info(self, fields: RequestFields) -> Mapping[str, Any]:
        """The last call before the container's program runs: it waits for the policy that Join has asked for, while
        Docker has moved the interface. Without the policy the interface stays closed.
        """
        host, id = self._host, fields.id("EndpointID")
        until = self._waits.pop(id, None)
        if until is not None and not self._is_in_force(id, until):
            host.log.warning(
                f"endpoint {id[:12]} starts closed: its policy is not known to be in force after "
                f"{host.settings.policy_wait_s:g} s; it opens as soon as calico-node says that it is"
            )
        return {"Value": {}}

    def _is_in_force(self, id: str, until: Deadline) -> bool:
        """Other calls take the turn meanwhile: containers that end do not wait for this."""
        host = self._host
        host.turns.release()
        try:
            return host.gate.wait(id, until)
        finally:
            host.turns.acquire()

    def _place(self, endpoint: DockerEndpoint) -> DockerEndpoint:
        """Give it the first next hop that its container does not have yet, and write its file. Raises CalicoError."""
        host = self._host
        with host.locks.hold(f"sandbox {endpoint.sandbox}", call_deadline()):
            mates = (each for each in host.state.endpoints.all() if each.sandbox and each.sandbox == endpoint.sandbox)
            taken = {each.hop for each in mates if each.id != endpoint.id}
            hop = next((hop for hop in range(1, HOPS + 1) if hop not in taken), 0)
            if not hop:
                raise InvalidConfig(f"cannot connect the container: it has {HOPS} networks of Calico already")
            placed = {"step": endpoint.step, "sandbox": endpoint.sandbox, "waits": endpoint.waits, "hop": hop}
            host.state.endpoints.change(endpoint.id, **placed)
        return replace(endpoint, hop=hop)

    def _set_up(self, endpoint: DockerEndpoint, addresses: list[Address], deadline: Deadline) -> bool:
        """Make link, record and routes; whether the record has been written: not for a container that nobody knows,
        because no policy that selects it would apply.
        """
        host, families = self._host, frozenset[int](address.version for address in addresses)
        owner = find_owner(host, endpoint, deadline)
        remove_former_connections(addresses, host.services, deadline)
        if endpoint.waits:
            host.gate.close(endpoint.id, endpoint.mac, addresses)
        with Host() as kernel:
            mac = bytes.fromhex(endpoint.mac.replace(":", ""))
            index = make_link(kernel, endpoint.id, mac, self._mtu(endpoint.network, deadline), families, deadline)
            if endpoint.hop > 1 and 6 in families:
                add_next_hop(kernel, endpoint.id, index, IPv6Address(next_hops(endpoint.hop)[6]), deadline)
            if 4 in families:
                ensure_gateway(kernel, deadline)
            if owner is not None:
                record_endpoint(host, endpoint, owner, deadline)
            ensure_routes(kernel, endpoint.id, index, addresses, deadline, host.log)
        return owner is not None

    def _undo(self, id: str) -> None:
        """Docker deletes the endpoint afterwards, and releases its addresses."""
        try:
            leave(self._host, id, call_deadline())
        except CalicoError as e:
            self._host.log.error(f"while undoing: {e}")

    def _identify_later(self, id: str) -> None:
        threading.Thread(target=self._await_identity, args=(id,), name=f"identify-{id[:12]}", daemon=True).start()

    def _await_identity(self, id: str) -> None:
        """The container's namespace appears when Join has been answered, and before its program runs."""
        limit, pause, pauses = Deadline.after(_SANDBOX_S), threading.Event(), Backoff(_SANDBOX_LOOK_S, _SANDBOX_LAST_S)
        while not limit.expired():
            try:
                if identify(self._host, id, limit.sooner(_IDENTIFY_S)):
                    return
            except CalicoError as e:
                self._host.log.warning(f"endpoint {id[:12]}: {e}")
            pause.wait(pauses.next())
        self._host.wake()

    def _mtu(self, network: str, deadline: Deadline) -> int:
        host = self._host
        held = host.state.networks.get(network)
        if held is not None and held.mtu:
            return held.mtu
        if host.settings.veth_mtu:
            return host.settings.veth_mtu
        try:
            written = int(host.services.files.read_text(f"{host.services.state_dir}/mtu").strip())
        except (OSError, ValueError):
            written = 0
        return written if written >= MIN_MTU else mtu_of_default_route(deadline) or DEFAULT_MTU

    def leave(self, fields: RequestFields) -> Mapping[str, Any]:
        """Before Docker puts the container's end back to the host under its old name."""
        host, id = self._host, fields.id("EndpointID")

        def act(deadline: Deadline) -> None:
            with host.locks.hold(id, deadline):
                leave(host, id, deadline)

        self._waits.pop(id, None)
        if host.state.endpoints.get(id) is not None:
            now_or_later(host, f"the interface of endpoint {id[:12]}", act)
        return {}

    def program_external_connectivity(self, fields: RequestFields) -> Mapping[str, Any]:
        """The container's default route is here, and so are its ports. Raises CalicoError, with none published."""
        host, id, asked = self._host, fields.id("EndpointID"), parse_ports(fields)
        if not asked:
            return {}
        deadline = start_deadline()
        with host.locks.hold(id, deadline):
            endpoint = host.state.endpoints.get(id)
            if endpoint is None or endpoint.owed:
                raise MalformedRequest(f"cannot publish {asked[0]}: there is no endpoint {id[:12]}")
            forwards = host.ports.bind(id, asked, [ip_address(address) for address in endpoint.addresses])
            try:
                host.state.endpoints.change(id, ports=list(map(render_forward, forwards)))
                host.ports.apply(deadline)
                write_ports(host, id, forwards, deadline)
            except CalicoError:
                self._withdraw(id, call_deadline())
                raise
        return {}

    def revoke_external_connectivity(self, fields: RequestFields) -> Mapping[str, Any]:
        """The container's default route, and with it its ports, are another network's."""
        host, id = self._host, fields.id("EndpointID")

        def act(deadline: Deadline) -> None:
            with host.locks.hold(id, deadline):
                self._withdraw(id, deadline)

        found = host.state.endpoints.get(id)
        if found is not None and found.ports:
            now_or_later(host, f"the published ports of endpoint {id[:12]}", act)
        return {}

    def _withdraw(self, id: str, deadline: Deadline) -> None:
        host = self._host
        host.ports.withdraw(id, deadline)
        host.state.endpoints.change(id, ports=[])
        write_ports(host, id, (), deadline)

    def nothing_to_do(self, _: RequestFields) -> Mapping[str, Any]:
        return {}
