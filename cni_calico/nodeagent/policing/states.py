"""PURE: the states of the policy engine, and what the outcome of a round makes of them.

Rule: what is in force follows from the state alone, and the next state from the state and the round's outcome alone;
nothing else decides it. Whether others' changes of our tables matter follows from the standing rules, which may be in
force in any state (enforce/guard.py).
"""

from __future__ import annotations

from enum import Enum


class EngineState(Enum):
    READING = "not every listing has been read once, and nothing has been decided"
    OFF = "no policy is to be enforced; the standing rules are in force, or tried"
    FAILED = "policies are to be enforced, and none could be yet"
    ON = "the newest goal is in force"
    BEHIND = "an older goal is in force, or the newest one without a listing that its rules need"

    @property
    def in_force(self) -> bool:
        """Policies are: a listing that a new rule needs is waited for only so long, and others' changes are looked
        for.
        """
        return self in (EngineState.ON, EngineState.BEHIND)


class RoundOutcome(Enum):
    APPLIED = "the goal is in force"
    LACKING = "so it is, without a listing that its rules need"
    REFUSED = "the kernel could not be read, or did not take the goal"
    UNWANTED = "the gate says that no policy is to be enforced, whether or not what was there could be removed"


_READING, _OFF, _FAILED, _ON, _BEHIND = EngineState
NEXT = {
    RoundOutcome.APPLIED: {_READING: _ON, _OFF: _ON, _FAILED: _ON, _ON: _ON, _BEHIND: _ON},
    RoundOutcome.LACKING: {_READING: _BEHIND, _OFF: _BEHIND, _FAILED: _BEHIND, _ON: _BEHIND, _BEHIND: _BEHIND},
    RoundOutcome.REFUSED: {_READING: _FAILED, _OFF: _FAILED, _FAILED: _FAILED, _ON: _BEHIND, _BEHIND: _BEHIND},
    RoundOutcome.UNWANTED: {_READING: _OFF, _OFF: _OFF, _FAILED: _OFF, _ON: _OFF, _BEHIND: _OFF},
}


def begins(before: EngineState, after: EngineState) -> bool:
    """Whether policies come into force: owners are told (unless an earlier run's rules were there), others' changes
    are listened to, and the memory that the start needed is given back.
    """
    return after.in_force and not before.in_force
