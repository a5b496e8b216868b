"""PURE: tables as text: plain columns, and boxes for ``ipam show``.

Rule: rows of texts in, text out; every line ends with a newline.
"""

from __future__ import annotations

from collections.abc import Sequence

_GAP = 3


def render_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, three spaces apart, and an empty line at the end, as upstream prints resources."""
    table = [tuple(headings), *map(tuple, rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(headings))]
    lines = ["".join(cell.ljust(width + _GAP) for cell, width in zip(row, widths, strict=True)) for row in table]
    return "\n".join(lines) + "\n\n"


def render_box(headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """A table with borders; headings are centred, the columns in ``right`` aligned to the right."""
    widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    lines = [border, _box_row([text.center(width) for text, width in zip(headings, widths, strict=True)]), border]
    for row in rows:
        cells = [
            text.rjust(width) if i in right else text.ljust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(_box_row(cells))
    return "\n".join([*lines, border]) + "\n"


def _box_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
