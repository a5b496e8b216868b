"""PURE: interfaces as parameters list them: a name, or a regular expression between slashes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from cni_calico.model.names import valid_host_ifname


def require_pattern(text: str) -> None:
    """Raises ValueError for what is neither. An empty expression would mean every interface, and is refused."""
    if not text.startswith("/"):
        if not valid_host_ifname(text):
            raise ValueError(f"expected an interface, or a regular expression between slashes, not {text!r}")
        return
    if len(text) < 3 or not text.endswith("/"):
        raise ValueError(f"expected a regular expression between slashes, not {text!r}")
    try:
        re.compile(text[1:-1])
    except re.error as e:
        raise ValueError(f"expected a regular expression between slashes, not {text!r}: {e}") from e


def is_excluded(name: str, patterns: Iterable[str]) -> bool:
    """``patterns``: names, and regular expressions between slashes."""
    return any(
        re.search(pattern[1:].removesuffix("/"), name) is not None if pattern.startswith("/") else pattern == name
        for pattern in patterns
    )
