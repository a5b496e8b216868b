"""PURE: Kubernetes' NetworkPolicy and ClusterNetworkPolicy as policies in Calico's form.

Rule: what cannot be expressed in Calico's form never makes a policy wider: a rule that allows is left out, and one that
denies or passes denies everything. What was left out is reported. Sources: upstream's conversion, and the API
``policy.networking.k8s.io/v1alpha2``.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    parse_int,
    parse_list,
    parse_object,
    parse_objects,
    parse_text,
    parse_text_map,
    parse_texts,
    without_zone,
)
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.custom import object_name
from cni_calico.model.kubernetes.policy_ports import PORT_MAX, by_protocol, port_range
from cni_calico.model.selector_forms import ORCHESTRATOR

NETWORK_POLICY = "KubernetesNetworkPolicy"
CLUSTER_NETWORK_POLICY = "KubernetesClusterNetworkPolicy"
STORED_PREFIX = "knp.default."  # of the NetworkPolicy in etcd that upstream's controller derives from one
ORDER = 1000
TIERS = {"Admin": "kube-admin", "Baseline": "kube-baseline"}
ACTIONS = {"Accept": "Allow", "Deny": "Deny", "Pass": "Pass"}
IS_POD = f"{ORCHESTRATOR} == 'k8s'"
NODE_SELECTOR = "nodeSelector"  # of a converted rule's destination: the nodes whose addresses it means
PEERS = 50
_RulesInSteps = Generator[None, None, list[dict[str, Any]]]
_LABEL = re.compile(r"[A-Za-z0-9_./-]{1,512}")


@dataclass(frozen=True, slots=True)
class ConvertedPolicy:
    """``document`` is the policy; ``left_out`` says in words which rules could not be converted as they are."""

    key: ResourceKey
    document: JSON
    left_out: tuple[str, ...] = ()


def _document(key: ResourceKey, metadata: JSON, spec: JSON) -> dict[str, Any]:
    head = {name: metadata[name] for name in ("uid", "creationTimestamp") if metadata.get(name)}
    if key.namespace:
        head["namespace"] = key.namespace
    return {"apiVersion": API_VERSION, "kind": key.kind, "metadata": {"name": key.name, **head}, "spec": spec}


def _metadata(obj: JSON) -> JSON:
    return parse_object(obj.get("metadata"), "metadata")


# -- selectors --------------------------------------------------------------------------------------------------------


def _read_selector(raw: Any, at: str) -> list[str]:
    """A label selector as terms of Calico's language; none for a selector that matches everything."""
    selector = parse_object(raw, at)
    labels = parse_text_map(selector.get("matchLabels") or {}, f"{at}.matchLabels")
    terms = [f"{_label(key, at)} == {_quoted(labels[key], at)}" for key in sorted(labels)]
    for i, one in enumerate(parse_objects(selector.get("matchExpressions") or (), f"{at}.matchExpressions")):
        terms.append(_read_expression(one, f"{at}.matchExpressions[{i}]"))
    return terms


def _read_expression(raw: JSON, at: str) -> str:
    label, operator = _label(raw.get("key"), f"{at}.key"), raw.get("operator")
    values = ", ".join(_quoted(value, at) for value in parse_texts(raw.get("values") or (), f"{at}.values"))
    if operator in ("In", "NotIn"):
        return f"{label} {'in' if operator == 'In' else 'not in'} {{ {values} }}"
    if operator in ("Exists", "DoesNotExist"):
        return f"{'' if operator == 'Exists' else '! '}has({label})"
    raise Wrong(f"{at}.operator", "In, NotIn, Exists or DoesNotExist", operator)


def _label(raw: Any, at: str) -> str:
    text = parse_text(raw, at)
    if not _LABEL.fullmatch(text):
        raise Wrong(at, "the name of a label", raw)
    return text


def _quoted(value: str, at: str) -> str:
    if "'" in value:
        raise Wrong(at, "the value of a label", value)
    return f"'{value}'"


def _pods(raw: Any, at: str) -> str:
    return " && ".join([IS_POD, *([] if raw is None else _read_selector(raw, at))])


def _namespaces(raw: Any, at: str) -> str:
    """The namespaceSelector: "" for an absent one (the policy's own namespace), all() for an empty one."""
    return "" if raw is None else " && ".join(_read_selector(raw, at)) or "all()"


# -- NetworkPolicy ----------------------------------------------------------------------------------------------------


def read_network_policy(obj: JSON) -> ConvertedPolicy:
    """With a kind of its own, which the engine enforces if Kubernetes is the datastore. Raises CorruptRecord."""
    return _finish(reading_network_policy(obj))


def reading_network_policy(obj: JSON) -> Generator[None, None, ConvertedPolicy]:
    """As ``read_network_policy``, PEERS peers at each step: those of a rule are multiplied by its protocols."""
    return _reading_network_policy(obj, NETWORK_POLICY, "")


def read_stored_network_policy(obj: JSON) -> ConvertedPolicy:
    """The NetworkPolicy that is stored for it in etcd. Raises CorruptRecord."""
    return _finish(_reading_network_policy(obj, "NetworkPolicy", STORED_PREFIX))


def _finish(steps: Generator[None, None, ConvertedPolicy]) -> ConvertedPolicy:
    while True:
        try:
            next(steps)
        except StopIteration as e:
            found: ConvertedPolicy = e.value
            return found


def _reading_network_policy(obj: JSON, kind: str, prefix: str) -> Generator[None, None, ConvertedPolicy]:
    try:
        metadata = _metadata(obj)
        name = prefix + parse_text(metadata.get("name"), "metadata.name")
        key = ResourceKey(kind, name, parse_text(metadata.get("namespace"), "metadata.namespace"))
        spec = parse_object(obj.get("spec") or {}, "spec")
        left_out: list[str] = []
        wanted = parse_texts(spec.get("policyTypes") or (), "spec.policyTypes")
        types = [name for name in ("Ingress", "Egress") if name in wanted] or ["Ingress"]
        converted = {
            "order": ORDER,
            "tier": "default",
            "selector": _pods(spec.get("podSelector") or {}, "spec.podSelector"),
            "types": types,
            "ingress": (yield from _reading_rules(spec.get("ingress"), "spec.ingress", "from", "source", left_out)),
            "egress": (yield from _reading_rules(spec.get("egress"), "spec.egress", "to", "destination", left_out)),
        }
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {e}") from e
    kept = {field: value for field, value in converted.items() if value != []}
    return ConvertedPolicy(key, _document(key, metadata, kept), tuple(left_out))


def _reading_rules(raw: Any, at: str, peers: str, side: str, left_out: list[str]) -> _RulesInSteps:
    found: list[dict[str, Any]] = []
    for i, item in enumerate(parse_list(raw or (), at)):
        try:
            rule = parse_object(item, f"{at}[{i}]")
            ports = _read_ports(rule.get("ports"), f"{at}[{i}].ports")
            selected = yield from _reading_peers(rule.get(peers), f"{at}[{i}].{peers}")
        except Wrong as e:
            left_out.append(f"{at}[{i}] allows nothing: {e}")
            continue
        for protocol, listed in ports:
            for begin in range(0, len(selected), PEERS):
                part = selected[begin : begin + PEERS]
                found += [_combined("Allow", protocol, listed, peer, side) for peer in part]
                yield
    return found


def _combined(action: str, protocol: str | None, ports: list[Any], peer: JSON, side: str) -> dict[str, Any]:
    sides: dict[str, dict[str, Any]] = {"source": {}, "destination": {}}
    sides[side].update(peer)
    if ports:
        sides["destination"]["ports"] = ports
    return {"action": action, **({"protocol": protocol} if protocol else {}), **sides}


def _reading_peers(raw: Any, at: str) -> _RulesInSteps:
    """The peers of a rule; a single empty one if the rule is for all peers."""
    found: list[dict[str, Any]] = []
    for i, peer in enumerate(parse_objects(raw or (), at)):
        found.append(_read_peer(peer, f"{at}[{i}]"))
        if not len(found) % PEERS:
            yield
    return found or [{}]


def _read_peer(raw: JSON, at: str) -> dict[str, Any]:
    block = raw.get("ipBlock")
    if block is None:
        if raw.get("podSelector") is None and raw.get("namespaceSelector") is None:
            raise Wrong(at, "an ipBlock, a podSelector or a namespaceSelector", dict(raw))
        return _selected(raw.get("podSelector"), raw.get("namespaceSelector"), at)
    block = parse_object(block, f"{at}.ipBlock")
    nets = [_network(block.get("cidr"), f"{at}.ipBlock.cidr")]
    excepted = [_network(net, f"{at}.ipBlock.except") for net in parse_list(block.get("except") or (), at)]
    return {"nets": nets, **({"notNets": excepted} if excepted else {})}


def _selected(pods: Any, namespaces: Any, at: str) -> dict[str, str]:
    found = {"selector": _pods(pods, f"{at}.podSelector")}
    spaces = _namespaces(namespaces, f"{at}.namespaceSelector")
    return {**found, "namespaceSelector": spaces} if spaces else found


def _network(raw: Any, at: str) -> str:
    text = parse_text(raw, at)
    try:
        if "/" in text:
            return str(ip_network(without_zone(text), strict=False))
    except ValueError:
        pass
    raise Wrong(at, "a network in CIDR notation", raw)


def _read_ports(raw: Any, at: str) -> list[tuple[str | None, list[Any]]]:
    """(protocol, its ports), sorted. No ports: all ports of the protocol; no protocol: all traffic."""
    entries = parse_objects(raw or (), at)
    listed = []
    for i, entry in enumerate(entries):
        protocol = parse_text(entry.get("protocol") or "TCP", f"{at}[{i}].protocol")
        listed.append((protocol, _read_port(entry, f"{at}[{i}]")))
    return by_protocol(listed)


def _read_port(entry: JSON, at: str) -> tuple[int, int] | str | None:
    port, last = entry.get("port"), entry.get("endPort")
    if port is None:
        return None
    if isinstance(port, str):
        if last is not None or ":" in port:
            raise Wrong(f"{at}.port", "a number before endPort", port)
        if not (port.isascii() and port.isdecimal()):
            return port
        if len(port) > 5:
            raise Wrong(f"{at}.port", f"a port up to {PORT_MAX}", port)
        return int(port), int(port)
    return port_range(port, port if last is None else last, at)


# -- ClusterNetworkPolicy ---------------------------------------------------------------------------------------------


def read_cluster_network_policy(obj: JSON) -> ConvertedPolicy | None:
    """The policy in Calico's form; None for an unknown tier. Raises CorruptRecord."""
    try:
        metadata = _metadata(obj)
        key = ResourceKey(CLUSTER_NETWORK_POLICY, parse_text(metadata.get("name"), "metadata.name"))
        spec = parse_object(obj.get("spec") or {}, "spec")
        if parse_text(spec.get("tier") or "", "spec.tier") not in TIERS:
            return None
        left_out: list[str] = []
        rules = {
            "ingress": _cluster_rules(spec.get("ingress"), "spec.ingress", "from", "source", left_out),
            "egress": _cluster_rules(spec.get("egress"), "spec.egress", "to", "destination", left_out),
        }
        converted = {
            "order": parse_int(spec.get("priority"), "spec.priority"),
            "tier": TIERS[spec["tier"]],
            **_read_subject(parse_object(spec.get("subject"), "spec.subject")),
            "types": [name.capitalize() for name in rules if spec.get(name)],
            **{name: found for name, found in rules.items() if found},
        }
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {e}") from e
    if not converted["types"]:
        return None
    return ConvertedPolicy(key, _document(key, metadata, converted), tuple(left_out))


def _read_subject(subject: JSON) -> dict[str, str]:
    if subject.get("pods") is not None:
        return _selected_pods(parse_object(subject["pods"], "spec.subject.pods"), "spec.subject.pods")
    return _selected_namespaces(subject.get("namespaces"), "spec.subject.namespaces")


def _selected_pods(raw: JSON, at: str) -> dict[str, str]:
    return _selected(raw.get("podSelector"), raw.get("namespaceSelector") or {}, at)


def _selected_namespaces(raw: Any, at: str) -> dict[str, str]:
    return {"selector": IS_POD, "namespaceSelector": _namespaces(parse_object(raw, at), at)}


def _cluster_rules(raw: Any, at: str, peers: str, side: str, left_out: list[str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for i, item in enumerate(parse_list(raw or (), at)):
        rule = parse_object(item, f"{at}[{i}]")
        named = {"metadata": {"annotations": {"name": rule["name"]}}} if isinstance(rule.get("name"), str) else {}
        action = ACTIONS.get(str(rule.get("action")))
        try:
            if action is None:
                raise Wrong(f"{at}[{i}].action", "one of " + ", ".join(ACTIONS), rule.get("action"))
            ports = _read_protocols(rule.get("protocols"), f"{at}[{i}].protocols")
            selected = _read_cluster_peers(rule.get(peers), f"{at}[{i}].{peers}", side)
            if any(NODE_SELECTOR in peer for peer in selected) and any(map(_is_named, rule.get("protocols") or ())):
                raise Wrong(f"{at}[{i}].protocols", "numbers of ports where a peer is nodes", rule.get("protocols"))
            found += [
                {**_combined(action, protocol, listed, peer, side), **named}
                for protocol, listed in ports
                for peer in selected
            ]
        except Wrong as e:
            if action == "Allow":
                left_out.append(f"{at}[{i}] accepts nothing: {e}")
            else:
                left_out.append(f"{at}[{i}] denies everything: {e}")
                found.append({**_combined("Deny", None, [], {}, side), **named})
    return found


def _read_cluster_peers(raw: Any, at: str, side: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for i, peer in enumerate(parse_objects(raw, at)):
        here = f"{at}[{i}]"
        if set(peer) == {"namespaces"}:
            found.append(_selected_namespaces(peer["namespaces"], f"{here}.namespaces"))
        elif set(peer) == {"pods"}:
            found.append(_selected_pods(parse_object(peer["pods"], f"{here}.pods"), f"{here}.pods"))
        elif set(peer) == {"networks"} and side == "destination" and peer["networks"]:
            found.append({"nets": [_network(net, f"{here}.networks") for net in parse_list(peer["networks"], here)]})
        elif set(peer) == {"nodes"} and side == "destination":
            terms = _read_selector(parse_object(peer["nodes"], f"{here}.nodes"), f"{here}.nodes")
            found.append({NODE_SELECTOR: " && ".join(terms) or "all()"})
        else:
            raise Wrong(here, "namespaces, pods or (egress) networks or nodes", dict(peer))
    if not found:
        raise Wrong(at, "at least one peer", raw)
    return found


def _is_named(entry: JSON) -> bool:
    return "destinationNamedPort" in entry


def _read_protocols(raw: Any, at: str) -> list[tuple[str | None, list[Any]]]:
    listed: list[tuple[str, tuple[int, int] | str | None]] = []
    names: list[Any] = []
    for i, entry in enumerate(parse_objects(raw or (), at)):
        here = f"{at}[{i}]"
        if set(entry) == {"destinationNamedPort"}:
            names.append(parse_text(entry["destinationNamedPort"], here))
        elif len(entry) == 1 and next(iter(entry)) in ("tcp", "udp", "sctp"):
            protocol, ports = next(iter(entry.items()))
            listed.append((protocol.upper(), _read_destination(parse_object(ports or {}, here), here)))
        else:
            raise Wrong(here, "tcp, udp, sctp or destinationNamedPort", dict(entry))
    if names and not listed:
        return [(None, names)]
    return by_protocol(listed) + ([(None, names)] if names else [])


def _read_destination(ports: JSON, at: str) -> tuple[int, int] | None:
    port = ports.get("destinationPort")
    if port is None:
        if ports:
            raise Wrong(at, "destinationPort", dict(ports))
        return None
    port = parse_object(port, f"{at}.destinationPort")
    if set(port) == {"number"}:
        return port_range(port["number"], port["number"], f"{at}.destinationPort.number")
    if set(port) == {"range"}:
        between = parse_object(port["range"], f"{at}.destinationPort.range")
        return port_range(between.get("start"), between.get("end"), f"{at}.destinationPort.range")
    raise Wrong(f"{at}.destinationPort", "a number or a range", dict(port))
