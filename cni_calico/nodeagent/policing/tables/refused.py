"""PURE: what the kernel refused, and what is in force instead.

Rule: a refusal opens nothing and holds up nothing. A refused policy denies, and so does every policy with a refused
set; endpoints whose class is refused are denied in that direction; an endpoint whose entry is refused is denied; a
refused chain of host endpoints lets only failsafe ports through. An object for which there is no such substitute is
withheld: it stays as it is in the kernel, and everything else is put into force. If policies cannot be relied on
without it (``essential``), they do not count as in force. What was refused is tried again from time to time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cni_calico.netfilter.difference import Phases
from cni_calico.netfilter.tables import DropChain, DropSet, FilterObject, Operation, object_of
from cni_calico.nodeagent.policing.tables.standing import STANDING
from cni_calico.nodeagent.policing.tables.tunnels import NODES, TUNNEL_CHAINS
from cni_calico.policy.wanted import PolicyId

_SPARE = (NODES, *TUNNEL_CHAINS, *STANDING)  # policies hold without them


@dataclass(slots=True)
class RefusedParts:
    """Each with the reason. ``sets`` by the names that policies use; ``classes`` by (id, whether ingress).
    ``host_chains``: of a class in one stage.
    """

    policies: dict[PolicyId, str] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    classes: dict[tuple[str, bool], str] = field(default_factory=dict)
    interfaces: dict[str, str] = field(default_factory=dict)
    host_chains: dict[str, str] = field(default_factory=dict)
    withheld: dict[FilterObject, str] = field(default_factory=dict)
    spare: set[FilterObject] = field(default_factory=set)  # the withheld objects that policies do not depend on

    def __bool__(self) -> bool:
        return any((self.policies, self.sets, self.classes, self.interfaces, self.host_chains, self.withheld))

    def withhold(self, operation: Operation, why: str) -> bool:
        """Returns whether that is new."""
        found = object_of(operation)
        if found in self.withheld:
            return False
        self.withheld[found] = why
        if found[1] in _SPARE or isinstance(operation, DropChain | DropSet):
            self.spare.add(found)
        return True

    def essential(self) -> str:
        """What is withheld although policies depend on it, and why; "" for nothing."""
        return "; ".join(f"{_named(one)}: {why}" for one, why in self.withheld.items() if one not in self.spare)

    def texts(self) -> list[tuple[str, str]]:
        """One (interface, text) for each refused endpoint entry, and ("", text) for each withheld object. Policies and
        classes are reported elsewhere.
        """
        found = [(name, f"the endpoint at {name} is denied everything: {why}") for name, why in self.interfaces.items()]
        return found + [("", f"{_named(one)} could not be updated: {why}") for one, why in self.withheld.items()]

    def without(self, phases: Phases) -> Phases:
        """The phases without the operations on withheld objects."""
        if not self.withheld:
            return phases
        return Phases(*(list(filter(self._allows, phase)) for phase in (phases.new, phases.switch, phases.removals)))

    def _allows(self, operation: Operation) -> bool:
        return object_of(operation) not in self.withheld and (operation.table, "") not in self.withheld


def _named(found: FilterObject) -> str:
    table, name = found
    return f"{name} in the packet filter's table {table}" if name else f"the packet filter's table {table}"
