"""PURE: what a check of the network tries, what it finds, and the texts for both. Rule: a finding says what was tried,
the result, and one sentence about it; what could not be tried is named with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from ipaddress import ip_address

from cni_calico.ctl.output.looks import PLAIN, PlainLook, tone_of

OK, FAILED, SKIPPED = "ok", "failed", "not tried"
OPEN_PORT, CLOSED_PORT = 8080, 8081  # the check's policy forbids the second one
_WIDTH = 10


@dataclass(frozen=True, slots=True)
class Trial:
    what: str
    outcome: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class TrialPlan:
    """What one pod tries; addresses are texts. ``names`` are names of services and the addresses they must have;
    ``tokens``: for each address what it exchanges with it while others look for that on the wire.
    """

    addresses: Sequence[str]
    services: Sequence[str] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    policed: bool = True
    tokens: Mapping[str, str] = field(default_factory=dict)


def render_plan(plan: TrialPlan) -> str:
    return json.dumps(asdict(plan))


def parse_plan(text: str) -> TrialPlan:
    """Parse what ``render_plan`` wrote."""
    document = json.loads(text)
    return TrialPlan(*(document[name] for name in ("addresses", "services", "names", "policed", "tokens")))


def family_of(address: str) -> str:
    return f"IPv{ip_address(address).version}"


def render_finding(finding: Trial, look: PlainLook = PLAIN) -> str:
    word = look.toned(finding.outcome, tone_of(finding.outcome)) + " " * (_WIDTH - len(finding.outcome))
    line = f"{word} {finding.what}"
    return f"{line}: {finding.text}\n" if finding.text else f"{line}\n"


def render_sum(findings: Sequence[Trial]) -> str:
    """A sentence about everything that does not work, "" if everything does."""
    failed = [finding.what for finding in findings if finding.outcome == FAILED]
    return f"the network does not work: {', '.join(failed)}" if failed else ""


def missing_families(addresses: Sequence[str]) -> list[Trial]:
    """The findings for families of which the pods have no address: these are not tried."""
    have = {family_of(address) for address in addresses}
    return [Trial(name, SKIPPED, f"pods get no {name} address") for name in ("IPv4", "IPv6") if name not in have]
