"""Tables on a terminal: bold headings, colours that distinguish good from bad, cells wrapped to the terminal's width.

Rule: the library rich lays out only a table that does not fit the terminal; one that fits is the plain table with
colours, because importing rich takes as long as everything else that ``get`` does.
"""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TextIO

from cni_calico.ctl.output.looks import BAD, DIM, GOOD, PLAIN, PlainLook, tone_of
from cni_calico.ctl.output.tables import render_box, render_columns

_CODES = {GOOD: "32", BAD: "31", DIM: "2", "heading": "1"}
_STYLES = {GOOD: "green", BAD: "red", DIM: "dim", "": ""}
_GAP = 3
_SHORT = 24  # words up to this length are not broken while there is room
_NARROW = 12  # what every column may take


def look_of(output: TextIO, environ: Mapping[str, str]) -> PlainLook:
    """The look for this output. NO_COLOR and TERM=dumb keep the wrapping and drop the colours."""
    if not output.isatty():
        return PLAIN
    colourful = not environ.get("NO_COLOR") and environ.get("TERM", "dumb") != "dumb"
    return TerminalLook(shutil.get_terminal_size().columns, colourful=colourful)


class TerminalLook(PlainLook):
    def __init__(self, width: int, *, colourful: bool) -> None:
        self.width = max(width, 20)
        self.colourful = colourful

    def toned(self, text: str, tone: str) -> str:
        return f"\x1b[{_CODES[tone]}m{text}\x1b[0m" if tone and self.colourful else text

    def columns(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        text = render_columns(headings, rows)
        lines = [line.rstrip() for line in text.rstrip("\n").split("\n")]
        if max(map(len, lines)) > self.width:
            return self._laid_out(headings, rows, boxed=False, right=()) + "\n"
        widths = [max(len(row[i]) for row in (headings, *rows)) for i in range(len(headings))]
        body = ["".join(self._cell(c, w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self.toned(lines[0], "heading"), *body]) + "\n\n"

    def column_parts(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """A terminal gets the table whole: how it is laid out depends on all lines."""
        yield self.columns(headings, rows)

    def _cell(self, text: str, width: int) -> str:
        return self.toned(text, tone_of(text)) + " " * (width - len(text) + _GAP)

    def box(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
        text = render_box(headings, rows, right=right)
        if len(text.partition("\n")[0]) <= self.width:
            return text
        return self._laid_out(headings, rows, boxed=True, right=right)

    def _laid_out(
        self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, boxed: bool, right: Sequence[int]
    ) -> str:
        from rich.box import ASCII
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        rows = [[_one_a_line(cell) for cell in row] for row in rows]
        whole = self._kept_whole(headings, rows)
        table = Table(box=ASCII if boxed else None, padding=(0, 1) if boxed else (0, _GAP, 0, 0), pad_edge=boxed)
        for number, heading in enumerate(headings):
            side: Literal["left", "right"] = "right" if number in right else "left"
            table.add_column(heading, justify=side, overflow="fold", no_wrap=number in whole)
        for row in rows:
            table.add_row(*(Text(cell, style=_STYLES[tone_of(cell)]) for cell in row))
        out = io.StringIO()
        Console(
            file=out,
            width=self.width,
            force_terminal=self.colourful,
            color_system="standard" if self.colourful else None,
        ).print(table)
        return "\n".join(line.rstrip() for line in out.getvalue().rstrip("\n").split("\n")) + "\n"

    def _kept_whole(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> set[int]:
        """The columns that need not be wrapped: those of short words, as far as there is room for them."""
        columns = list(zip(headings, *rows, strict=True))
        widths = [max(len(line) for cell in column for line in cell.split("\n")) for column in columns]
        room = self.width - sum(min(width, _NARROW) + _GAP for width in widths)
        whole = set()
        for n in sorted(range(len(columns)), key=widths.__getitem__):
            more = max(0, widths[n] - _NARROW)
            if widths[n] <= _SHORT and more <= room and not any(" " in cell for cell in columns[n][1:]):
                room -= more
                whole.add(n)
        return whole


def _one_a_line(cell: str) -> str:
    """The items of a list with commas below each other."""
    return re.sub(r",(?=\S)", ",\n", cell)
