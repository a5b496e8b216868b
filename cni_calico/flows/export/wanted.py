"""PURE: what the agent tells the recorder about the export: where to, how often, and what ends are called there.

Rule: the file exists only while something is to be exported, and is replaced as a whole; the recorder looks for it and
needs nothing else. Loaded by the agent: nothing heavy is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

EXPORT = "flow-export.json"
SOCKET = "flows/flows.sock"  # in the run directory, as upstream's


@dataclass(frozen=True, slots=True)
class Target:
    """``server``: host:port, "" for none. ``authority``, ``certificate``, ``key``: paths, "" for none. ``interval_s``:
    how often; ``local``: to the local socket, too, whenever somebody listens there. ``host``: what this host is called
    where its host endpoints decide, "" if that is not told.
    """

    server: str
    authority: str = ""
    certificate: str = ""
    key: str = ""
    interval_s: float = 300.0
    local: bool = False
    host: str = ""


@dataclass(frozen=True, slots=True)
class ExportedEnd:
    """What a workload is called for others: ``name`` is shared by the pods of a Deployment ("web-7d9-*")."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


EndPath = tuple[str, str]  # namespace and name, as the recorder knows them


def render_export(target: Target, ends: Iterable[tuple[EndPath, ExportedEnd]]) -> bytes:
    """The agent's file."""
    listed = [[namespace, name, one.name, dict(sorted(one.labels.items()))] for (namespace, name), one in ends]
    document = {
        "version": 1,
        "server": target.server,
        "tls": [target.authority, target.certificate, target.key],
        "interval": target.interval_s,
        "local": target.local,
        "host": target.host,
        "ends": listed,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def parse_export(data: bytes) -> tuple[Target, dict[EndPath, ExportedEnd]]:
    """Raises ValueError."""
    try:
        document = json.loads(data)
        authority, certificate, key = (str(path) for path in document["tls"])
        target = Target(
            str(document["server"]),
            authority,
            certificate,
            key,
            max(1.0, float(document["interval"])),
            bool(document["local"]),
            str(document.get("host", "")),
        )
        ends = {
            (str(namespace), str(name)): ExportedEnd(str(shared), {str(k): str(v) for k, v in labels.items()})
            for namespace, name, shared, labels in document["ends"]
        }
    except (TypeError, KeyError, AttributeError) as e:
        raise ValueError(f"it is not the agent's file: {e}") from e
    return target, ends
