"""PURE: where a set's members come from: a selector, a selector with a port's name, or a service.

Rule: a source's ``id`` is derived from its content, so sources with equal meaning have equal ids, and rules of
different policies share a set. The text at the start of an id is for people; the digest after it distinguishes sets.
Equal selectors and sources are one object, which goes with the last rule that has it.
"""

from __future__ import annotations

import re
from _blake2 import blake2b  # hashlib would load libcrypto
from dataclasses import dataclass, field
from functools import lru_cache
from weakref import WeakValueDictionary

from cni_calico.model.selector_forms import (
    NAMESPACE,
    SERVICE_ACCOUNT,
    conjunction,
    equals,
    negation,
    normalized,
    read_specially,
    require_for_all,
    with_prefix,
)
from cni_calico.model.selectors import ALL, Selector, Tree
from cni_calico.policy.long_selectors import LONG, normalizing, parsing_tree
from cni_calico.policy.ports import PortNames
from cni_calico.policy.steps import Steps, finish
from cni_calico.policy.wanted import PORT_SET

NAMESPACE_PREFIX = "pcns."
ACCOUNT_PREFIX = "pcsa."
EVERYTHING = normalized(ALL)
_LONGEST = 38  # of the text at the start; with "-" and the digest it makes 63
_DIGEST_BYTES = 12
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")


def digest(*parts: str) -> str:
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    return blake2b(joined, digest_size=_DIGEST_BYTES).hexdigest()


def _id(beginning: str, shown: str, *identity: str) -> str:
    stem = _UNSAFE.sub("-", shown.replace("projectcalico.org/", "")).strip("-")[: _LONGEST - len(beginning)]
    return f"{beginning}{stem}{'-' if stem else ''}{digest(beginning, *identity)}"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class SelectorSource:
    """The addresses and networks of all endpoints and network sets whose labels match."""

    id: str
    selector: Selector = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class NodeSource:
    """The addresses of all nodes whose labels match."""

    id: str
    selector: Selector = field(repr=False)


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PortSource:
    """(address, protocol, port) of the endpoints with a port of one of these names; ``protocol`` None: TCP, UDP and
    SCTP.

    ``selector`` restricts the endpoints.
    """

    id: str
    selector: Selector = field(repr=False)
    ports: PortNames
    protocol: int | None


@dataclass(frozen=True, slots=True, eq=False)
class ServiceSource:
    """The endpoints of a service: (address, protocol, port), or addresses alone."""

    id: str
    namespace: str
    name: str
    with_ports: bool


SetSource = SelectorSource | NodeSource | PortSource | ServiceSource


# what some rule has: a cache would keep the selectors of what is gone, some 4 kB each
_selector_sources: WeakValueDictionary[str, SelectorSource] = WeakValueDictionary()
_node_sources: WeakValueDictionary[str, NodeSource] = WeakValueDictionary()
_port_sources: WeakValueDictionary[tuple[str, PortNames, int | None], PortSource] = WeakValueDictionary()
_applied: WeakValueDictionary[tuple[str, str, str, str], Selector] = WeakValueDictionary()
_peers: WeakValueDictionary[tuple[str, str, str, tuple[str, ...], str, str], Selector] = WeakValueDictionary()


def selector_source(selector: Selector) -> SelectorSource:
    """``selector`` is normalized."""
    found = _selector_sources.get(selector.text)
    if found is None:
        found = _selector_sources[selector.text] = SelectorSource(_id("s-", selector.text, selector.text), selector)
    return found


def node_source(selector: Selector) -> NodeSource:
    """``selector`` is normalized."""
    found = _node_sources.get(selector.text)
    if found is None:
        found = _node_sources[selector.text] = NodeSource(_id("s-nodes-", selector.text, selector.text), selector)
    return found


@lru_cache(maxsize=4096)
def _identity(names: PortNames) -> tuple[str, str]:
    """What is shown of the names, and what distinguishes them."""
    first, *more = sorted(names)
    return (f"{first}-{len(more)}-more", f",{digest(first, *more)}") if more else (first, first)


def port_source(selector: Selector | None, names: PortNames, protocol: int | None) -> PortSource:
    """``selector`` is normalized; None: everything that has such a port. ``names``: at least one."""
    selector = EVERYTHING if selector is None else selector
    found = _port_sources.get((selector.text, names, protocol))
    if found is None:
        first, distinct = _identity(names)
        shown = first if selector.text == EVERYTHING.text else f"{first}-{selector.text}"
        name = _id(PORT_SET, shown, selector.text, distinct, str(protocol))
        found = _port_sources[selector.text, names, protocol] = PortSource(name, selector, names, protocol)
    return found


@lru_cache(maxsize=4096)
def service_source(namespace: str, name: str, with_ports: bool) -> ServiceSource:
    beginning = f"{PORT_SET}service-" if with_ports else "s-service-"
    return ServiceSource(_id(beginning, f"{namespace}-{name}", namespace, name), namespace, name, with_ports)


# -- what a peer selects ----------------------------------------------------------------------------------------------


def peer_selector(
    selector: str, not_selector: str, namespace_selector: str, names: tuple[str, ...], accounts: str, namespace: str
) -> Selector | None:
    """The selector of a rule's peer, normalized; None if the peer selects nothing: without a selector, or with a
    notSelector alone, which strangers pass, too.

    ``names`` and ``accounts`` are serviceAccounts' names and selector; ``namespace`` is the policy's, or "". What
    notSelector excludes is excluded as an endpoint or network set, by its labels: its addresses still match if another
    one that is selected has them. Raises InvalidSelector.
    """
    key = (selector, not_selector, namespace_selector, names, accounts, namespace)
    found = _peers.get(key)
    if found is None:
        found = finish(_peer_selecting(*key))
        if found is not None:
            _peers[key] = found
    return found


def peer_selecting(
    selector: str, not_selector: str, namespace_selector: str, names: tuple[str, ...], accounts: str, namespace: str
) -> Steps[Selector | None]:
    """As ``peer_selector``, in steps where the selectors are long."""
    if max(map(len, (selector, not_selector, namespace_selector, accounts))) < LONG:
        return peer_selector(selector, not_selector, namespace_selector, names, accounts, namespace)
    return (yield from _peer_selecting(selector, not_selector, namespace_selector, names, accounts, namespace))


def _peer_selecting(
    selector: str, not_selector: str, namespace_selector: str, names: tuple[str, ...], accounts: str, namespace: str
) -> Steps[Selector | None]:
    parts: list[Tree] = []
    if accounts:
        parts.append(with_prefix((yield from parsing_tree(accounts)), ACCOUNT_PREFIX))
    if names:
        parts.append(equals(SERVICE_ACCOUNT, *names))
    if selector:
        parts.append((yield from parsing_tree(selector)))
    if namespace_selector:
        parts.append(_namespace_tree((yield from parsing_tree(namespace_selector))))
    elif namespace and (parts or not_selector):
        parts.append(equals(NAMESPACE, namespace))
    if not parts:
        return None
    if not_selector:
        parts.append(negation((yield from parsing_tree(not_selector))))
    return (yield from normalizing(conjunction(*parts)))


def _namespace_tree(tree: Tree) -> Tree:
    return read_specially(with_prefix(tree, NAMESPACE_PREFIX), NAMESPACE)


def policy_selecting(selector: str, namespace_selector: str, accounts: str, namespace: str) -> Steps[Selector]:
    """As ``policy_selector``, in steps where the selectors are long."""
    if max(map(len, (selector, namespace_selector, accounts))) < LONG:
        return policy_selector(selector, namespace_selector, accounts, namespace)
    return (yield from _policy_selecting(selector, namespace_selector, accounts, namespace))


def policy_selector(selector: str, namespace_selector: str, accounts: str, namespace: str) -> Selector:
    """Which endpoints a policy applies to; ``namespace`` is the policy's, "" if it is global. Raises InvalidSelector.

    In a global policy every all(), also that of ``selector``, means "in a namespace" as soon as ``namespace_selector``
    is given, else "with a service account" if ``accounts`` is; it does not include host endpoints then. In a namespaced
    policy all() is what it says. Source: upstream's conversion of both kinds for its agent.
    """
    key = (selector, namespace_selector, accounts, namespace)
    found = _applied.get(key)
    if found is None:
        found = _applied[key] = finish(_policy_selecting(*key))
    return found


def _policy_selecting(selector: str, namespace_selector: str, accounts: str, namespace: str) -> Steps[Selector]:
    parts = [(yield from parsing_tree(selector))] if selector.strip() else []
    if namespace:
        parts.append(equals(NAMESPACE, namespace))
    if namespace_selector:
        parts.append(_namespace_tree((yield from parsing_tree(namespace_selector))))
        parts = parts if namespace else [require_for_all(part, NAMESPACE) for part in parts]
    if accounts:
        parts.append(with_prefix((yield from parsing_tree(accounts)), ACCOUNT_PREFIX))
        parts = parts if namespace else [require_for_all(part, SERVICE_ACCOUNT) for part in parts]
    return (yield from normalizing(conjunction(*parts))) if parts else EVERYTHING
