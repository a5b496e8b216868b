"""PURE: whether a record meets conditions, told without making a document of it.

Rule: the answer is that of ``query.meets`` for the record's document. What a number stands for is looked up once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from cni_calico.flows.conditions import has_label, is_named, is_service, would_be
from cni_calico.flows.deciders import END, Decider
from cni_calico.flows.given_names import GivenName
from cni_calico.flows.labels import LabelVersions
from cni_calico.flows.names import EndName
from cni_calico.flows.packets import ICMP, ICMPV6
from cni_calico.flows.query import ALLOWED, DENIED, PROTOCOLS, Condition, Describer, is_translated
from cni_calico.flows.records import FlowRecord

AnyName = EndName | GivenName
Test = Callable[[FlowRecord], bool]
_PROTOCOL_NUMBERS = {name: number for number, name in PROTOCOLS.items()}
_DIGITS = 5


class Selection:
    """For one question: the names that ends and rules have now."""

    def __init__(self, conditions: Iterable[Condition], describer: Describer) -> None:
        self._describer = describer
        self._tests = [(tuple(self._test(one.field, value) for value in one.values), one.negated) for one in conditions]

    def has(self, record: FlowRecord) -> bool:
        for tests, negated in self._tests:
            for test in tests:
                if test(record):
                    break
            else:
                if negated:
                    continue
                return False
            if negated:
                return False
        return True

    def _test(self, name: str, value: str) -> Test:
        match name:
            case "verdict":
                wanted = {ALLOWED: False, DENIED: True}.get(value)
                return lambda record: record.denied is wanted
            case "from":
                return self._end(value, source=True)
            case "to":
                return self._end(value, source=False)
            case "pod":
                source, destination = self._end(value, source=True), self._end(value, source=False)
                return lambda record: source(record) or destination(record)
            case "namespace":
                there = self._named(lambda end: end is not None and end.namespace == value)
                return lambda record: (
                    there(record.source_end, record.source, record.began)
                    or there(record.destination_end, record.destination, record.began)
                )
            case "from-label":
                return self._labelled(value, source=True)
            case "to-label":
                return self._labelled(value, source=False)
            case "label":
                source, destination = self._labelled(value, source=True), self._labelled(value, source=False)
                return lambda record: source(record) or destination(record)
            case "service":
                return self._service(value)
            case "ip":
                packed = _packed(value)
                return lambda record: packed in (record.source, record.destination)
            case "port":
                port = _number(value)
                return lambda record: record.dport == port and record.protocol not in (ICMP, ICMPV6)
            case "protocol":
                protocol = _protocol(value.lower())
                return lambda record: record.protocol == protocol
            case "staged":
                return lambda record: would_be(self._describer.staged(record), value)
            case _:
                return self._decider(name, value)

    def _end(self, value: str, *, source: bool) -> Test:
        packed = _packed(value)
        named = self._named(lambda end: _is_named(end, value))
        within = self._within(value, source=source)
        if source:
            return lambda record: (
                record.source == packed or named(record.source_end, record.source, record.began) or within(record)
            )
        return lambda record: (
            record.destination == packed
            or named(record.destination_end, record.destination, record.began)
            or within(record)
        )

    def _within(self, value: str, *, source: bool) -> Test:
        """In a network set of that name."""
        find = self._describer.network_set
        if self._describer.set_of is None:
            return lambda record: False

        def test(record: FlowRecord) -> bool:
            found = find(record, source=source)
            return found is not None and is_named(found.namespace, found.name, value)

        return test

    def _service(self, value: str) -> Test:
        asked, find = _packed(value), self._describer.service_of

        def test(record: FlowRecord) -> bool:
            if not is_translated(record):
                return False
            found = find(record)
            return record.asked == asked or (found is not None and is_service(found._asdict(), value))

        return test

    def _labelled(self, value: str, *, source: bool) -> Test:
        name_of, given, labels_of = self._describer.name_of, self._describer.given, self._describer.labels_of
        versions = _LabelledOnce(name_of, labels_of, value)

        def test(record: FlowRecord) -> bool:
            number, address = record.source_end, record.source
            if not source:
                number, address = record.destination_end, record.destination
            found = versions[number]
            if found is None:
                end = None if given is None else given(address, record.began)
                return end is not None and has_label(end.labels, value)
            return bool(found) and found[max(0, bisect_right(found, (record.began, True)) - 1)][1]

        return test

    def _named(self, fits: Callable[[AnyName | None], bool]) -> Callable[[int, bytes, int], bool]:
        """Of a number, or if that is no name's, of an address and when the connection began."""
        name_of, given = self._describer.name_of, self._describer.given
        known = _AskedOnce(lambda number: fits(name_of(number)))
        if given is None:
            return lambda number, address, began: known[number]
        nameless = _AskedOnce(lambda number: name_of(number) is None)
        return lambda number, address, began: fits(given(address, began)) if nameless[number] else known[number]

    def _decider(self, name: str, value: str) -> Test:
        known = _AskedOnce(lambda number: _decides(self._describer.decider_of(number), name, value))
        return lambda record: any(known[number] for number in record.numbers())


class _AskedOnce(dict[int, bool]):
    """The answers to a question about numbers."""

    def __init__(self, ask: Callable[[int], bool]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, number: int) -> bool:
        answer = self[number] = self._ask(number)
        return answer


class _LabelledOnce(dict[int, list[tuple[int, bool]] | None]):
    """Whether the ends that numbers stand for had a label, and from when on; None for what is no name's number."""

    def __init__(
        self, name_of: Callable[[int], EndName | None], labels_of: Callable[[EndName], LabelVersions], value: str
    ) -> None:
        super().__init__()
        self._name_of, self._labels_of, self._value = name_of, labels_of, value

    def __missing__(self, number: int) -> list[tuple[int, bool]] | None:
        name, found = self._name_of(number), None
        if name is not None:
            found = [(one.since, has_label(one.labels, self._value)) for one in self._labels_of(name)]
        self[number] = found
        return found


def _packed(value: str) -> bytes | None:
    """Of an address as it is written in documents."""
    try:
        address = ip_address(value)
    except ValueError:
        return None
    return address.packed if str(address) == value else None


def _protocol(value: str) -> int:
    if value in _PROTOCOL_NUMBERS:
        return _PROTOCOL_NUMBERS[value]
    number = _number(value)
    return -1 if number in PROTOCOLS else number


def _number(value: str) -> int:
    """-1 for what documents have nowhere."""
    return int(value) if len(value) <= _DIGITS and value.isdecimal() and str(int(value)) == value else -1


def _is_named(end: AnyName | None, value: str) -> bool:
    return end is not None and is_named(end.namespace, end.name, value)


def _decides(decider: Decider | None, name: str, value: str) -> bool:
    """``name``: policy, tier."""
    if decider is None:
        return False
    if name == "tier":
        return decider.tier == value
    namespace, slash, policy = value.rpartition("/")
    if decider.index == END and not decider.tier:
        return False  # no profile, so there is none to be named
    return decider.name == policy and (not slash or decider.namespace == namespace)
