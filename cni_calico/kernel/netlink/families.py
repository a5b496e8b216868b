"""PURE: the head of generic netlink's messages, and the question for the number of a family.

Rule: as in kernel/netlink/links.py. Layout: linux/genetlink.h.
"""

from __future__ import annotations

from struct import Struct

from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.wire import Request

GENERIC = Struct("=BBH")  # command, version, reserved
_CONTROLLER, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 0x10, 3, 1, 2
_U16 = Struct("=H")


def get_family(name: str) -> Request:
    body = GENERIC.pack(_GET_FAMILY, 1, 0) + wire.text(_FAMILY_NAME, name)
    return Request(_CONTROLLER, 0, body, f"find the kernel's {name}")


def decode_family(payload: bytes) -> int:
    """Raises KernelError."""
    number = wire.attributes(payload, GENERIC.size).get(_FAMILY_ID, b"")
    if len(number) != _U16.size:
        raise wire.malformed("a netlink family", f"a number of {len(number)} bytes")
    found: int = _U16.unpack(number)[0]
    return found
