"""PURE: the ports of Kubernetes' policies in Calico's notation: by protocol, each as few ranges as possible.

Rule: what is no port raises Wrong; nothing is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cni_calico.model.documents.fields import Wrong, parse_int

PORT_MAX = 65535


def port_range(first: Any, last: Any, at: str) -> tuple[int, int]:
    low, high = parse_int(first, at), parse_int(last, at)
    if not 0 <= low <= high <= PORT_MAX:
        raise Wrong(at, f"a range of ports up to {PORT_MAX}", [first, last])
    return low, high


def by_protocol(
    listed: Iterable[tuple[str, tuple[int, int] | str | None]],
) -> list[tuple[str | None, list[Any]]]:
    found: dict[str, list[tuple[int, int] | str] | None] = {}
    for protocol, port in listed:
        ports = found.setdefault(protocol, [])
        if port is None:
            found[protocol] = None
        elif ports is not None:
            ports.append(port)
    if not found:
        return [(None, [])]
    return [(protocol, _merged(found[protocol] or [])) for protocol in sorted(found)]


def _merged(ports: list[tuple[int, int] | str]) -> list[Any]:
    """Ports in Calico's notation: the names first, then as few ranges as possible."""
    out: list[Any] = list(dict.fromkeys(port for port in ports if isinstance(port, str)))
    ranges: list[list[int]] = []
    for low, high in sorted(port for port in ports if not isinstance(port, str)):
        if ranges and low <= ranges[-1][1] + 1:
            ranges[-1][1] = max(ranges[-1][1], high)
        else:
            ranges.append([low, high])
    return out + [low if low == high else f"{low}:{high}" for low, high in ranges]
