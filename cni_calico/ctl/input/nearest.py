"""PURE: what a user meant by a name that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The question ``did you mean X?``, or "" if no name is similar."""
    from difflib import get_close_matches  # only after a mistake: its import takes milliseconds

    names = {name.lower(): name for name in known}
    near = get_close_matches(word.lower(), names, 1)
    return f"did you mean {names[near[0]]}?" if near else ""
