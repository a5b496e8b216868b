"""PURE: what is kept of each pod, packed into bytes: a tenth of the memory that objects would take.

Rule: ``unpack`` gives exactly what was packed, whatever a runtime's container IDs look like.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from cni_calico.ipam.lost.pods import Pod
from cni_calico.model.resources import Address

_LET_GO, _HEX, _SIZED = 1, 2, 4
_ID_BYTES = 32  # the length of a container ID in hexadecimal, as containerd and CRI-O make them


def pack(pod: Pod) -> bytes:
    """A byte of flags, the container ID (its length before it unless it is the usual one), the number of IPv4
    addresses, the addresses.
    """
    flags, identity = _pack_id(pod.container_id)
    if pod.has_let_go:
        flags |= _LET_GO
    four = sorted(int(address) for address in pod.addresses if address.version == 4)
    six = sorted(int(address) for address in pod.addresses if address.version == 6)
    packed = [bytes((flags,)), identity, len(four).to_bytes(2, "big")]
    packed += [number.to_bytes(4, "big") for number in four]
    packed += [number.to_bytes(16, "big") for number in six]
    return b"".join(packed)


def _pack_id(text: str) -> tuple[int, bytes]:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) == _ID_BYTES and raw.hex() == text:
        return _HEX, raw
    raw = text.encode("utf-8", "surrogatepass")
    return _SIZED, len(raw).to_bytes(4, "big") + raw


def unpack(packed: bytes) -> Pod:
    flags, at = packed[0], 1
    if flags & _HEX:
        container, at = packed[at : at + _ID_BYTES].hex(), at + _ID_BYTES
    else:
        size, at = int.from_bytes(packed[at : at + 4], "big"), at + 4
        container, at = packed[at : at + size].decode("utf-8", "surrogatepass"), at + size
    four, at = int.from_bytes(packed[at : at + 2], "big"), at + 2
    addresses: list[Address] = [IPv4Address(packed[begin : begin + 4]) for begin in range(at, at + 4 * four, 4)]
    addresses += [IPv6Address(packed[begin : begin + 16]) for begin in range(at + 4 * four, len(packed), 16)]
    return Pod(container, frozenset(addresses), bool(flags & _LET_GO))
