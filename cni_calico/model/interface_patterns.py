"""PURE: interfaces as parameters list them: a name, or a regular expression between slashes."""

from __future__ import annotations

import re

_NAME = re.compile(r"[a-zA-Z0-9:._+-]{1,15}")


def require_pattern(text: str) -> None:
    """Raises ValueError for what is neither. An empty expression would mean every interface, and is refused."""
    if not text.startswith("/"):
        if not _NAME.fullmatch(text):
            raise ValueError(f"expected an interface, or a regular expression between slashes, not {text!r}")
        return
    if len(text) < 3 or not text.endswith("/"):
        raise ValueError(f"expected a regular expression between slashes, not {text!r}")
    try:
        re.compile(text[1:-1])
    except re.error as e:
        raise ValueError(f"expected a regular expression between slashes, not {text!r}: {e}") from e
