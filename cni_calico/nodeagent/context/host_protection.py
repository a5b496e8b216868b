"""PURE: how the parameters about host endpoints are written: failsafe ports, excluded interfaces.

Rule: a text means the same in the environment and in a FelixConfiguration, where ports are objects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from cni_calico.daemon.settings_table import Kind, parse_names
from cni_calico.policy.failsafe import parse_failsafe_ports

_NAME = re.compile(r"[a-zA-Z0-9:._+-]{1,15}")


def parse_excluded(text: str) -> tuple[str, ...]:
    """Names of interfaces, and regular expressions between slashes. Raises ValueError."""
    found = parse_names(text)
    for item in found:
        if item.startswith("/"):
            try:
                re.compile(item.strip("/"))
            except re.error as e:
                raise ValueError(f"expected a regular expression between slashes, not {item!r}: {e}") from e
        elif not _NAME.fullmatch(item):
            raise ValueError(f"expected an interface, or a regular expression between slashes, not {item!r}")
    return found


FAILSAFE = Kind(parse_failsafe_ports, "PROTOCOL:PORT or PROTOCOL:NETWORK:PORT, comma-separated, or none")
EXCLUDED = Kind(parse_excluded, "names or /expressions/, comma-separated")


def failsafe_text(port: object) -> str:
    """One port of a resource's list as the environment has it."""
    if not isinstance(port, Mapping):
        return repr(port)
    return ":".join(str(port[part]) for part in ("protocol", "net", "port") if port.get(part) not in (None, ""))
