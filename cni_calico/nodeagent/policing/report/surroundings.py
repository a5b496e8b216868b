"""Conditions of this node, other than records, that affect its policies: a sentence for each, while it holds.

Rule: interfaces are read again only when the kernel reports a change of the interface in question, and upstream's rules
only until they have been looked for once since then. What cannot be read is looked at again in the next round.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.nodeagent.dataplane.parts.takeover import has_upstream_rules

IPVS_INTERFACE = "kube-ipvs0"
_READ_S = 5.0
_IS_IPVS = f"kube-proxy runs in mode ipvs (interface {IPVS_INTERFACE} is there)"
_IPVS = (
    f"{_IS_IPVS}, which is not supported: connections to services go through the host itself, where the policies of "
    "the pods behind them are not applied; use its mode nftables or iptables"
)
_HELD = (
    f"upstream's rules stay, because {_IS_IPVS}: with this agent's rules (%s) DefaultEndpointToHostAction, which "
    "is DROP by default, decides about every connection of a pod to a service, and no ingress policy of the pods "
    "behind it does. Workloads that upstream's agent did not know have no network meanwhile. Start upstream's agent "
    "again, or change kube-proxy's mode to nftables or iptables, or set FELIX_TAKEOVERWITHIPVS=true to do without this "
    "(docs/from-calico.md)"
)


class Surroundings:
    """For the engine's thread; it looks in that thread's network namespace. ``filter_name``: "nftables" or
    "iptables".
    """

    def __init__(self, filter_name: str) -> None:
        self._held = _HELD % ("legacy iptables" if filter_name == "iptables" else filter_name)
        self._has_ipvs = False
        self._unsure = True
        self._has_upstream: bool | None = None  # None: not known

    def notice(self, happened: Happened) -> None:
        if happened.links is None or IPVS_INTERFACE in happened.links:
            self._unsure, self._has_upstream = True, None

    def warnings(self) -> Iterator[str]:
        if self._finds_ipvs():
            yield _IPVS

    def why_upstream_stays(self) -> str:
        """Why nothing of ours may come into force while upstream's rules are there, "" if it may. Rules that cannot be
        read are taken for upstream's.
        """
        return self._held if self._finds_ipvs() and self._finds_upstream() else ""

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
