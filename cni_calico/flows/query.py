"""PURE: what a reader of flows asks for, and each flow as a document.

Rule: a request is refused by name for what is unknown in it. Values of one field are alternatives, fields must all be
met; a condition with ``not`` must not be met.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from cni_calico.flows.deciders import FIRST, Decider, describe_decider
from cni_calico.flows.given_names import OF_NOW, GivenName, parse_given
from cni_calico.flows.labels import LabelVersions, labels_at
from cni_calico.flows.names import EndName
from cni_calico.flows.network_sets import NetworkSetName, SetOf
from cni_calico.flows.packets import ICMP, ICMPV6
from cni_calico.flows.records import COUNTED, ENDED, GONE, FlowRecord
from cni_calico.flows.services import ServiceOf

PROTOCOLS = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp"}
STAGED, CHANGED, ANY = "staged", "changed", "any"
FIELDS = (
    *("verdict", "from", "to", "pod", "namespace", "ip", "port", "protocol", "policy", "tier"),
    *("from-label", "to-label", "label", "service", STAGED),
)
ALLOWED, DENIED, UNKNOWN = "allowed", "denied", "unknown"
ONLY_DENIED = "only_denied"  # at the end of an answer: nodes that record nothing that they let through
COMPUTED, KERNEL = "computed", "kernel"
DOUBTFUL = UNKNOWN, COMPUTED  # of what decided: nobody knows, or only the rules in force say so
MOST_LAST = 1_000_000
_LATEST_S = 1e11  # some thousand years
_FIELDS_OF_QUERY = (
    *("conditions", "last", "since", "until", "follow", "aggregate", "status", "steps", "names"),
    *("first", STAGED),
)


class QueryRefused(Exception):
    """The text says what is wrong."""


@dataclass(frozen=True, slots=True)
class Condition:
    """``values``: one of them; names are prefixes ("shop/web"), labels "key=value" or "key" with any value, a service
    is its name, with or without its namespace, or the address to which connections are sent; all others are whole.
    """

    field: str
    values: tuple[str, ...]
    negated: bool = False


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """``since``, ``until``: seconds since 1970. ``last``: the newest so many; None: all. ``status``: only how the
    recorder is. ``steps``: also the tiers that passed on before somebody decided. ``names``: of other nodes' ends.
    ``first``: the oldest so many, instead of ``last``.
    ``staged``: also what staged policies would do.
    """

    conditions: tuple[Condition, ...] = ()
    last: int | None = None
    since: float | None = None
    until: float | None = None
    follow: bool = False
    aggregate: bool = False
    status: bool = False
    steps: bool = False
    names: tuple[GivenName, ...] = ()
    first: int | None = None
    staged: bool = False

    @property
    def asks_staged(self) -> bool:
        """Whether it is also, or only, about what staged policies would do."""
        return self.staged or any(one.field == STAGED for one in self.conditions)


def render_query(request: FlowQuery) -> bytes:
    """Only what is asked: a recorder of before refuses fields that it does not know."""
    conditions = [{"field": one.field, "values": one.values, "not": one.negated} for one in request.conditions]
    flags = request.follow, request.aggregate, request.status, request.steps
    asked = request.last, request.since, request.until, *flags, request.names, request.first, request.staged
    named = zip(_FIELDS_OF_QUERY, (conditions, *asked), strict=True)
    found = {name: value for name, value in named if value not in ([], ()) and value is not None and value is not False}
    return json.dumps(found).encode() + b"\n"


def parse_query(line: bytes) -> FlowQuery:
    """Raises QueryRefused."""
    try:
        found = json.loads(line)
    except ValueError as e:
        raise QueryRefused(f"the request is not JSON: {e}") from e
    if not isinstance(found, dict):
        raise QueryRefused("the request is not a JSON object")
    for name in found:
        if name not in _FIELDS_OF_QUERY:
            raise QueryRefused(f"unknown field {name!r} in the request: there are {', '.join(_FIELDS_OF_QUERY)}")
    conditions = found.get("conditions", [])
    if not isinstance(conditions, list):
        raise QueryRefused("conditions must be a list")
    return FlowQuery(
        tuple(map(_parse_condition, conditions)),
        _parse_count(found, "last"),
        _parse_time(found, "since"),
        _parse_time(found, "until"),
        _parse_flag(found, "follow"),
        _parse_flag(found, "aggregate"),
        _parse_flag(found, "status"),
        _parse_flag(found, "steps"),
        _parse_names(found.get("names", [])),
        _parse_count(found, "first"),
        _parse_flag(found, STAGED),
    )


def _parse_count(found: Mapping[str, Any], name: str) -> int | None:
    count = found.get(name)
    if count is not None and (type(count) is not int or not 0 <= count <= MOST_LAST):
        raise QueryRefused(f"{name} must be a number up to {MOST_LAST}")
    return count


def _parse_condition(found: Any) -> Condition:
    if not isinstance(found, dict) or found.keys() - {"field", "values", "not"}:
        raise QueryRefused("a condition has field, values and not")
    name, values = found.get("field"), found.get("values")
    if name not in FIELDS:
        raise QueryRefused(f"unknown field {name!r} in a condition: there are {', '.join(FIELDS)}")
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise QueryRefused(f"the values of {name} must be a list of texts")
    return Condition(name, tuple(values), _parse_flag(found, "not"))


def _parse_time(found: Mapping[str, Any], name: str) -> float | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -_LATEST_S <= value <= _LATEST_S:
        raise QueryRefused(f"{name} must be seconds since 1970")
    return float(value)


def _parse_names(found: Any) -> tuple[GivenName, ...]:
    try:
        return parse_given(found)
    except ValueError as e:
        raise QueryRefused(str(e)) from e


def _parse_flag(found: Mapping[str, Any], name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise QueryRefused(f"{name} must be true or false")
    return value


# -- documents --------------------------------------------------------------------------------------------------------


StagedBy = Callable[[FlowRecord, EndName | None, EndName | None], dict[str, Any] | None]
"""What staged policies would do, of a connection and the names of its ends; None if it is nothing of theirs."""


@dataclass(frozen=True, slots=True)
class Describer:
    """``decider_of`` and ``name_of``: what numbers stand for, None if that is unknown. ``passed_by``: the tiers that
    passed on before it decided, None if the rules in force do not say so any more. ``given``: the name of an end that
    has none here, of an address and a time (microseconds since 1970); None: nobody gives names. ``labels_of``: an
    end's, and from when on it had them; a flow has those that its ends had when it began. ``computed_by``: what the
    rules in force say where it is unknown what a number of a connection stands for. ``set_of``: the network set in
    which an address is that has no name, for somebody in a namespace; None: no network sets are known. ``service_of``:
    to which it was sent.
    """

    node: str
    decider_of: Callable[[int], Decider | None]
    name_of: Callable[[int], EndName | None]
    passed_by: Callable[[FlowRecord, Decider], list[dict[str, Any]] | None] = lambda record, decider: None
    given: Callable[[bytes, int], GivenName | None] | None = None
    labels_of: Callable[[EndName], LabelVersions] = lambda name: ()
    staged_by: StagedBy | None = None
    computed_by: Callable[[FlowRecord, int], Decider | None] = lambda record, number: None
    set_of: SetOf | None = None
    service_of: ServiceOf = lambda record: None

    def describe(self, record: FlowRecord) -> dict[str, Any]:
        """The document of a flow. Packets and bytes are null where the kernel did not count them."""
        decided = [self._decided(record, number) for number in record.numbers() if number != record.denied_by]
        if record.denied:
            decided.append(self._decided(record, record.denied_by))
        at_destination = any(one.get("direction") == "ingress" for one in decided)
        here, back = ("in", "out") if at_destination else ("out", "in")
        counted = bool(record.flags & COUNTED)
        packets = {here: record.packets, back: record.packets_back}
        size = {here: record.size, back: record.size_back}
        how = next((how for how in DOUBTFUL if any(one.get(how) for one in decided)), KERNEL)
        return {
            "start": _shown_time(record.began),
            "last": _shown_time(record.last),
            "node": self.node,
            "verdict": DENIED if record.denied else ALLOWED,
            "reporter": "dst" if at_destination else "src",
            "connections": 1,
            "source": self._end(record, _source_port(record), source=True),
            "destination": {
                **self._end(record, _port(record), source=False),
                "asked": _asked(record),
                **({} if (service := self.service_of(record)) is None else {"service": service._asdict()}),
            },
            "protocol": PROTOCOLS.get(record.protocol, str(record.protocol)),
            **({"icmp": {"type": record.dport >> 8, "code": record.dport & 255}} if _is_icmp(record) else {}),
            "decided": decided,
            "packets": packets if counted or record.denied else None,
            "bytes": size if counted else None,
            "ended": bool(record.flags & ENDED) or record.denied,
            "how": how,
            **({"end": "unseen"} if record.flags & GONE else {}),
            **({} if (staged := self.staged(record)) is None else {"staged": staged}),
        }

    def staged(self, record: FlowRecord) -> dict[str, Any] | None:
        """What staged policies would do."""
        if self.staged_by is None:
            return None
        return self.staged_by(record, self.name_of(record.source_end), self.name_of(record.destination_end))

    def _decided(self, record: FlowRecord, number: int) -> dict[str, Any]:
        decider = self.decider_of(number)
        computed = self.computed_by(record, number) if decider is None and number >= FIRST else None
        if computed is not None:
            found = describe_decider(number, computed, denied=computed.action == "Deny")
            return {**found, COMPUTED: True, "said": f"{found['said']} (computed)"}
        found = describe_decider(number, decider, denied=record.denied and number == record.denied_by)
        passed = None if decider is None else self.passed_by(record, decider)
        return found if passed is None else {**found, "passed": passed}

    def _end(self, record: FlowRecord, port: int | None, *, source: bool) -> dict[str, Any]:
        name = self.name(record, source=source)
        where = {"ip": str(ip_address(_address(record, source=source))), **({} if port is None else {"port": port})}
        if name is None:
            found = self.network_set(record, source=source)
            return {"kind": "address", **({} if found is None else {"set": found._asdict()}), **where}
        labels = self.labels(name, record.began)
        labelled: dict[str, Any] = {} if labels is None else {"labels": dict(labels)}
        if isinstance(name, GivenName):
            labelled[OF_NOW] = True
        return {"kind": name.kind, "namespace": name.namespace, "name": name.name, **labelled, **where}

    def name(self, record: FlowRecord, *, source: bool) -> EndName | GivenName | None:
        """Of one end."""
        name = self.name_of(record.source_end if source else record.destination_end)
        if name is not None or self.given is None:
            return name
        return self.given(_address(record, source=source), record.began)

    def network_set(self, record: FlowRecord, *, source: bool) -> NetworkSetName | None:
        """In which an end is that has no name."""
        if self.set_of is None or self.name(record, source=source) is not None:
            return None
        other = self.name(record, source=not source)
        return self.set_of(_address(record, source=source), "" if other is None else other.namespace)

    def labels(self, name: EndName | GivenName, began: int) -> Mapping[str, str] | None:
        """That it had at a time, in microseconds since 1970."""
        if isinstance(name, GivenName):
            return name.labels
        meant = labels_at(self.labels_of(name), began, began)
        return None if meant is None else meant.labels


def _address(record: FlowRecord, *, source: bool) -> bytes:
    return record.source if source else record.destination


def _is_icmp(record: FlowRecord) -> bool:
    return record.protocol in (ICMP, ICMPV6)


def _port(record: FlowRecord) -> int | None:
    return None if _is_icmp(record) else record.dport


def _source_port(record: FlowRecord) -> int | None:
    return None if _is_icmp(record) else record.sport


def is_translated(record: FlowRecord) -> bool:
    return (record.asked, record.asked_port) != (record.destination, record.dport) and not _is_icmp(record)


def _asked(record: FlowRecord) -> dict[str, Any] | None:
    """Where the connection was sent, if that was translated."""
    if not is_translated(record):
        return None
    return {"ip": str(ip_address(record.asked)), "port": record.asked_port}


def _shown_time(microseconds: int) -> str:
    try:
        return datetime.fromtimestamp(microseconds / 1e6, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return "unknown"


# -- summing up -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Aggregates:
    """Flows with the same ends and their labels, port and deciding rules, added up. At most ``most`` of them;
    ``left_out`` counts the flows of the others.
    """

    most: int = 10_000
    left_out: int = 0
    _found: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, document: dict[str, Any]) -> None:
        ends = [_whole(document[side]) for side in ("source", "destination")]
        rest = [document[name] for name in ("node", "verdict", "reporter", "protocol", "decided")]
        key = json.dumps([*ends, document["destination"].get("port"), document.get("icmp"), *rest])
        known = self._found.get(key)
        if known is None:
            if len(self._found) >= self.most:
                self.left_out += document["connections"]
                return
            document["source"].pop("port", None)
            self._found[key] = document
            return
        known["connections"] += document["connections"]
        known["start"], known["last"] = min(known["start"], document["start"]), max(known["last"], document["last"])
        known["ended"] = known["ended"] and document["ended"]
        for name in ("packets", "bytes"):
            if known[name] is not None and document[name] is not None:
                known[name] = {way: known[name][way] + document[name][way] for way in known[name]}
            elif document[name] is not None:
                known[name] = document[name]

    def documents(self) -> list[dict[str, Any]]:
        """Most connections first."""
        return sorted(self._found.values(), key=lambda one: -one["connections"])


def _whole(end: Mapping[str, Any]) -> list[Any]:
    if "name" not in end:
        return [end["ip"]]
    labels = sorted((end.get("labels") or {}).items())
    return [*(end.get(text) for text in ("kind", "namespace", "name", "relabelled", OF_NOW)), labels]
