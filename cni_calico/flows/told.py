"""PURE: whether what a recorder tells has the form of what is asked of recorders.

Rule: who shows a document, or adds it up, need not look whether its parts are there and of their types. What else is in
it is not looked at, so that a later recorder may tell more.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from cni_calico.flows.query import ALLOWED, DENIED, ONLY_DENIED, UNKNOWN

RESULTS = {"allow": "allowed", "deny": "denied", "changed": "changed"}
_WRONG = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_SIDES, _REPORTERS = ("source", "destination"), ("src", "dst")
_ENDS_TEXTS, _SERVICE_TEXTS = ("kind", "namespace", "name"), ("namespace", "name", "port")
_SET_TEXTS = ("namespace", "name")
_COUNTS = ("packets", "bytes")
_LATEST_S = 1e11


def require_told(document: Mapping[str, Any]) -> None:
    """Any document that answers, but for the status. Raises ValueError."""
    if document.get("end"):
        require_ending(document)
    elif "note" in document:
        if not isinstance(document["note"], str):
            raise ValueError("a note is no text")
    elif "lost" in document:
        require_missed(document)
    else:
        require_flow(document)


def require_flow(document: Mapping[str, Any]) -> tuple[str, int | None, str, int | None]:
    """Returns the addresses and ports. Raises ValueError."""
    try:
        source, destination = (_require_end(document[side]) for side in _SIDES)
        fits = document["reporter"] in _REPORTERS and document["verdict"] in (ALLOWED, DENIED)
        fits = fits and type(document["connections"]) is int and isinstance(document["protocol"], str)
        fits = fits and isinstance(document["start"], str) and isinstance(document["last"], str)
        fits = fits and isinstance(document["decided"], list)
        fits = fits and all(isinstance(one["said"], str) and _is_decision(one) for one in document["decided"])
        fits = fits and all(_is_count(document.get(name)) for name in _COUNTS)
        fits = fits and all(isinstance(document[side]["kind"], str) for side in _SIDES)
        if "icmp" in document:
            icmp = document["icmp"]
            fits = fits and type(icmp["type"]) is int and type(icmp["code"]) is int
        if not all(isinstance(one, str) for one in document.get("nodes", ())):
            raise ValueError("nodes are no texts")
        require_staged(document.get("staged"))
    except _WRONG as e:
        raise ValueError(f"what it says is no flow: {_why(e)}") from e
    if not fits:
        raise ValueError("what it says is no flow")
    return *source, *destination


def _why(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)


def _is_decision(one: Mapping[str, Any]) -> bool:
    policy, passed = one.get("trigger") or {}, one.get("passed", [])
    fits = isinstance(policy, dict) and isinstance(passed, list)
    return fits and all(isinstance(step["said"], str) for step in passed)


def _is_count(found: Any) -> bool:
    """None where the kernel did not count."""
    return found is None or all(type(found[way]) is int for way in ("in", "out"))


def _require_end(end: Mapping[str, Any]) -> tuple[str, int | None]:
    port, asked = end.get("port"), end.get("asked")
    if port is not None and type(port) is not int:
        raise ValueError("a port is no number")
    if asked is not None:
        _require_end(asked)
        if type(asked["port"]) is not int:
            raise ValueError("a port is no number")
    if "service" in end and not all(isinstance(end["service"][text], str) for text in _SERVICE_TEXTS):
        raise ValueError("a service is no text")
    if "set" in end and not all(isinstance(end["set"][text], str) for text in _SET_TEXTS):
        raise ValueError("a network set is no text")
    if "name" in end and not all(isinstance(end[text], str) for text in _ENDS_TEXTS):
        raise ValueError("a name is no text")
    if not all(isinstance(label, str) for both in (end.get("labels") or {}).items() for label in both):
        raise ValueError("labels are no texts")
    if not isinstance(end["ip"], str):
        raise ValueError("an address is no text")
    return str(ip_address(end["ip"])), port


def require_staged(found: Any) -> None:
    """Raises KeyError, TypeError, ValueError."""
    if found is None:
        return
    fits = found["verdict"] in (ALLOWED, DENIED, UNKNOWN)
    fits = fits and (found["verdict"] == UNKNOWN or type(found["changes"]) is bool)
    fits = fits and all(isinstance(one["said"], str) and one["action"] in ("Allow", "Deny") for one in found["decided"])
    fits = fits and all(
        isinstance(one["policy"], str) and one["result"] in RESULTS for one in found.get("policies", ())
    )
    if not fits:
        raise ValueError("what it says of staged policies has another form")


def require_ending(document: Mapping[str, Any]) -> None:
    """The last document of an answer. Raises ValueError."""
    try:
        for one in document["lost"]:
            require_loss(one)
        for since in (document.get("kept") or {}).values():
            if since is not None and not _is_time(since):
                raise ValueError("since when it has flows is no time")
        (document.get("unanswered") or {}).items()
        if not all(isinstance(node, str) for node in (document["node"], *document.get(ONLY_DENIED, ()))):
            raise ValueError("a node is no text")
    except (KeyError, TypeError, AttributeError) as e:
        raise ValueError(f"what it says is no end of an answer: {_why(e)}") from e


def require_loss(found: Mapping[str, Any]) -> None:
    """What was not recorded, at the end of an answer. Raises ValueError."""
    try:
        count = found["count"]
        if not (_is_time(found["from"]) and _is_time(found["to"])) or not (count is None or type(count) is int):
            raise ValueError("what it has lost is no time or number")
        if not all(isinstance(found[name], str) for name in ("source", "why")):
            raise ValueError("what it has lost is no text")
    except (KeyError, TypeError) as e:
        raise ValueError(f"what it says is no loss: {_why(e)}") from e


def _is_time(found: Any) -> bool:
    return type(found) in (int, float) and 0 <= found <= _LATEST_S


def require_missed(document: Mapping[str, Any]) -> None:
    """What a reader, or a sum, has missed. Raises ValueError."""
    if type(document["lost"]) is not int:
        raise ValueError("what it has lost is no number")
