"""PURE: tables as text: plain columns, and boxes for ``ipam show``.

Rule: rows of texts in, text out; every line ends with a newline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import overload

_GAP = 3
_LINES = 1000  # in one part of a long table
_BETWEEN = "\0"  # no cell has it: what it is made of is shown as text


class PackedRows(Sequence[Sequence[str]]):
    """The rows of a long table, each as one text: as lists of cells they take four times the memory."""

    def __init__(self) -> None:
        self._packed: list[str] = []

    def add(self, row: Sequence[str]) -> None:
        self._packed.append(_BETWEEN.join(cell.replace(_BETWEEN, " ") for cell in row))

    def clear(self) -> None:
        self._packed.clear()

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, at: int) -> Sequence[str]: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Sequence[str]]: ...
    def __getitem__(self, at: int | slice) -> Sequence[str] | Sequence[Sequence[str]]:
        found = self._packed[at]
        return found.split(_BETWEEN) if isinstance(found, str) else [one.split(_BETWEEN) for one in found]

    def __iter__(self) -> Iterator[Sequence[str]]:
        return (packed.split(_BETWEEN) for packed in self._packed)


def render_columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, three spaces apart, and an empty line at the end, as upstream prints resources."""
    return "".join(render_column_parts(headings, rows))


def render_column_parts(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """``render_columns`` in parts of many lines: a long table as one text takes more memory than its rows."""
    widths = list(map(len, headings))
    for row in rows:
        widths = list(map(max, widths, map(len, row)))
    lines = (
        "".join(cell.ljust(width + _GAP) for cell, width in zip(row, widths, strict=True)) + "\n"
        for row in chain([headings], rows)
    )
    while part := "".join(islice(lines, _LINES)):
        yield part
    yield "\n"


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
