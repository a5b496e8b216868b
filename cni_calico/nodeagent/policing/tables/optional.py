"""PURE: the features in our tables that policies do not need, and that a kernel may lack although it has everything
policies need.

Rule: none of these features prevents a policy from being in force. Each is changed in its own transactions, after the
policies'; one that the kernel refuses is left out and reported, and tried again at the next full comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum

from cni_calico.netfilter.difference import Phases
from cni_calico.netfilter.rules import ConnectionLimit
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddVerdicts,
    DropChain,
    DropElements,
    DropSet,
    FlushChain,
    Operation,
)
from cni_calico.nodeagent.policing.tables.endpoints import LIMIT_CHAINS, SPOOF_CHAINS
from cni_calico.nodeagent.policing.tables.marking import CHAIN as MARKING
from cni_calico.nodeagent.policing.tables.stages import LIMITED_FROM, LIMITED_TO, LIMITS, MAY_SPOOF, SPOOFING
from cni_calico.nodeagent.policing.tables.touched import ARP
from cni_calico.nodeagent.policing.tables.tunnels import NOTRACK


class OptionalFeature(Enum):
    """The value is the text that tells people what is not in force."""

    SOURCES = "the check of workloads' source addresses"
    LIMITS = "the limits of workloads' packets and connections"
    CONNECTIONS = "the limits of workloads' connections"
    NOTRACK = "keeping VXLAN out of connection tracking"
    DSCP = "marking packets with a DSCP"
    ARP_ANSWERS = "the check of proxy ARP's answers"


Transaction = tuple[OptionalFeature | None, list[Operation]]
_OF_MARKING = f"{MARKING}-"  # sets, which must not go before the chain that looks them up
_MAPS = {
    MAY_SPOOF.name: OptionalFeature.SOURCES,
    LIMITED_FROM.name: OptionalFeature.LIMITS,
    LIMITED_TO.name: OptionalFeature.LIMITS,
}


def feature_of(operation: Operation) -> OptionalFeature | None:
    """The feature that an operation is for; None: policies need it."""
    if operation.table == ARP:
        return OptionalFeature.ARP_ANSWERS
    match operation:
        case AddChain(name=name) | FlushChain(name=name) | DropChain(name=name) | AddRules(chain=name):
            if name in NOTRACK:
                return OptionalFeature.NOTRACK
            if name == MARKING:
                return OptionalFeature.DSCP
            if name == SPOOFING or name.startswith(SPOOF_CHAINS):
                return OptionalFeature.SOURCES
            return OptionalFeature.LIMITS if name in LIMITS or name.startswith(LIMIT_CHAINS) else None
        case AddSet(spec=spec) | AddElements(spec=spec) | DropElements(spec=spec) | AddVerdicts(spec=spec):
            return OptionalFeature.DSCP if spec.name.startswith(_OF_MARKING) else _MAPS.get(spec.name)
        case DropSet(name=name) if name.startswith(_OF_MARKING):
            return OptionalFeature.DSCP
    return None


def refused_feature(feature: OptionalFeature, operation: Operation | None) -> OptionalFeature:
    """The feature to leave out if the kernel refused this operation of ``feature`` (None: the kernel did not say
    which).
    """
    if isinstance(operation, AddRules) and feature is OptionalFeature.LIMITS:
        if any(isinstance(test, ConnectionLimit) for rule in operation.rules for test in rule.tests):
            return OptionalFeature.CONNECTIONS
    return feature


def transactions(phases: Phases, *, at_once: bool = False) -> Iterator[Transaction]:
    """The transactions in the order in which they are carried out: first the policies' (None), then each feature's.

    ``at_once``: packets see all of a transaction or nothing, so the phases can be one.
    """
    apart: dict[OptionalFeature | None, Phases] = {feature: Phases() for feature in (None, *OptionalFeature)}
    for operation in phases.new:
        apart[feature_of(operation)].new.append(operation)
    for operation in phases.switch:
        apart[feature_of(operation)].switch.append(operation)
    for operation in phases.removals:
        apart[feature_of(operation)].removals.append(operation)
    for feature, its in apart.items():
        if at_once and its:
            yield feature, [operation for phase in its for operation in phase]
            continue
        for operations in its:
            yield feature, operations
