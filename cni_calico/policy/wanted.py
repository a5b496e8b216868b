"""PURE: what network policy needs in this node's kernel: sets, policies, classes, endpoints, and their changes.

Rule: immutable values without references to records; their users need no knowledge of selectors or tiers. Everything
that is referred to by name exists in the same ``Wanted``: an endpoint's class, a class's policies and profiles, a
rule's sets. Only what is referred to exists, except what an AssumeNeededOnEveryNode policy keeps.

    Wanted.endpoints   ResourceKey -> WantedEndpoint   this node's workloads, one for each interface
        .class_id  ->  Wanted.classes   str -> WantedClass     ordered tiers of policies, then profiles
    Wanted.hosts       ResourceKey -> WantedHost       this node's host endpoints
        .class_id  ->  Wanted.host_classes  str -> WantedHostClass  the same for each stage of the host
            PolicyId   ->  Wanted.policies  PolicyId -> WantedPolicy   rules by direction (profiles are here too)
                set id     ->  Wanted.sets      str -> Members             addresses, networks, ports

The names of sets and classes are derived from the meaning of their content, not counted: they are the same after a
restart, and safe in nftables (a letter, then letters, digits, "_", "-", "."; at most 63 characters).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Network

Packed = bytes  # an address in network order: 4 or 16 bytes, which give its family
PackedNet = tuple[bytes, int]  # (packed network address, prefix length)
PackedPort = tuple[bytes, int, int]  # (packed address, protocol number, port)

Action = Literal["Allow", "Deny", "Pass", "Log"]
EndAction = Literal["Deny", "Pass"]
Direction = Literal["ingress", "egress"]
# the traffic that a policy governs at host endpoints: the host's "own"; also "forward"ed traffic; packets "beforeNat"
# (preDNAT) or "raw" (doNotTrack); policies of the last two kinds never apply to workloads
PolicyReach = Literal["own", "forward", "beforeNat", "raw"]
PolicyKind = Literal[
    "NetworkPolicy", "GlobalNetworkPolicy", "KubernetesNetworkPolicy", "KubernetesClusterNetworkPolicy", "Profile"
]

# a set whose name begins with this has (address, protocol, port); every other one addresses and networks
PORT_SET = "p-"


# -- sets -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Members:
    """A set's content, of both families.

    ``nets`` are disjoint, adjacent ones are joined, and none of them is a single address: those are in ``addresses``.
    An address may lie inside a network. 0.0.0.0/0 and ::/0 are possible. A set named "p-..." has only ``ports``.
    """

    addresses: frozenset[Packed] = frozenset()
    nets: frozenset[PackedNet] = frozenset()
    ports: frozenset[PackedPort] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.addresses or self.nets or self.ports)


NOTHING = Members()


@dataclass(frozen=True, slots=True)
class SetChange:
    """The change of a set that existed before: ``removed`` were members, ``added`` were not; no element is in both."""

    added: Members = NOTHING
    removed: Members = NOTHING


# -- policies ---------------------------------------------------------------------------------------------------------


class PolicyId(NamedTuple):
    """Also identifies a profile (kind "Profile"). ``namespace`` is "" for kinds without one. A named tuple for the same
    reason as a ResourceKey.
    """

    kind: PolicyKind
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class PeerTexts:
    """What a rule says of one side where the kernel only has sets: its selectors, service accounts and service.

    ``accounts`` are names, ``account_selector`` is for the accounts' labels.
    """

    selector: str = ""
    not_selector: str = ""
    namespace_selector: str = ""
    accounts: tuple[str, ...] = ()
    account_selector: str = ""
    service: str = ""
    service_namespace: str = ""


@dataclass(frozen=True, slots=True)
class WantedHttp:
    """A request must have one of the ``methods`` ("*": any) and one of the paths; () asks for nothing.

    ``exact``: whole paths; ``prefixes``: their first segments.
    """

    methods: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.methods or self.exact or self.prefixes)


@dataclass(frozen=True, slots=True)
class WantedSide:
    """What a rule requires of a packet's source or destination; every part that is not empty must match.

    ``nets``        the address is in one of them (of the packet's family; see ``WantedRule.families``)
    ``not_nets``    ... in none of them
    ``ports``       (low, high): the port is in one of the ranges, OR (address, protocol, port) is in one of
    ``port_sets``   these sets: the two are alternatives of each other
    ``not_ports``, ``not_port_sets``  ... in none of all these
    ``sets``        the address is in EVERY one of them
    ``not_sets``    ... in none of them
    ``service_sets``  (address, protocol, port) is in EVERY one of them
    ``texts``       where some of the sets come from; None if there are none
    """

    nets: tuple[Network, ...] = ()
    not_nets: tuple[Network, ...] = ()
    ports: tuple[tuple[int, int], ...] = ()
    port_sets: tuple[str, ...] = ()
    not_ports: tuple[tuple[int, int], ...] = ()
    not_port_sets: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    not_sets: tuple[str, ...] = ()
    service_sets: tuple[str, ...] = ()
    texts: PeerTexts | None = None

    def set_ids(self) -> tuple[str, ...]:
        return self.port_sets + self.not_port_sets + self.sets + self.not_sets + self.service_sets


ANY_SIDE = WantedSide()


@dataclass(frozen=True, slots=True)
class WantedRule:
    """One rule. It exists only in ``families`` (4, 6): there, nets of the other family are left out.

    ``protocol``, ``not_protocol``: numbers (TCP 6, UDP 17, SCTP 132, ICMP 1, ICMPv6 58, ...). ``icmp``: (type, code or
    None), only with protocol 1 or 58. ``not_icmp`` excludes what ``icmp`` would include: with a code it is NOT of type
    and code together. ``protocol`` is given if ports are numbers; with port_sets alone it may be absent (the set has
    it). ``annotations``: (key, value) from the rule's metadata, sorted, for comments. Free text: quote it. ``http``:
    what the rule also asks of requests, which no packet filter knows; None: nothing. ``stands_in``: it is none of its
    policy's, but denies in the place of all of them.
    """

    action: Action
    families: tuple[int, ...] = (4, 6)
    protocol: int | None = None
    not_protocol: int | None = None
    icmp: tuple[int, int | None] | None = None
    not_icmp: tuple[int, int | None] | None = None
    source: WantedSide = ANY_SIDE
    destination: WantedSide = ANY_SIDE
    annotations: tuple[tuple[str, str], ...] = ()
    http: WantedHttp | None = None
    stands_in: bool = field(default=False, repr=False)  # numbers are given by what is printed

    def set_ids(self) -> tuple[str, ...]:
        return self.source.set_ids() + self.destination.set_ids()

    def may_open(self, incomplete: frozenset[str]) -> bool:
        """Whether the rule could allow more than it should while members of these sets are missing. That is excluded
        only for an Allow that requires membership (it matches less) and a Deny that excludes members (it matches more).
        """
        sides = (self.source, self.destination)
        excluded = [name for side in sides for name in side.not_port_sets + side.not_sets]
        included = set(self.set_ids()) - set(excluded)
        matches_more, matches_less = not incomplete.isdisjoint(excluded), not incomplete.isdisjoint(included)
        return (matches_more and self.action != "Deny") or (matches_less and self.action != "Allow")


@dataclass(frozen=True, slots=True)
class WantedPolicy:
    """A policy, or a profile. ``ingress``/``egress`` is None if the policy does not govern that direction.

    ``tier`` is "" for a profile. In a profile, Pass and the end of the rules both mean: the next profile.
    """

    id: PolicyId
    tier: str
    ingress: tuple[WantedRule, ...] | None
    egress: tuple[WantedRule, ...] | None
    reach: PolicyReach = "own"

    def rules(self) -> tuple[WantedRule, ...]:
        return (self.ingress or ()) + (self.egress or ())


# -- endpoints --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WantedTier:
    """A tier as one direction of a class sees it: at least one policy, in order, and what happens at its end."""

    name: str
    policies: tuple[PolicyId, ...]
    end: EndAction


@dataclass(frozen=True, slots=True)
class WantedClass:
    """Everything that endpoints with the same policies have in common. ``id`` is a digest of the rest.

    A direction: each tier in turn (Allow accepts, Deny drops, Pass and an end Pass continue with the next tier), then
    ``profiles`` in turn, then drop. A profile that is missing would drop everything, so the list ends before it.
    """

    id: str
    ingress: tuple[WantedTier, ...]
    egress: tuple[WantedTier, ...]
    profiles: tuple[PolicyId, ...]

    def policy_ids(self) -> frozenset[PolicyId]:
        return frozenset(self.profiles).union(*(tier.policies for tier in self.ingress + self.egress))


@dataclass(frozen=True, slots=True)
class WantedHostClass:
    """Everything that host endpoints with the same policies have in common. ``id`` is a digest of the rest.

    ``ingress``, ``egress``: traffic of the host itself, decided as for a workload, with ``profiles``.
    ``forward_ingress``, ``forward_egress``: forwarded traffic, coming in and going out; what no tier decides passes.
    ``before_nat``, ``raw_ingress``, ``raw_egress``: tiers that have no end; what they allow skips the later stages of
    the direction, and what they do not decide is decided there.
    """

    id: str
    ingress: tuple[WantedTier, ...] = ()
    egress: tuple[WantedTier, ...] = ()
    forward_ingress: tuple[WantedTier, ...] = ()
    forward_egress: tuple[WantedTier, ...] = ()
    before_nat: tuple[WantedTier, ...] = ()
    raw_ingress: tuple[WantedTier, ...] = ()
    raw_egress: tuple[WantedTier, ...] = ()
    profiles: tuple[PolicyId, ...] = ()

    def tiers(self, reach: PolicyReach, ingress: bool) -> tuple[WantedTier, ...]:
        """The tiers of one stage and direction."""
        if reach == "own":
            return self.ingress if ingress else self.egress
        if reach == "forward":
            return self.forward_ingress if ingress else self.forward_egress
        if reach == "raw":
            return self.raw_ingress if ingress else self.raw_egress
        return self.before_nat if ingress else ()

    def policy_ids(self) -> frozenset[PolicyId]:
        tiers = (*self.ingress, *self.egress, *self.before_nat, *self.raw_ingress, *self.raw_egress)
        return frozenset((*(policy for tier in tiers for policy in tier.policies), *self.profiles))


@dataclass(frozen=True, slots=True)
class PacketLimits:
    """Limits of one direction (as the workload sees it); None: no limit. Rates are packets per second.

    ``packet_burst`` is given (default 5) if ``packet_rate`` is. Bandwidth is not here: tc limits it.
    """

    packet_rate: int | None = None
    packet_burst: int | None = None
    max_connections: int | None = None


UNLIMITED = PacketLimits()


@dataclass(frozen=True, slots=True)
class WantedEndpoint:
    """A workload of this node. Of several that name one interface only the one whose it is is here.

    ``spoofing``: networks besides its own addresses that it may send from, if WorkloadSourceSpoofing is Any.
    ``orchestrator``, ``workload``, ``endpoint``: the names in its status file ("k8s", "namespace/pod", "eth0").
    ``container``: its ID. Endpoints of one workload with the same one are interfaces of one container. ``name``: what
    people call a container outside Kubernetes, "" if that is unknown. ``dscp``: of what it sends out of the cluster.
    """

    key: ResourceKey
    interface: str
    class_id: str
    addresses: tuple[Packed, ...]
    mac: str = ""
    spoofing: tuple[Network, ...] = ()
    ingress_limits: PacketLimits = UNLIMITED
    egress_limits: PacketLimits = UNLIMITED
    orchestrator: str = ""
    workload: str = ""
    endpoint: str = ""
    container: str = ""
    name: str = ""
    dscp: int | None = None

    @property
    def shown(self) -> str:
        """The workload, for people."""
        return f"{self.key.namespace}/{self.name}" if self.name else self.workload or self.interface


@dataclass(frozen=True, slots=True)
class WantedHost:
    """A host endpoint of this node. ``interface``: a name, "*" for all that have none of their own, or "": those that
    have one of the addresses ``expected``. ``dscp``: as of a workload, of what is sent from these addresses;
    ``not_dscp``: what is written there and is none.
    """

    key: ResourceKey
    interface: str
    class_id: str
    expected: tuple[Packed, ...] = ()
    dscp: int | None = None
    not_dscp: str = ""


# -- everything, and what changed -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wanted:
    """Everything at one moment."""

    sets: Mapping[str, Members] = field(default_factory=dict)
    policies: Mapping[PolicyId, WantedPolicy] = field(default_factory=dict)
    classes: Mapping[str, WantedClass] = field(default_factory=dict)
    endpoints: Mapping[ResourceKey, WantedEndpoint] = field(default_factory=dict)
    host_classes: Mapping[str, WantedHostClass] = field(default_factory=dict)
    hosts: Mapping[ResourceKey, WantedHost] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WantedChanges:
    """From one flush to the next, as small as the change is. A value of None: removed.

    Only real differences are listed: what was changed back and forth between two flushes is not here. A class never
    changes: different content makes a different class.
    """

    sets_made: Mapping[str, Members] = field(default_factory=dict)
    sets_changed: Mapping[str, SetChange] = field(default_factory=dict)
    sets_removed: frozenset[str] = frozenset()
    policies: Mapping[PolicyId, WantedPolicy | None] = field(default_factory=dict)
    classes: Mapping[str, WantedClass | None] = field(default_factory=dict)
    endpoints: Mapping[ResourceKey, WantedEndpoint | None] = field(default_factory=dict)
    host_classes: Mapping[str, WantedHostClass | None] = field(default_factory=dict)
    hosts: Mapping[ResourceKey, WantedHost | None] = field(default_factory=dict)

    def __bool__(self) -> bool:
        of_hosts = self.host_classes or self.hosts
        return any(
            (
                self.sets_made,
                self.sets_changed,
                self.sets_removed,
                self.policies,
                self.classes,
                self.endpoints,
                of_hosts,
            )
        )
