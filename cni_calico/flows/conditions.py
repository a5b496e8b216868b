"""PURE: whether a flow's document meets the conditions of a question.

Rule: this is what conditions mean; ``flows.selection`` gives the same answers without making documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cni_calico.flows.query import ANY, CHANGED, UNKNOWN, Condition


def meets(document: Mapping[str, Any], conditions: Iterable[Condition]) -> bool:
    return all(any(_matches(document, one.field, value) for value in one.values) != one.negated for one in conditions)


def _matches(document: Mapping[str, Any], name: str, value: str) -> bool:
    ends = document["source"], document["destination"]
    match name:
        case "verdict":
            return str(document["verdict"]) == value
        case "from":
            return is_end(ends[0], value)
        case "to":
            return is_end(ends[1], value)
        case "pod":
            return any(is_end(end, value) for end in ends)
        case "namespace":
            return any(end.get("namespace") == value for end in ends)
        case "ip":
            return any(end["ip"] == value for end in ends)
        case "port":
            return str(ends[1].get("port")) == value
        case "protocol":
            return str(document["protocol"]) == value.lower()
        case "policy":
            return any(_is_policy(one, value) for one in document["decided"])
        case "from-label":
            return has_label(ends[0].get("labels"), value)
        case "to-label":
            return has_label(ends[1].get("labels"), value)
        case "label":
            return any(has_label(end.get("labels"), value) for end in ends)
        case "service":
            return (ends[1].get("asked") or {}).get("ip") == value or is_service(ends[1].get("service"), value)
        case "staged":
            return would_be(document.get("staged"), value)
        case _:
            return any(one.get("tier") == value for one in document["decided"])


def has_label(labels: Mapping[str, str] | None, value: str) -> bool:
    """``value``: "key=value", or "key" with any."""
    key, equals, wanted = value.partition("=")
    found = (labels or {}).get(key)
    return found is not None and (not equals or found == wanted)


def would_be(staged: Mapping[str, Any] | None, value: str) -> bool:
    """``value``: a verdict, CHANGED or ANY. What is unknown is never left out: it is not unchanged."""
    if staged is None:
        return False
    if staged["verdict"] == UNKNOWN or value == ANY:
        return True
    return bool(staged["changes"]) if value == CHANGED else staged["verdict"] == value


def is_end(end: Mapping[str, Any], value: str) -> bool:
    """``value``: an address, "namespace/", or the beginning of a name, with or without its namespace; of an address
    also the name of its network set.
    """
    if end["ip"] == value:
        return True
    named = end if "name" in end else end.get("set")
    return named is not None and is_named(str(named["namespace"]), str(named["name"]), value)


def is_service(service: Mapping[str, Any] | None, value: str) -> bool:
    """``value``: its whole name, with or without its namespace."""
    if service is None:
        return False
    namespace, slash, name = value.rpartition("/")
    return bool(service["name"] == name) and (not slash or service["namespace"] == namespace)


def is_named(namespace: str, name: str, value: str) -> bool:
    """``value``: the beginning of a name, with or without its whole namespace."""
    wanted, slash, begin = value.rpartition("/")
    return (not slash or namespace == wanted) and name.startswith(begin)


def _is_policy(decided: Mapping[str, Any], value: str) -> bool:
    policy = decided.get("trigger") or decided
    namespace, slash, name = value.rpartition("/")
    return policy.get("name") == name and (not slash or policy.get("namespace") == namespace)
