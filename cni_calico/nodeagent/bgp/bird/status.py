"""PURE: BIRD's own status, parsed from ``show status`` and ``show protocols all``.

Rule: a line that is not understood is skipped; what BIRD does not report is "" or 0. Probes that must answer in
milliseconds import this: no heavy imports here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

Line = tuple[int, str]  # code and text of a reply's line

ESTABLISHED = "Established"
LOCAL_WORKLOAD = "local workload"
_PREFIXES = {
    "Mesh_": "node-to-node mesh",
    "Global_": "global",
    "Node_": "node specific",
    "Local_Workload_": LOCAL_WORKLOAD,
}


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A BGP session. ``state`` is the BGP state ("Established", "Active", ...) or "Down" for a stopped one.

    ``since`` is when the protocol's state last changed ("2026-11-21T00:51:51+0000").
    """

    name: str
    state: str = "Down"
    since: str = ""
    description: str = ""
    address: str = ""
    port: int = 179
    as_number: int = 0
    local_as: int = 0
    last_error: str = ""
    imported: int = 0
    exported: int = 0
    preferred: int = 0

    @property
    def established(self) -> bool:
        return self.state == ESTABLISHED

    @property
    def kind(self) -> str:
        """The kind, as calicoctl calls it."""
        return next((kind for prefix, kind in _PREFIXES.items() if self.name.startswith(prefix)), "other")

    @property
    def version(self) -> int:
        return 6 if ":" in self.address else 4


@dataclass(frozen=True, slots=True)
class BirdStatus:
    """``recovering``: a graceful restart is under way; ``running`` is False while BIRD is starting or stopping."""

    version: str = ""
    router_id: str = ""
    running: bool = False
    recovering: bool = False
    last_reboot: str = ""
    last_reconfiguration: str = ""
    peers: tuple[PeerStatus, ...] = ()


_STATUS_LINES = {
    "Router ID is ": "router_id",
    "Last reboot on ": "last_reboot",
    "Last reconfiguration on ": "last_reconfiguration",
}
_PEER_TEXTS = {
    "Description": "description",
    "BGP state": "state",
    "Neighbor address": "address",
    "Last error": "last_error",
}
_PEER_NUMBERS = {"Neighbor AS": "as_number", "Local AS": "local_as", "Neighbor port": "port"}
_ROUTE_COUNTS = ("imported", "exported", "preferred")


def parse_status(lines: Iterable[Line]) -> BirdStatus:
    """The reply to ``show status``."""
    texts: dict[str, Any] = {}
    running = recovering = False
    for code, text in lines:
        word = text.strip()
        if code == 1000:
            texts["version"] = word.removeprefix("BIRD").strip()
        running = running or code == 13
        recovering = recovering or (code == 24 and word.startswith("Graceful restart recovery"))
        for start, attribute in _STATUS_LINES.items():
            if word.startswith(start):
                texts[attribute] = word[len(start) :]
    return replace(BirdStatus(running=running, recovering=recovering), **texts)


def _parse_number(text: str) -> int:
    digits = text.strip().split(" ")[0]
    return int(digits) if digits.isascii() and digits.isdecimal() else 0


def _parse_routes(text: str) -> dict[str, int]:
    """The counts of "3 imported, 1 exported, 2 preferred"."""
    counts = {}
    for part in text.split(","):
        number, _, what = part.strip().partition(" ")
        if what in _ROUTE_COUNTS:
            counts[what] = _parse_number(number)
    return counts


def _parse_peer(head: str, details: Sequence[str]) -> PeerStatus:
    words = head.split()
    texts: dict[str, Any] = {"name": words[0], "since": words[4] if len(words) > 4 else ""}
    numbers: dict[str, Any] = {}
    for line in details:
        key, _, value = line.strip().partition(":")
        if key in _PEER_TEXTS:
            texts[_PEER_TEXTS[key]] = value.strip()
        elif key in _PEER_NUMBERS:
            numbers[_PEER_NUMBERS[key]] = _parse_number(value)
        elif key == "Routes":
            numbers.update(_parse_routes(value))
    return replace(PeerStatus(texts.pop("name")), **texts, **numbers)


def parse_peers(lines: Iterable[Line]) -> tuple[PeerStatus, ...]:
    """The BGP sessions in the reply to ``show protocols all``, in BIRD's order."""
    peers: list[PeerStatus] = []
    head = ""
    details: list[str] = []
    for code, text in [*lines, (1002, "")]:
        if code == 1002:
            if head.split()[1:2] == ["BGP"]:
                peers.append(_parse_peer(head, details))
            head, details = text, []
        elif code == 1006:
            details.append(text)
    return tuple(peers)
