"""PURE: WireGuard devices as values: keys, peers, and changes of them.

Rule: a private key has no text: neither ``repr`` nor a log shows it, and nothing compares or stores it. Public keys are
their 32 bytes; texts of records are parsed here and nowhere else.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import NamedTuple
from zlib import crc32

from cni_calico.model.resources import Address, Network, Node
from cni_calico.model.timestamps import parse_rfc3339, rfc3339

KEY_BYTES = 32
DEFAULT_NAMES = {4: "wireguard.cali", 6: "wg-v6.cali"}  # of devices
DEVICE_KINDS = ("wireguard", "tun")  # of interfaces: in the kernel, and of a program outside of it
_KEY_TEXT = 44


class PrivateKey:
    """``packed``: 32 bytes."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes) -> None:
        if len(packed) != KEY_BYTES:
            raise ValueError(f"expected {KEY_BYTES} bytes")
        self.packed = packed

    def __repr__(self) -> str:
        return "PrivateKey(hidden)"

    def __reduce__(self) -> str:
        raise TypeError("a private key is not written down")


def parse_public_key(text: str) -> bytes:
    """A Node's key: base64 of 32 bytes that are not all zero. Raises ValueError."""
    try:
        packed = b64decode(text, validate=True) if len(text) == _KEY_TEXT else b""
    except (Error, ValueError):
        packed = b""
    if len(packed) != KEY_BYTES or render_public_key(packed) != text:
        raise ValueError("not the base64 of 32 bytes")
    if not any(packed):
        raise ValueError("all zero")
    return packed


def render_public_key(packed: bytes) -> str:
    return b64encode(packed).decode()


class WireguardEndpoint(NamedTuple):
    """Where a peer's UDP port is."""

    address: Address
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if self.address.version == 6 else f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class WireguardPeer:
    """``handshake_s``: when the last one was (Unix time), 0: never; ``handshake_ns``: of that second. ``sent`` and
    ``received`` in bytes.
    """

    public_key: bytes
    endpoint: WireguardEndpoint | None = None
    allowed: Set[Network] = frozenset()
    keepalive_s: int = 0
    handshake_s: int = 0
    sent: int = 0
    received: int = 0
    handshake_ns: int = 0

    @property
    def shaken(self) -> tuple[int, int]:
        """When the last handshake was, to the nanosecond."""
        return self.handshake_s, self.handshake_ns


@dataclass(frozen=True, slots=True)
class WireguardDevice:
    """``public_key`` is b"" for a device without a key; ``mark`` 0: its packets have none."""

    public_key: bytes = b""
    port: int = 0
    mark: int = 0
    peers: tuple[WireguardPeer, ...] = ()

    def peer(self, public_key: bytes) -> WireguardPeer | None:
        return next((peer for peer in self.peers if peer.public_key == public_key), None)


@dataclass(frozen=True, slots=True)
class PeerChange:
    """``allowed``: all that it is to have, None: as it is; so with ``endpoint`` and ``keepalive_s``.

    ``known_only``: a peer that is not there is not made.
    """

    public_key: bytes
    remove: bool = False
    endpoint: WireguardEndpoint | None = None
    allowed: Set[Network] | None = None
    keepalive_s: int | None = None
    known_only: bool = False


@dataclass(frozen=True, slots=True)
class WireguardChange:
    """What is None stays. The peers are changed in their order: a network that two claim is the last one's."""

    private_key: PrivateKey | None = None
    port: int | None = None
    mark: int | None = None
    peers: tuple[PeerChange, ...] = ()


# -- what a Node says --------------------------------------------------------------------------------------------------

_KEYS = {4: "wireguardPublicKey", 6: "wireguardPublicKeyV6"}
_ADDRESSES = {4: "interfaceIPv4Address", 6: "interfaceIPv6Address"}


def published_key(node: Node, family: int) -> str:
    """The text, whatever it is; "" for none."""
    text = (node.status or {}).get(_KEYS[family])
    return text if isinstance(text, str) else ""


def with_published_key(node: Node, family: int, text: str) -> Node:
    """``text`` "": the Node says none."""
    if published_key(node, family) == text:
        return node
    status = {name: value for name, value in (node.status or {}).items() if name != _KEYS[family]}
    if text:
        status[_KEYS[family]] = text
    return replace(node, status=status or None)


ROTATE = "cni-calico.io/wireguard-rotate"  # a Node's annotation: keys that are older than this time are replaced
MADE = {4: "cni-calico.io/wireguard-key-made", 6: "cni-calico.io/wireguard-key-made-v6"}
# after a new key, the nodes that have not shaken hands with it yet, separated by commas
AWAITS = {4: "cni-calico.io/wireguard-key-awaits", 6: "cni-calico.io/wireguard-key-awaits-v6"}


def awaited_by(node: Node, family: int) -> tuple[str, ...]:
    return tuple(filter(None, node.metadata.annotations.get(AWAITS[family], "").split(",")))


def with_awaited(node: Node, family: int, names: tuple[str, ...]) -> Node:
    if awaited_by(node, family) == names:
        return node
    annotations = {key: text for key, text in node.metadata.annotations.items() if key != AWAITS[family]}
    if names:
        annotations[AWAITS[family]] = ",".join(names)
    return replace(node, metadata=replace(node.metadata, annotations=annotations))


def rotation_of(node: Node, family: int) -> str:
    """The time by which the Node's key has to be newer, if it is not; "" if nothing has to be done."""
    asked = node.metadata.annotations.get(ROTATE, "")
    asked_s = parse_rfc3339(asked)
    made_s = parse_rfc3339(node.metadata.annotations.get(MADE[family], ""))
    return asked if asked_s is not None and (made_s is None or made_s < asked_s) else ""


def with_rotation_due(node: Node, family: int, every_s: int, now_s: float) -> Node:
    """The Node that asks for a new key, if that of a family is older than ``every_s`` and a part of a tenth that is
    another one for each node and key; one of unknown age is.
    """
    if not every_s or not published_key(node, family) or rotation_of(node, family):
        return node
    made = node.metadata.annotations.get(MADE[family], "")
    later_s = every_s * crc32(f"{node.metadata.name} {made}".encode()) / 2**32 / 10
    if now_s < (parse_rfc3339(made) or 0.0) + every_s + later_s:
        return node
    annotations = {**node.metadata.annotations, ROTATE: rfc3339(now_s)}
    return replace(node, metadata=replace(node.metadata, annotations=annotations))


def with_age(node: Node, family: int, now_s: float) -> Node:
    """The Node with a key that was made now; not before what asked for it, whatever the clocks say."""
    asked_s = parse_rfc3339(node.metadata.annotations.get(ROTATE, ""))
    made = rfc3339(max(now_s, asked_s or 0.0))
    annotations = {**node.metadata.annotations, MADE[family]: made}
    return replace(node, metadata=replace(node.metadata, annotations=annotations))


def published_address(node: Node, family: int) -> Address | None:
    """The address of the Node's device; None also for one that cannot be read, or is of the other family."""
    said = node.extra.get("wireguard")
    text = said.get(_ADDRESSES[family]) if isinstance(said, Mapping) else None
    try:
        address = ip_address(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return address if address is not None and address.version == family else None


def with_published_address(node: Node, family: int, address: Address | None) -> Node:
    said = node.extra.get("wireguard")
    fields = dict(said) if isinstance(said, Mapping) else {}
    fields.pop(_ADDRESSES[family], None)
    if address is not None:
        fields[_ADDRESSES[family]] = str(address)
    extra = {name: value for name, value in node.extra.items() if name != "wireguard"}
    return replace(node, extra={**extra, "wireguard": fields} if fields else extra)
