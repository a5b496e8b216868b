"""Conditions of this node, other than records, that affect its policies: a sentence for each, while it holds.

Rule: interfaces are read again only when the kernel reports a change of the interface in question, and upstream's rules
only until they have been looked for once since then. What cannot be read is looked at again in the next round.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import sysctl
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.nodeagent.dataplane.parts.takeover import has_upstream_rules
from cni_calico.nodeagent.policing.tables.settings import ipvs_marks_of

IPVS_INTERFACE = "kube-ipvs0"
_READ_S = 5.0
_CONNTRACK = ("ipv4", "vs", "conntrack")
_IS_IPVS = f"kube-proxy runs in mode ipvs (interface {IPVS_INTERFACE} is there)"
_NOT_APPLIED = (
    "connections to services go through the host itself, where the policies of the pods behind them are not applied; "
    "use {} or kube-proxy's mode nftables or iptables"
)
_LEGACY = f"{_IS_IPVS}, which is not supported with legacy iptables: {_NOT_APPLIED.format('FELIX_NFTABLESMODE=Auto')}"
_FEW_BITS = (
    f"{_IS_IPVS}, for which NftablesMarkMask has too few bits: {_NOT_APPLIED.format('a mask of at least seven bits')}"
)
_UNTRACKED = (
    f"{_IS_IPVS}, but net.ipv4.vs.conntrack is 0: answers of services count as new connections, and most policies drop "
    "them; set it to 1, as kube-proxy does when it starts"
)
_HELD = (
    f"upstream's rules stay, because {_IS_IPVS}: with this agent's rules (%s) DefaultEndpointToHostAction, which "
    "is DROP by default, decides about every connection of a pod to a service, and no ingress policy of the pods "
    "behind it does. Workloads that upstream's agent did not know have no network meanwhile. Start upstream's agent "
    "again, or change kube-proxy's mode to nftables or iptables, or have this agent use nftables, or set "
    "FELIX_TAKEOVERWITHIPVS=true to do without this (docs/from-calico.md)"
)


class Surroundings:
    """For the engine's thread; it looks in that thread's network namespace. ``filter_name``: "nftables" or
    "iptables". ``mask`` is the mark mask.
    """

    def __init__(self, filter_name: str) -> None:
        self._is_legacy = filter_name == "iptables"
        self._held = _HELD % ("legacy iptables" if self._is_legacy else filter_name)
        self._has_ipvs = False
        self._unsure = True
        self._has_upstream: bool | None = None  # None: not known

    def notice(self, happened: Happened) -> None:
        if happened.links is None or IPVS_INTERFACE in happened.links:
            self._unsure, self._has_upstream = True, None

    def forwards(self, mask: int) -> int:
        """The bits of marks by which rules follow what ip_vs forwards; 0: it is not in use, or rules cannot."""
        return 0 if self._is_legacy or not self._finds_ipvs() else ipvs_marks_of(mask)

    def warnings(self, mask: int) -> Iterator[str]:
        if not self._finds_ipvs():
            return
        if self._is_legacy:
            yield _LEGACY
        elif not ipvs_marks_of(mask):
            yield _FEW_BITS
        elif _is_untracked():
            yield _UNTRACKED

    def why_upstream_stays(self, mask: int) -> str:
        """Why nothing of ours may come into force while upstream's rules are there, "" if it may. Rules that cannot be
        read are taken for upstream's.
        """
        return self._held if self._finds_ipvs() and not self.forwards(mask) and self._finds_upstream() else ""

    def _finds_ipvs(self) -> bool:
        if self._unsure:
            try:
                self._has_ipvs = any(link.name == IPVS_INTERFACE for link in read_interfaces(Deadline.after(_READ_S)))
                self._unsure = False
            except KernelError:
                pass  # as far as is known
        return self._has_ipvs

    def _finds_upstream(self) -> bool:
        if self._has_upstream is None:
            try:
                self._has_upstream = has_upstream_rules(Deadline.after(_READ_S))
            except KernelError:
                return True
        return self._has_upstream


def _is_untracked() -> bool:
    try:
        return sysctl.read(_CONNTRACK) == "0"
    except KernelError:
        return False
