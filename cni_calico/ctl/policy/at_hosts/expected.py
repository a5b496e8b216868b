"""What host endpoints decide about connections that somebody expects, sent as they are written down.

Rule: if it depends on the interface, and nobody knows which one it is, there is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.policy.at_hosts.facts import KnownHosts
from cni_calico.ctl.policy.at_hosts.outcomes import AskedFlow, HostAnswer, StageOutcomes
from cni_calico.ctl.policy.at_hosts.ways import PassedWays, PlacedEnd
from cni_calico.ctl.policy.flow_ends import Uncertain
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.wanted import Packed, Wanted

_WAYS = "it depends on the interface, and host endpoints of the node do not agree"


class ExpectedHosts:
    """``nodes``: of the workloads."""

    def __init__(self, facts: KnownHosts, wanted: Wanted, judge: Judge, nodes: Mapping[ResourceKey, str]) -> None:
        self._ways, self._nodes = PassedWays(facts), nodes
        self._flows = StageOutcomes(facts, wanted, wanted, (judge, judge))

    def judge(
        self,
        source: tuple[ResourceKey | None, Packed],
        destination: tuple[ResourceKey | None, Packed],
        protocol: int,
        point: tuple[int, int],
    ) -> HostAnswer | None:
        """``point``: as for a cell. None: neither end is a workload, or of a host that has host endpoints. Raises
        Uncertain.
        """
        ends = self._place(*source), self._place(*destination)
        if not any(end.is_workload or end.node for end in ends):
            return None
        first = point[0]
        asked = AskedFlow(source[1], destination[1], protocol, *point, (destination[1], first))
        found = [one.before for way in self._ways.between(*ends) for one in self._flows.outcomes(asked, way)]
        if len({one.denied for one in found}) > 1:
            raise Uncertain(_WAYS)
        return found[0]

    def _place(self, key: ResourceKey | None, address: Packed) -> PlacedEnd:
        return self._ways.place(address, "") if key is None else PlacedEnd(address, True, self._nodes.get(key, ""))
