"""What flows say of policies, as a file of expectations for ``calicoctl policy test`` (docs/policy-changes.md).

Rule: a connection is expected as it was decided. What two flows tell differently, and what a file cannot name, is left
out and counted, with the reason.
"""

from __future__ import annotations

from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from typing import Any

from cni_calico.ctl.output.files import write_file
from cni_calico.ctl.output.texts import render_yaml
from cni_calico.ctl.policy.expectations import KIND, MOST, VERSION
from cni_calico.ctl.policy.workload_selectors import StableLabels, stable_labels
from cni_calico.errors import InvalidConfig
from cni_calico.flows.names import FOLDED

_NAMES = {"tcp": "TCP", "udp": "UDP", "sctp": "SCTP", "icmp": "ICMP", "icmp6": "ICMPv6"}
_PORTS = ("TCP", "UDP", "SCTP")

End = tuple[str, StableLabels, str]  # namespace, labels, and the pod's name or the address


class ExpectedFlows:
    """``add`` each document of ``calicoctl flows``. ``left_out``: connections by reason."""

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self._seen: dict[tuple[End, End, str, int, int], Counter[str]] = {}
        self._labels: dict[str, set[StableLabels]] = {}  # of pods, by their namespaces

    def add(self, flow: Mapping[str, Any]) -> None:
        if any("reason" in one for one in flow["decided"]):
            self.left_out["not decided by a policy"] += flow["connections"]
            return
        ends = flow["source"], flow["destination"]
        if any(end["kind"] in FOLDED for end in ends):
            self.left_out["addresses that are recorded as a network or a network set"] += flow["connections"]
            return
        source, destination = map(self._end, ends)
        protocol = _NAMES.get(flow["protocol"], flow["protocol"])
        first, second = ends[1].get("port") or 0, 0
        if "icmp" in flow:
            first, second = flow["icmp"]["type"], flow["icmp"]["code"]
        at = source, destination, protocol, first, second
        if at not in self._seen and len(self._seen) >= MOST:
            self.left_out[f"more than {MOST} expectations"] += flow["connections"]
            return
        self._seen.setdefault(at, Counter())[flow["verdict"]] += flow["connections"]

    def _end(self, end: Mapping[str, Any]) -> End:
        if "name" not in end:
            return "", frozenset(), end["ip"]
        labels = stable_labels(end.get("labels") or {})
        self._labels.setdefault(end["namespace"], set()).add(labels)
        return end["namespace"], labels, end["name"]

    def document(self) -> dict[str, Any]:
        """The file. Raises InvalidConfig if nothing is left for it."""
        made: dict[tuple[str, str, str, int, int], tuple[dict[str, Any], Counter[str]]] = {}
        for (source, destination, protocol, first, second), verdicts in self._seen.items():
            one = {"from": self._named(source), "to": self._named(destination), **_what(protocol, first, second)}
            # pods of one workload are one expectation
            at = str(one["from"]), str(one["to"]), protocol, first, second
            known = made.setdefault(at, (one, Counter()))
            known[1].update(verdicts)
        expectations = []
        for one, verdicts in (made[at] for at in sorted(made)):
            if len(verdicts) > 1:
                self.left_out["allowed and denied, in different flows"] += sum(verdicts.values())
            else:
                expectations.append({**one, "expect": next(iter(verdicts))})
        if not expectations:
            raise InvalidConfig("cannot write expectations: none of these flows can be one")
        return {"apiVersion": VERSION, "kind": KIND, "expectations": expectations}

    def _named(self, end: End) -> Any:
        """A pod by the labels that it shares with its workload's others, if no other workload seen has them too."""
        namespace, labels, name = end
        if not namespace:
            return str(ip_address(name))
        if not labels or any(labels < one for one in self._labels[namespace]):
            return f"{namespace}/{name}"
        return {"namespace": namespace, "labels": dict(sorted(labels))}


def _what(protocol: str, first: int, second: int) -> dict[str, Any]:
    if protocol in _PORTS:
        return {"protocol": protocol, "port": first}
    if protocol.startswith("ICMP"):
        return {"protocol": protocol, "icmp": {"type": first, "code": second}}
    return {"protocol": int(protocol) if protocol.isdecimal() else protocol}


def require_expected_fits(arguments: Namespace) -> None:
    """Raises InvalidConfig."""
    if arguments.expectations and arguments.follow:
        raise InvalidConfig("--expectations and -f do not go together: the file is written when all flows are known")


def keeping_expected(arguments: Namespace, documents: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The documents as they come; after the last one the file is written. Raises InvalidConfig if there is nothing to
    write, CalicoError if it cannot be written.
    """
    expected = ExpectedFlows()
    for document in documents:
        if "verdict" in document:
            expected.add(document)
        yield document
    made = expected.document()
    write_file(arguments.expectations, render_yaml(made))
    arguments.note(f"{len(made['expectations'])} expectations are in {arguments.expectations}")
    for why, number in sorted(expected.left_out.items()):
        arguments.note(f"not expected: {number} connections: {why}")
