"""The generic netlink socket, whose families have numbers of their own on every kernel.

Rule: a family's number is asked for once per socket; a kernel that does not know the family, and cannot load it, says
ENOENT.
"""

from __future__ import annotations

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink.families import decode_family, get_family
from cni_calico.kernel.netlink.socket import NETLINK_CAP_ACK, NETLINK_EXT_ACK, RequestSocket

_NETLINK_GENERIC = 16
_RECEIVE_BYTES = 65536


class GenericNetlink(RequestSocket):
    """A NETLINK_GENERIC socket."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_GENERIC, (NETLINK_CAP_ACK, NETLINK_EXT_ACK), _RECEIVE_BYTES)
        self._families: dict[str, int] = {}

    def family(self, name: str, deadline: Deadline) -> int:
        """Raises KernelError (ENOENT: this kernel has no such family)."""
        if name not in self._families:
            self._families[name] = decode_family(self.one(get_family(name), deadline))
        return self._families[name]
