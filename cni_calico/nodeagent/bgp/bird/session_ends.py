"""PURE: why BGP sessions ended: BIRD forgets its reason as soon as a session is up again.

Rule: the last ends of each session are kept for as long as BIRD has the session. They are found by looking: what ended
and came up again between two looks shows by its time, without a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.nodeagent.bgp.bird.status import ESTABLISHED, Line

KEPT = 3
NO_REASON = "BIRD gave no reason"
UNSEEN = "it was up again before it was seen"
REFUSED = "Socket: Connection refused"  # no session that was up ends so: BIRD has tried to connect again since
FORGOTTEN = "BIRD has forgotten why, because it has been refused a new connection since"
_FIELDS = 5  # name, protocol, table, state, since; what follows is the session's state and BIRD's reason


@dataclass(frozen=True, slots=True)
class SessionState:
    """``since`` is when the state of BIRD's protocol last changed, as BIRD writes it."""

    established: bool
    since: str
    reason: str = ""


def parse_sessions(lines: Iterable[Line]) -> dict[str, SessionState]:
    """The BGP sessions in the reply to ``show protocols``, by name."""
    found = {}
    for code, text in lines:
        words = text.split(None, _FIELDS + 1)
        if code == 1002 and words[1:2] == ["BGP"] and len(words) >= _FIELDS:
            state, reason = (*words[_FIELDS:], "", "")[:2]
            found[words[0]] = SessionState(state == ESTABLISHED, words[_FIELDS - 1], reason.strip())
    return found


class SessionEnds:
    """``ends``: by session, oldest first, as the status has them: {"time": ..., "reason": ...}."""

    def __init__(self, before: object = None) -> None:
        """``before``: what an earlier run kept, as it is in its status."""
        self.ends: dict[str, list[dict[str, str]]] = _parse_ends(before)
        self._last: Mapping[str, SessionState] | None = None

    def note(self, sessions: Mapping[str, SessionState]) -> bool:
        """What BIRD says now; returns whether a session has ended since the last call, or is gone."""
        kept = {name: self.ends[name] for name in self.ends if name in sessions}
        for name, before in (self._last or {}).items():
            now = sessions.get(name)
            if now is None or not before.established or now == before:
                continue
            if now.established and now.since == before.since:
                continue
            reason = UNSEEN if now.established else FORGOTTEN if now.reason == REFUSED else now.reason or NO_REASON
            kept[name] = [*kept.get(name, ()), {"time": now.since, "reason": reason}][-KEPT:]
        self._last = sessions
        changed, self.ends = kept != self.ends, kept
        return changed


def _parse_ends(raw: object) -> dict[str, list[dict[str, str]]]:
    """What can be understood of it."""
    found: dict[str, list[dict[str, str]]] = {}
    for name, ends in (raw if isinstance(raw, dict) else {}).items():
        listed: list[Any] = ends if isinstance(ends, list) else []
        read = [end for end in listed if isinstance(end, dict) and {"time", "reason"} <= end.keys()]
        found[str(name)] = [{"time": str(end["time"]), "reason": str(end["reason"])} for end in read[-KEPT:]]
    return {name: ends for name, ends in found.items() if ends}
