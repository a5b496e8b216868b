"""PURE: how the parameters about the host's own protection are written: failsafe ports, excluded interfaces.

Rule: a text means the same in the environment and in a FelixConfiguration, where ports are objects.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.daemon.settings_table import Kind, choice, parse_names
from cni_calico.model.interface_patterns import require_pattern
from cni_calico.policy.failsafe import FailsafePort, parse_failsafe_ports


def parse_excluded(text: str) -> tuple[str, ...]:
    """Names of interfaces, and regular expressions between slashes. Raises ValueError."""
    found = parse_names(text)
    for item in found:
        require_pattern(item)
    return found


def select_readable(text: str) -> tuple[FailsafePort, ...]:
    """The ports of a list of which not every entry can be read."""
    found: list[FailsafePort] = []
    for item in text.split(","):
        try:
            found += parse_failsafe_ports(item)
        except ValueError:
            continue
    return tuple(found)


FAILSAFE = Kind(parse_failsafe_ports, "PROTOCOL:PORT or PROTOCOL:NETWORK:PORT, comma-separated, or none")
ENFORCEMENT = (
    choice("Enabled", "Disabled"),
    "Enabled",
    "Not a parameter of upstream's. Disabled: enforce no network policy on this node.",
)
STANDING_RULES = (
    choice("Enabled", "Disabled"),
    "Enabled",
    "Not a parameter of upstream's. Disabled: nothing guards tunnels, source addresses and 127/8 without policies.",
)
EXCLUDED = Kind(parse_excluded, "names or /expressions/, comma-separated")


def failsafe_text(port: object) -> str:
    """One port of a resource's list as the environment has it."""
    if not isinstance(port, Mapping) or type(port.get("port")) is not int:
        return f"<{port!r}>"  # nothing that could be read as a port, or as "none"
    return ":".join(str(port[part]) for part in ("protocol", "net", "port") if port.get(part) not in (None, ""))
