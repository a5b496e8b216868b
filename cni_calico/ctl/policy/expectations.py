"""PURE: files of expectations: which connections policies should allow or deny, written beside the policies.

Rule: everything in a file is checked before anything is judged; what is not understood is an error, never a success.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.resources import Address
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.rules import parse_protocol

KIND, VERSION = "PolicyTest", "cni-calico.dev/v1"
FIELDS = frozenset(("name", "from", "to", "port", "protocol", "sourcePort", "icmp", "expect"))
END_FIELDS = frozenset(("pod", "namespace", "labels", "serviceAccount", "address"))
MOST = 100_000


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """Pods by name, by labels, or an address. Without a name and an address ``labels`` () means every pod of the
    namespace.
    """

    namespace: str = ""
    pod: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    service_account: str = ""
    address: Address | None = None

    @property
    def shown(self) -> str:
        if self.address is not None:
            return str(self.address)
        if self.pod:
            return f"{self.namespace}/{self.pod}"
        return f"{self.namespace}/{','.join(f'{name}={value}' for name, value in self.labels) or '*'}"


@dataclass(frozen=True, slots=True)
class Expectation:
    """``protocol``: a number, 1 means the ICMP of the family."""

    name: str
    source: ExpectedEnd
    destination: ExpectedEnd
    protocol: int
    port: int
    source_port: int
    icmp: tuple[int, int] | None
    allowed: bool

    @property
    def shown(self) -> str:
        names = {6: "tcp", 17: "udp", 132: "sctp", 1: "icmp"}
        what = names.get(self.protocol, f"protocol {self.protocol}")
        return f"{self.source.shown} -> {self.destination.shown} {what}{f'/{self.port}' if self.port else ''}"


def parse_expectations(document: Mapping[str, Any], source: str) -> list[Expectation]:
    """Of one document. Raises InvalidConfig, which names the expectation and the field."""
    _require(source, (document.get("apiVersion"), document.get("kind")) == (VERSION, KIND), _not_ours(document))
    unknown = document.keys() - {"apiVersion", "kind", "metadata", "namespace", "expectations"}
    _require(source, not unknown, f"there is no field {', '.join(sorted(map(str, unknown)))}")
    listed = document.get("expectations")
    _require(source, isinstance(listed, list) and bool(listed), "expectations must be a list that is not empty")
    assert isinstance(listed, list)
    _require(source, len(listed) <= MOST, f"more than {MOST} expectations")
    namespace = document.get("namespace", "default")
    _require(source, isinstance(namespace, str) and bool(namespace), "namespace must be a name")
    return [
        _parse(one, f"{source}: expectation {number}", str(namespace)) for number, one in enumerate(listed, start=1)
    ]


def _not_ours(document: Mapping[str, Any]) -> str:
    given = f"{document.get('apiVersion')} {document.get('kind')}"
    return f"{given} is no file of expectations, which has apiVersion {VERSION} and kind {KIND}"


def _require(at: str, holds: bool, why: str) -> None:
    if not holds:
        raise InvalidConfig(f"cannot use {at}: {why}", details="docs/policy-changes.md has the format")


def _parse(raw: Any, at: str, namespace: str) -> Expectation:
    _require(at, isinstance(raw, dict), "it must be an object")
    unknown = raw.keys() - FIELDS
    _require(at, not unknown, f"there is no field {', '.join(sorted(map(str, unknown)))}")
    for field in ("from", "to", "expect"):
        _require(at, field in raw, f"{field} must be given")
    _require(at, raw["expect"] in ("allowed", "denied"), "expect must be allowed or denied")
    try:
        protocol = parse_protocol(raw.get("protocol", "TCP"), "protocol")
    except Wrong as e:
        raise InvalidConfig(f"cannot use {at}: {e}") from e
    port, source_port = raw.get("port"), raw.get("sourcePort", 49152)
    if protocol in WITH_PORTS:
        _require(at, type(port) is int and 0 < port < 65536, "port must be from 1 to 65535")
        _require(at, type(source_port) is int and 0 < source_port < 65536, "sourcePort must be from 1 to 65535")
    else:
        _require(at, port is None and "sourcePort" not in raw, "only TCP, UDP and SCTP have ports")
        port = source_port = 0
    name = raw.get("name", "")
    _require(at, isinstance(name, str), "name must be text")
    source, destination = (_parse_end(raw[side], f"{at}, {side}", namespace) for side in ("from", "to"))
    point = protocol, int(port or 0), int(source_port or 0), _icmp(raw, at, protocol)
    return Expectation(name, source, destination, *point, raw["expect"] == "allowed")


def _icmp(raw: Mapping[str, Any], at: str, protocol: int) -> tuple[int, int] | None:
    if "icmp" not in raw:
        return None
    given = raw["icmp"]
    _require(at, protocol in (1, 58), "icmp is for protocol ICMP or ICMPv6")
    is_whole = isinstance(given, dict) and given.keys() <= {"type", "code"} and "type" in given
    _require(at, is_whole, "icmp has type, and code")
    numbers = given["type"], given.get("code", 0)
    _require(at, all(type(one) is int and 0 <= one < 256 for one in numbers), "type and code are from 0 to 255")
    return numbers


def _parse_end(raw: Any, at: str, namespace: str) -> ExpectedEnd:
    """Text: POD, NAMESPACE/POD or an address; else an object."""
    if isinstance(raw, str):
        try:
            return ExpectedEnd(address=ip_address(raw))
        except ValueError:
            space, slash, pod = raw.rpartition("/")
            _require(at, bool(pod) and (bool(space) or not slash), "it must be POD, NAMESPACE/POD or an address")
            return ExpectedEnd(space or namespace, pod)
    _require(at, isinstance(raw, dict) and bool(raw), "it must be a name, an address, or an object")
    unknown = raw.keys() - END_FIELDS
    _require(at, not unknown, f"there is no field {', '.join(sorted(map(str, unknown)))}")
    labels = raw.get("labels", {})
    _require(
        at,
        isinstance(labels, dict) and all(isinstance(one, str) for pair in labels.items() for one in pair),
        "labels must be names with texts",
    )
    for field in ("pod", "namespace", "serviceAccount", "address"):
        _require(at, isinstance(raw.get(field, ""), str), f"{field} must be text")
    if "address" in raw:
        _require(at, len(raw) == 1, "with address nothing else is given")
        try:
            return ExpectedEnd(address=ip_address(raw["address"]))
        except ValueError as e:
            raise InvalidConfig(f"cannot use {at}: {e}") from e
    _require(at, not ("pod" in raw and ("labels" in raw or "serviceAccount" in raw)), "give pod, or labels")
    found = tuple(sorted(labels.items()))
    return ExpectedEnd(raw.get("namespace") or namespace, raw.get("pod", ""), found, raw.get("serviceAccount", ""))
