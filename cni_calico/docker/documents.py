"""PURE: the documents of Docker's remote drivers: what a call asks for, and what it is answered.

Rule: a call is parsed as a whole before anything is done. What is malformed is a MalformedRequest (a repeated request
of dockerd has an empty body); what cannot be done is an InvalidConfig that names the option and what to do instead. For
both nothing has been changed. Source: moby's libnetwork, docs/remote.md and docs/ipam.md, and dockerd's calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from cni_calico.cni.netconf import ANYONE, MEMBERS, MTU_MAX
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import brief
from cni_calico.model.identity import OWN
from cni_calico.model.names import GATEWAY_V4, HOST_LINK_LOCAL
from cni_calico.model.resources import Address, Network

SPACE = "CalicoGlobalAddressSpace"  # of both kinds: dockerd asks for ever where they differ (moby's default pools)
SPACES = (SPACE, "CalicoLocalAddressSpace")  # that of networks made by upstream's plugin, too
ANY_POOL = {4: "CalicoPoolIPv4", 6: "CalicoPoolIPv6"}
EVERYWHERE = {4: "0.0.0.0/0", 6: "::/0"}
NOWHERE_V6 = "100::/64"  # RFC 6666: no host has an address of it
GATEWAYS = {4: f"{GATEWAY_V4}/32", 6: f"{HOST_LINK_LOCAL}/128"}
PEER_PREFIX = "temp"
HOPS = 254  # networks of one container

NETWORK_CAPABILITIES = {"Scope": "local", "ConnectivityScope": "global", "GwAllocChecker": True}
IPAM_CAPABILITIES = {"RequiresMACAddress": False, "RequiresRequestReplay": False}
ADDRESS_SPACES = {"LocalDefaultAddressSpace": SPACE, "GlobalDefaultAddressSpace": SPACE}
NO_GATEWAY_NEEDED = {"SkipIPv4": True, "SkipIPv6": True}

_GENERIC, _INTERNAL = "com.docker.network.generic", "com.docker.network.internal"
_GATEWAY_ADDRESS = "com.docker.network.gateway"
_CONTAINER = "com.docker.network.endpoint.name"
_ADDRESS_TYPE, _PORTS = "RequestAddressType", "com.docker.network.portmap"
_OPTIONS = ("mtu", "profile_ingress")
_MTU_MIN = 68  # RFC 791
_ID_MAX = 128
_PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}


class MalformedRequest(InvalidConfig):
    """What no dockerd asks on purpose: a body that is none, or of an endpoint that it has not made."""


class RequestFields:
    """The fields of one call."""

    __slots__ = ("call", "values")

    def __init__(self, call: str, values: Mapping[str, Any]) -> None:
        self.call = call
        self.values = values

    def text(self, name: str) -> str:
        return str(self._typed(name, str, "a string", ""))

    def flag(self, name: str) -> bool:
        return bool(self._typed(name, bool, "true or false", False))

    def section(self, name: str) -> RequestFields:
        return RequestFields(f"{self.call}.{name}", self._typed(name, dict, "an object", {}))

    def sections(self, name: str) -> list[RequestFields]:
        found = self._typed(name, list, "a list", [])
        if not all(isinstance(each, dict) for each in found):
            raise MalformedRequest(f"cannot carry out {self.call}: {name} is no list of objects")
        return [RequestFields(f"{self.call}.{name}", each) for each in found]

    def id(self, name: str) -> str:
        """An ID of Docker's: it becomes part of names of files and records."""
        found = self.text(name)
        if not found or len(found) > _ID_MAX or not found.isascii() or not found.isalnum():
            raise MalformedRequest(
                f"cannot carry out {self.call}: {name} {brief(repr(found))} is not one of Docker's IDs"
            )
        return found

    def address(self, name: str) -> Address | None:
        """A single address, with or without a prefix length; None if it is not given."""
        found = self.text(name)
        if not found:
            return None
        try:
            return ip_interface(found).ip if "/" in found else ip_address(found)
        except ValueError as e:
            raise MalformedRequest(f"cannot carry out {self.call}: {name} {brief(repr(found))} is no address") from e

    def _typed(self, name: str, kind: type[Any], expected: str, default: Any) -> Any:
        found = self.values.get(name)
        if found is None:
            return default
        if not isinstance(found, kind):
            raise MalformedRequest(f"cannot carry out {self.call}: {name} must be {expected}")
        return found


def parse_request(call: str, body: bytes) -> RequestFields:
    """Raises MalformedRequest. An empty body is one: dockerd repeats a request without it if the driver died."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as e:
        what = "its body is empty" if not body.strip() else "its body is no JSON"
        raise MalformedRequest(f"cannot carry out {call}: {what}") from e
    if not isinstance(found, dict):
        raise MalformedRequest(f"cannot carry out {call}: its body is no object")
    return RequestFields(call, found)


# -- networks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """``mtu`` 0: the node's. ``ingress``: MEMBERS or ANYONE, of the profile."""

    id: str
    mtu: int = 0
    ingress: str = ANYONE


def parse_network(fields: RequestFields) -> NetworkRequest:
    """Raises MalformedRequest, InvalidConfig for what our networks cannot have."""
    id = fields.id("NetworkID")
    options = fields.section("Options")
    if options.flag(_INTERNAL):
        raise InvalidConfig(
            "cannot make the network with --internal: it is routed",
            details="keep connections out, or in, with a network policy (docs/policy.md)",
        )
    for family in (4, 6):
        for data in fields.sections(f"IPv{family}Data"):
            _require_ours(data, family)
    given = options.section(_GENERIC)
    unknown = sorted(name for name in given.values if name not in _OPTIONS)
    if unknown:
        hint = "choose the pool with --subnet; " if unknown[0].endswith("_pools") else ""
        raise InvalidConfig(
            f"cannot use the option -o {brief(unknown[0])}", details=f"{hint}options are {', '.join(_OPTIONS)}"
        )
    return NetworkRequest(id, _parse_mtu(given.text("mtu")), _parse_ingress(given.text("profile_ingress")))


def _require_ours(data: RequestFields, family: int) -> None:
    space = data.text("AddressSpace")
    if space and space not in SPACES:
        raise InvalidConfig(
            "cannot make the network: its addresses would come from another IPAM driver",
            details="use --ipam-driver calico-ipam",
        )
    if data.section("AuxAddresses").values:
        raise InvalidConfig(
            "cannot make the network with --aux-address", details="keep addresses free with an IPReservation"
        )
    gateway = data.text("Gateway")
    if gateway and gateway != GATEWAYS[family]:
        raise InvalidConfig(
            f"cannot make the network with --gateway {brief(gateway)}: the host is every container's gateway",
            details="leave --gateway out",
        )


def _parse_mtu(text: str) -> int:
    if not text:
        return 0
    if not text.isdecimal() or len(text) > 6 or not _MTU_MIN <= int(text) <= MTU_MAX:
        raise InvalidConfig(f"cannot use -o mtu={brief(text)}: it must be from {_MTU_MIN} to {MTU_MAX}")
    return int(text)


def _parse_ingress(text: str) -> str:
    if text not in ("", MEMBERS, ANYONE):
        raise InvalidConfig(f"cannot use -o profile_ingress={brief(text)}: it must be {MEMBERS} or {ANYONE}")
    return text or ANYONE


# -- addresses --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolRequest:
    """``subnet`` None: any pool of the family."""

    family: int
    subnet: Network | None


def parse_pool(fields: RequestFields) -> PoolRequest:
    """Raises MalformedRequest, InvalidConfig."""
    space = fields.text("AddressSpace")
    if space and space not in SPACES:
        raise InvalidConfig(f"cannot use the address space {brief(space)}: there is only {SPACE}")
    if fields.text("SubPool"):
        raise InvalidConfig(
            "cannot make the network with --ip-range",
            details="make an IP pool of that range, and name it with --subnet",
        )
    options = sorted(fields.section("Options").values)
    if options:
        raise InvalidConfig(
            f"cannot use the option --ipam-opt {brief(options[0])}: there is none",
            details="choose the pool with --subnet",
        )
    family = 6 if fields.flag("V6") else 4
    text = fields.text("Pool")
    if not text:
        return PoolRequest(family, None)
    try:
        subnet = ip_network(text)
    except ValueError as e:
        raise InvalidConfig(f"cannot use the subnet {brief(text)}: it is no network ({e})") from e
    return PoolRequest(subnet.version, subnet)


def render_pool(pool_id: str, pool: str, family: int) -> Mapping[str, Any]:
    return {"PoolID": pool_id, "Pool": pool, "Data": {_GATEWAY_ADDRESS: GATEWAYS[family]}}


@dataclass(frozen=True, slots=True)
class AddressRequest:
    """``address`` None: any one. ``container``: its name, which dockerd tells since 29."""

    pool_id: str
    address: Address | None = None
    container: str = ""


def parse_address(fields: RequestFields) -> AddressRequest:
    """Raises MalformedRequest, InvalidConfig."""
    pool_id = fields.text("PoolID")
    if not pool_id:
        raise MalformedRequest(f"cannot carry out {fields.call}: it has no PoolID")
    options = fields.section("Options")
    if options.text(_ADDRESS_TYPE) == _GATEWAY_ADDRESS:
        raise InvalidConfig(
            "cannot make the network with --gateway: the host is every container's gateway",
            details="leave --gateway out",
        )
    return AddressRequest(pool_id, fields.address("Address"), options.text(_CONTAINER))


def render_address(address: Address) -> Mapping[str, Any]:
    return {"Address": f"{address}/{address.max_prefixlen}", "Data": {}}


# -- endpoints --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """``mac`` "": ours to choose. ``labels``: those of ``--driver-opt``."""

    network: str
    id: str
    addresses: tuple[Address, ...]
    mac: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def parse_endpoint(fields: RequestFields) -> EndpointRequest:
    """Raises MalformedRequest."""
    interface = fields.section("Interface")
    found = (interface.address("Address"), interface.address("AddressIPv6"))
    addresses = tuple(address for address in found if address is not None)
    if not addresses:
        raise MalformedRequest(f"cannot carry out {fields.call}: the endpoint has no address")
    options = fields.section("Options").values
    labels = {key: value for key, value in options.items() if key.startswith(OWN) and isinstance(value, str)}
    return EndpointRequest(
        fields.id("NetworkID"), fields.id("EndpointID"), addresses, _parse_mac(interface.text("MacAddress")), labels
    )


def _parse_mac(text: str) -> str:
    if not text:
        return ""
    parts = text.lower().split(":")
    if len(parts) != 6 or any(len(part) != 2 or not set(part) <= set("0123456789abcdef") for part in parts):
        raise MalformedRequest(f"cannot use the MAC address {brief(repr(text))}")
    return ":".join(parts)


@dataclass(frozen=True, slots=True)
class PortRequest:
    """A port to be published. ``host_port`` 0: any one; else one up to ``host_port_end``. ``host``: an address of the
    host, None for each of them.
    """

    protocol: str
    port: int
    host_port: int = 0
    host_port_end: int = 0
    host: Address | None = None

    def candidates(self) -> range:
        """The ports of the host that it may be; none for any."""
        return range(self.host_port, max(self.host_port, self.host_port_end) + 1) if self.host_port else range(0)

    def __str__(self) -> str:
        ports = str(self.host_port or self.port)
        if self.host_port_end > self.host_port:
            ports += f"-{self.host_port_end}"
        return f"{ports}/{self.protocol}"


def parse_ports(fields: RequestFields) -> tuple[PortRequest, ...]:
    """The published ports. Raises MalformedRequest."""
    found = []
    for given in fields.section("Options").sections(_PORTS):
        numbers = {name: given.values.get(name) or 0 for name in ("Port", "HostPort", "HostPortEnd")}
        number = given.values.get("Proto")
        protocol = _PROTOCOLS.get(number) if isinstance(number, int) else None
        good = all(isinstance(number, int) and 0 <= number <= 65535 for number in numbers.values())
        if protocol is None or not good or not numbers["Port"]:
            raise MalformedRequest(f"cannot carry out {fields.call}: a published port is none")
        host = given.address("HostIP")
        everywhere = host is None or host.is_unspecified
        found.append(
            PortRequest(
                protocol, numbers["Port"], numbers["HostPort"], numbers["HostPortEnd"], None if everywhere else host
            )
        )
    return tuple(found)


def next_hops(hop: int) -> Mapping[int, str]:
    """The gateways of a container's network number ``hop`` (1 to HOPS), by family: each network has its own, so that
    their routes do not meet.
    """
    if hop == 1:
        return {4: GATEWAY_V4, 6: HOST_LINK_LOCAL}
    return {4: f"{GATEWAY_V4.rpartition('.')[0]}.{hop}", 6: f"{HOST_LINK_LOCAL.rpartition(':')[0]}:{hop:x}"}


def render_join(endpoint: str, addresses: Sequence[Address], prefix: str, hop: int) -> Mapping[str, Any]:
    """What Docker moves into the container, how the interface's name begins there, and the routes that it makes."""
    answer: dict[str, Any] = {
        "InterfaceName": {"SrcName": peer_name(endpoint), "DstPrefix": prefix},
        "StaticRoutes": [],
    }
    for family, key in ((4, "Gateway"), (6, "GatewayIPv6")):
        if any(address.version == family for address in addresses):
            gateway = answer[key] = next_hops(hop)[family]
            length = 32 if family == 4 else 128
            answer["StaticRoutes"].append({"Destination": f"{gateway}/{length}", "RouteType": 1, "NextHop": ""})
    return answer


def host_name(endpoint: str) -> str:
    """The host's end of an endpoint's veth, as upstream calls it."""
    return f"cali{endpoint[:11]}"


def peer_name(endpoint: str) -> str:
    """The container's end until Docker moves it."""
    return f"{PEER_PREFIX}{endpoint[:11]}"
