"""PURE: what several nodes say about flows, as one answer: the two sides of a connection are one flow.

Rule: a node speaks for itself only, and what it says is believed only if it has the form of a flow. Two records are of
one connection if they have the same ends and ports, one is the source's and allowed, the other is the destination's,
and they begin at about the same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cni_calico.ctl.flows.staged import join_staged
from cni_calico.flows.given_names import OF_NOW
from cni_calico.flows.query import ALLOWED, DENIED, DOUBTFUL, KERNEL
from cni_calico.flows.told import require_flow

APART_S = 5.0  # the clocks of two nodes, and the time on the way
_SIDES = "source", "destination"
_ENDS_TEXTS = "kind", "namespace", "name"
_COUNTS = ("packets", "bytes")
FlowPath = tuple[object, ...]


@dataclass(slots=True)
class ToldFlow:
    """``document`` as text: there are many. ``start``: seconds since 1970. ``whole``: no other node has seen it, or has
    decided about it.
    """

    node: str
    start: float
    path: FlowPath
    reporter: str
    verdict: str
    whole: bool
    document: bytes


def parse_told(node: str, document: dict[str, Any]) -> ToldFlow:
    """A flow as ``node`` tells it. Raises ValueError for what is none."""
    try:
        start = datetime.fromisoformat(document["start"]).timestamp()
        datetime.fromisoformat(document["last"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise ValueError(f"what it says is no flow: {e}") from e
    ends, icmp = require_flow(document), document.get("icmp")
    path = *ends, document["protocol"], icmp and (icmp["type"], icmp["code"])
    document |= {"node": node, "nodes": [node]}
    reporter, verdict = document["reporter"], document["verdict"]
    whole = {one.get("direction") for one in document["decided"]} >= {"egress", "ingress"}
    whole = whole or (reporter == "src" and verdict == DENIED)
    return ToldFlow(node, start, path, reporter, verdict, whole, json.dumps(document).encode())


# -- single connections -----------------------------------------------------------------------------------------------


def join(told: Iterable[ToldFlow]) -> Iterator[dict[str, Any]]:
    """The oldest first."""
    listed = sorted(told, key=lambda one: one.start)
    partners = _partners(listed)
    for place, one in enumerate(listed):
        other = partners.get(place)
        if other is None:
            yield json.loads(one.document)
        elif other > place:
            yield join_sides(one, listed[other])


def _partners(listed: Sequence[ToldFlow]) -> dict[int, int]:
    found: dict[int, int] = {}
    waiting: dict[FlowPath, list[int]] = {}
    for place, one in enumerate(listed):
        others = [at for at in waiting.get(one.path, ()) if one.start - listed[at].start <= APART_S]
        partner = next((at for at in others if are_sides(one, listed[at])), None)
        if partner is None:
            waiting[one.path] = [*others, place]
        else:
            found[place], found[partner] = partner, place
            waiting[one.path] = [at for at in others if at != partner]
    return found


def are_sides(one: ToldFlow, other: ToldFlow) -> bool:
    """Whether the records, of the same path, are of one connection."""
    source = one if one.reporter == "src" else other
    near = abs(one.start - other.start) <= APART_S
    return near and one.node != other.node and one.reporter != other.reporter and source.verdict == ALLOWED


def join_sides(one: ToldFlow, other: ToldFlow) -> dict[str, Any]:
    source, destination = (one, other) if one.reporter == "src" else (other, one)
    return _joined(json.loads(source.document), json.loads(destination.document))


def _joined(source: dict[str, Any], destination: dict[str, Any]) -> dict[str, Any]:
    """``source``, ``destination``: whose record it is. Packets are those of the destination, if it has counted them."""
    ends = {
        "source": _better(source["source"], destination["source"]),
        "destination": _better(destination["destination"], source["destination"]),
    }
    sent: dict[str, Any] = next(
        (one["destination"] for one in (destination, source) if one["destination"].get("asked")), {}
    )
    service = sent.get("service")
    found = {
        **destination,
        "start": min(source["start"], destination["start"]),
        "last": max(source["last"], destination["last"]),
        "nodes": [source["node"], destination["node"]],
        "source": ends["source"],
        "destination": {
            **{name: value for name, value in ends["destination"].items() if name != "service"},
            "asked": sent.get("asked"),
            **({} if service is None else {"service": service}),
        },
        "decided": [*source["decided"], *destination["decided"]],
        "how": next((how for how in DOUBTFUL if how in (source.get("how"), destination.get("how"))), KERNEL),
    }
    staged = join_staged(source.get("staged"), destination.get("staged"))
    if staged is not None:
        found["staged"] = staged
    for name in _COUNTS:
        if destination.get(name) is None and source.get(name) is not None:
            found[name] = {"in": source[name].get("out"), "out": source[name].get("in")}
    return found


def _better(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """``one``: its own node's, which knows its labels of then."""
    return one if "name" in one or "name" not in other else other


# -- sums -------------------------------------------------------------------------------------------------------------


def join_sums(told: Iterable[ToldFlow]) -> list[dict[str, Any]]:
    """Most connections first. Where the sums of one side cannot be told apart by those of the other, both stand."""
    documents = _named_by_others([json.loads(one.document) for one in told])
    groups: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]]]] = {}
    found = list[dict[str, Any]]()
    for one in documents:
        if one["reporter"] == "src" and one["verdict"] == DENIED:
            found.append(one)  # nobody else has seen it
            continue
        ends = [_known_as(one[side]) for side in _SIDES]
        path = json.dumps([*ends, one["destination"].get("port"), one["protocol"], one.get("icmp")])
        groups.setdefault(path, ([], []))[one["reporter"] == "dst"].append(one)
    for sources, destinations in groups.values():
        nodes = {one["node"] for one in sources}, {one["node"] for one in destinations}
        if min(len(sources), len(destinations)) != 1 or nodes[0] & nodes[1]:
            found += [*sources, *destinations]
            continue
        counted = sources if len(sources) > 1 else destinations
        for source in sources:
            for destination in destinations:
                side = source if counted is sources else destination
                found.append({**_joined(source, destination), "connections": side["connections"]})
    return sorted(found, key=lambda one: -one["connections"])


def _known_as(end: Mapping[str, Any]) -> list[str]:
    return [end["kind"], end["namespace"], end["name"]] if "name" in end else [end["ip"]]


def _named_by_others(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An address without a name has the one that another node knows for it, if that is always the same, with the
    labels that this node has recorded; with several of them nobody knows who had which.
    """
    known: dict[str, list[dict[str, Any]]] = {}
    ends = [one[side] for one in documents for side in _SIDES]
    for end in ends:
        if "name" in end:
            known.setdefault(end["ip"], []).append(end)
    told = {ip: _told_by_others(its) for ip, its in known.items()}
    for end in ends:
        if "name" not in end:
            end |= told.get(end["ip"], {})
    return documents


def _told_by_others(ends: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of one address."""
    if len({tuple(end[text] for text in _ENDS_TEXTS) for end in ends}) > 1:
        return {}
    labelled = [end for end in ends if "labels" in end]
    recorded = [end for end in labelled if OF_NOW not in end] or labelled
    found = {text: ends[0][text] for text in _ENDS_TEXTS}
    if recorded:
        found |= {name: recorded[-1][name] for name in ("labels", OF_NOW) if name in recorded[-1]}
        if any("relabelled" in one or one["labels"] != found["labels"] for one in recorded):
            found["relabelled"] = True
    return found
