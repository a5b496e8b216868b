"""Conditions of this node, other than records, that affect its policies: a sentence for each, while it holds.

Rule: interfaces are read again only when the kernel reports a change of the interface in question.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.filter_events import Happened

IPVS_INTERFACE = "kube-ipvs0"
_READ_S = 5.0
_IPVS = (
    f"kube-proxy runs in mode ipvs (interface {IPVS_INTERFACE} is there), which is not supported: connections to "
    "services go through the host itself, where the policies of the pods behind them are not applied; use its mode "
    "nftables or iptables"
)


class Surroundings:
    """For the engine's thread; it looks in that thread's network namespace."""

    def __init__(self) -> None:
        self._has_ipvs = False
        self._unsure = True

    def notice(self, happened: Happened) -> None:
        self._unsure = self._unsure or happened.links is None or IPVS_INTERFACE in happened.links

    def warnings(self) -> Iterator[str]:
        if self._unsure:
            try:
                self._has_ipvs = any(link.name == IPVS_INTERFACE for link in read_interfaces(Deadline.after(_READ_S)))
                self._unsure = False
            except KernelError:
                pass  # as far as is known; looked at again in the next round
        if self._has_ipvs:
            yield _IPVS
