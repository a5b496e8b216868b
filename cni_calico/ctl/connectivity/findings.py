"""PURE: what a check of the network tries, what it finds, and both as texts.

Rule: a finding is what was tried, how it went, and one sentence; what could not be tried is named with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address

OK, FAILED, SKIPPED = "ok", "failed", "not tried"
OPEN_PORT, CLOSED_PORT = 8080, 8081  # the check's policy forbids the second one
_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    outcome: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one pod tries; addresses are texts. ``names`` are names of services and the addresses they must have."""

    addresses: Sequence[str]
    services: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    policed: bool = True


def render_plan(plan: Plan) -> str:
    return json.dumps(asdict(plan))


def parse_plan(text: str) -> Plan:
    """Of what ``render_plan`` wrote."""
    document = json.loads(text)
    return Plan(document["addresses"], document["services"], document["names"], document["policed"])


def family_of(address: str) -> str:
    return f"IPv{ip_address(address).version}"


def render_finding(finding: Finding) -> str:
    line = f"{finding.outcome:{_WIDTH}} {finding.what}"
    return f"{line}: {finding.text}\n" if finding.text else f"{line}\n"


def render_sum(findings: Sequence[Finding]) -> str:
    """What is not well, "" if all is."""
    failed = [finding.what for finding in findings if finding.outcome == FAILED]
    return f"the network is not well: {', '.join(failed)}" if failed else ""


def missing_families(addresses: Sequence[str]) -> list[Finding]:
    """A family that the pods have no address of is not tried."""
    have = {family_of(address) for address in addresses}
    return [Finding(name, SKIPPED, f"pods get no {name} address") for name in ("IPv4", "IPv6") if name not in have]
