"""PURE: what a flush of the graph says: what changed, and what is to be known about the whole.

Rule: it is a value as of that flush; nobody has to ask the graph about it afterwards, and later records change nothing
in it. Only three questions are left to the graph, because their answers cost as much as everything: what is wanted as
a whole, which sets need unread records, and which policies select a host endpoint that is not governed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.endpoints import Dispute
from cni_calico.policy.wanted import PolicyId, WantedChanges


@dataclass(frozen=True, slots=True)
class OtherNeeds:
    """Whether the policies in force need the endpoints of all nodes, services' endpoints, and nodes."""

    endpoints: bool = False
    services: bool = False
    nodes: bool = False

    def with_these(self, more: OtherNeeds) -> OtherNeeds:
        return OtherNeeds(self.endpoints or more.endpoints, self.services or more.services, self.nodes or more.nodes)


@dataclass(frozen=True, slots=True)
class OverBudget:
    """``budget``: rules that a policy may need, None: any number. ``denied``: what those in force may need that deny
    because of it; ``spared``: those that count all the same, up to this size. ``total``: rules that all namespaces'
    policies together may need; ``without_room``: those that deny because of it.
    """

    budget: int | None = None
    denied: Mapping[PolicyId, int] = field(default_factory=dict)
    spared: Mapping[PolicyId, int] = field(default_factory=dict)
    total: int = 0
    without_room: Mapping[PolicyId, int] = field(default_factory=dict)

    @property
    def all_denied(self) -> Mapping[PolicyId, int]:
        return {**self.denied, **self.without_room}


@dataclass(frozen=True, slots=True)
class WaitsForMemory:
    """A namespace's policy or network set. ``is_denied``: what it governs; else what was known of it before counts."""

    key: ResourceKey
    is_denied: bool


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What is to be known about the whole, as of a flush. ``needs``, ``warnings``: as of the last one that changed
    policies or which tiers are missing; ``warnings``: what of the policies in force is not as their author may think.
    ``selectors``: the sets in force that choose from the endpoints of all nodes.

    ``problems``: records that are invalid, and why; ``last_valid``: of those, the versions that are in force.
    ``governing``: how many policies are in force. ``missing_profiles``, ``missing_host_profiles``: named by this node's
    workloads and host endpoints, sorted; they do not exist. ``is_behind``: something is left to the next flush.
    ``waiting``: for memory that members of sets need.
    """

    needs: OtherNeeds = field(default_factory=OtherNeeds)
    warnings: Mapping[PolicyId, tuple[str, ...]] = field(default_factory=dict)
    selectors: int = 0
    problems: Mapping[ResourceKey, str] = field(default_factory=dict)
    last_valid: Mapping[ResourceKey, object] = field(default_factory=dict)
    over: OverBudget = field(default_factory=OverBudget)
    disputes: tuple[Dispute, ...] = ()
    governing: int = 0
    missing_profiles: tuple[str, ...] = ()
    missing_host_profiles: tuple[str, ...] = ()
    is_behind: bool = False
    waiting: tuple[WaitsForMemory, ...] = ()

    def told_warnings(self) -> tuple[str, ...]:
        """``warnings`` as sentences, sorted."""
        return tuple(sorted(f"{name}: {text}" for name, texts in self.warnings.items() for text in texts))


@dataclass(frozen=True, slots=True)
class Flushed:
    """``changes``: since the last flush; they may be as large as everything, so nobody keeps them, only ``facts``."""

    changes: WantedChanges
    facts: GraphFacts
