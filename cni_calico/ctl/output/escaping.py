"""PURE: texts of others, for a terminal. Rule: what it would obey is shown, and never sent to it."""

from __future__ import annotations

_LAYOUT = {ord("\n"): None, ord("\t"): None}


def shown(value: object) -> str:
    """In one line."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_shown, text))


def shown_lines(text: str) -> str:
    """Of several lines, whose ends and tabs stay."""
    if text.translate(_LAYOUT).isprintable():  # as nearly all are, also of a megabyte
        return text
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def _shown(char: str) -> str:
    return char if char.isprintable() else f"\\x{ord(char):02x}"
