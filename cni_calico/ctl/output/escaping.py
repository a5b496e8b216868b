"""PURE: texts of others, for a terminal. Rule: what it would obey is shown, and never sent to it."""

from __future__ import annotations


def shown(value: object) -> str:
    """In one line."""
    text = str(value)
    return text if text.isprintable() else "".join(map(_shown, text))


def shown_lines(text: str) -> str:
    """Of several lines, whose ends and tabs stay."""
    return "\n".join("\t".join(map(shown, line.split("\t"))) for line in text.split("\n"))


def _shown(char: str) -> str:
    return char if char.isprintable() else f"\\x{ord(char):02x}"
