"""PURE: the agent's parameters that decide, beside policies, what happens at host endpoints.

Rule: the agent writes them, the recorder judges by them; without them the recorder judges no host endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from cni_calico.policy.failsafe import FailsafePort


@dataclass(frozen=True, slots=True)
class HostParameters:
    """``inbound``, ``outbound``: failsafe ports; ``excluded``: interfaces without host endpoint (InterfaceExclude)."""

    inbound: tuple[FailsafePort, ...] = ()
    outbound: tuple[FailsafePort, ...] = ()
    excluded: tuple[str, ...] = ()


def render_parameters(one: HostParameters) -> dict[str, Any]:
    """For the agent's file."""
    inbound, outbound = (
        [[port.protocol, port.port, None if port.net is None else str(port.net)] for port in ports]
        for ports in (one.inbound, one.outbound)
    )
    return {"inbound": inbound, "outbound": outbound, "excluded": list(one.excluded)}


def parse_parameters(document: Mapping[str, Any]) -> HostParameters:
    """Raises ValueError, TypeError, KeyError."""
    from cni_calico.policy.failsafe import FailsafePort  # with the language of rules, for who judges

    inbound, outbound = (
        tuple(FailsafePort(int(number), int(port), net and ip_network(net)) for number, port, net in document[name])
        for name in ("inbound", "outbound")
    )
    return HostParameters(inbound, outbound, tuple(map(str, document["excluded"])))
