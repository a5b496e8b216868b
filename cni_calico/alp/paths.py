"""PURE: the path of an HTTP request, as a server will most likely understand it, and whether a rule's path fits it.

Rule: a path that two servers could understand differently fits nothing: "which file is this?" must have one answer
before a rule about it can.
"""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ESCAPED_AGAIN = re.compile(r"%(2e|2f|5c|00|25|3b)", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def clean_path(raw: str) -> str | None:
    """``raw`` without query and fragment, decoded once, with "/" for a backslash, without parameters (";..."), empty
    segments, "." and "..". "*" (of OPTIONS) stays. None: what it leads to depends on who reads it.
    """
    encoded = re.split("[?#]", raw, maxsplit=1)[0]
    if encoded == "*":
        return encoded
    if _ESCAPE.search(encoded):
        return None
    try:
        path = unquote_to_bytes(encoded).decode()
    except ValueError:  # overlong forms of "." and "/" among them
        return None
    if _CONTROL.search(path) or _ESCAPED_AGAIN.search(path):
        return None
    path = path.replace("\\", "/")
    if not path.startswith("/"):
        return None
    segments = [segment.split(";", 1)[0] for segment in path.split("/")]
    found: list[str] = []
    for segment in segments:
        if segment == "..":
            found[-1:] = []
        elif segment not in ("", "."):
            found.append(segment)
    ends = "/" if segments[-1] in ("", ".", "..") and found else ""
    return "/" + "/".join(found) + ends


def clean_rule_path(text: str) -> str | None:
    """A rule's path in the same form. None: no request's path can be it, because it has what requests' lose."""
    return None if re.search("[?#;]", text) else clean_path(text)


def is_within(path: str, prefix: str) -> bool:
    """Both clean. ``prefix`` ends at the end of a segment: "/pub" does not lead to "/public"."""
    return path == prefix or path.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
