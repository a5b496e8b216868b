"""What Envoy asks, and what it is answered: messages of its authorization service as values.

Rule: what a message does not say is None; nothing is guessed from headers, which the client writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from cni_calico.slim_grpc import slim_messages

with slim_messages():
    from google.protobuf.message import DecodeError

    from cni_calico.alp import envoy_pb2 as pb

ALLOWED, DENIED, UNAVAILABLE = 0, 7, 14  # gRPC's codes
_HTTP_STATUS = {DENIED: 403, UNAVAILABLE: 503}
_TCP, _UDP = 6, 17


@dataclass(frozen=True, slots=True)
class AskedPeer:
    """One end of a connection. ``principal``: who it is by its certificate, "" without one."""

    address: IPv4Address | IPv6Address | None = None
    port: int | None = None
    principal: str = ""


@dataclass(frozen=True, slots=True)
class AskedRequest:
    """``protocol`` is a number; ``method`` and ``path`` are "" for what is no HTTP request."""

    source: AskedPeer = AskedPeer()
    destination: AskedPeer = AskedPeer()
    protocol: int = _TCP
    method: str = ""
    path: str = ""


def parse_check(data: bytes) -> AskedRequest:
    """A CheckRequest. Raises ValueError."""
    try:
        asked = pb.CheckRequest.FromString(data).attributes
    except DecodeError as e:
        raise ValueError(f"it is no CheckRequest: {e}") from e
    udp = asked.destination.address.socket_address.protocol == pb.SocketAddress.UDP
    return AskedRequest(
        source=_peer(asked.source),
        destination=_peer(asked.destination),
        protocol=_UDP if udp else _TCP,
        method=asked.request.http.method,
        path=asked.request.http.path,
    )


def _peer(peer: pb.AttributeContext.Peer) -> AskedPeer:
    socket = peer.address.socket_address
    try:
        address = ip_address(socket.address)
    except ValueError:  # a Unix socket, or nothing
        return AskedPeer(principal=peer.principal)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return AskedPeer(address, socket.port_value, peer.principal)


def encode_check(asked: AskedRequest) -> bytes:
    """The CheckRequest that Envoy would send."""
    message = pb.CheckRequest()
    attributes = message.attributes
    for peer, side in ((asked.source, attributes.source), (asked.destination, attributes.destination)):
        side.principal = peer.principal
        if peer.address is not None:
            socket = side.address.socket_address
            socket.protocol = pb.SocketAddress.UDP if asked.protocol == _UDP else pb.SocketAddress.TCP
            socket.address, socket.port_value = str(peer.address), peer.port or 0
    attributes.request.http.method, attributes.request.http.path = asked.method, asked.path
    data: bytes = message.SerializeToString()
    return data


def encode_answer(code: int) -> bytes:
    """The CheckResponse; it says nothing of the rules to the client that gets it."""
    answer = pb.CheckResponse(status=pb.Status(code=code))
    if code == ALLOWED:
        answer.ok_response.SetInParent()
    else:
        answer.denied_response.status.code = _HTTP_STATUS[code]
    data: bytes = answer.SerializeToString()
    return data


def parse_answer(data: bytes) -> int:
    """The code in a CheckResponse. Raises ValueError."""
    try:
        return int(pb.CheckResponse.FromString(data).status.code)
    except DecodeError as e:
        raise ValueError(f"it is no CheckResponse: {e}") from e


def encode_health(*, serving: bool) -> bytes:
    """A HealthCheckResponse."""
    kind = pb.HealthCheckResponse
    data: bytes = kind(status=kind.SERVING if serving else kind.NOT_SERVING).SerializeToString()
    return data


def parse_health(data: bytes) -> bool:
    """Whether it serves. Raises ValueError."""
    try:
        return bool(pb.HealthCheckResponse.FromString(data).status == pb.HealthCheckResponse.SERVING)
    except DecodeError as e:
        raise ValueError(f"it is no HealthCheckResponse: {e}") from e
