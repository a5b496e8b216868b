"""PURE: how tables and single words look: plain, for pipes and files, or as terminal.py shows them.

Rule: a look changes colours and line breaks, never words; in a pipe everything is plain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cni_calico.ctl.output.tables import render_box, render_column_parts, render_columns

GOOD, BAD, DIM = "good", "bad", "dim"
_TONES = {
    GOOD: ("yes", "ok", "up", "all is well"),
    BAD: ("no", "failed", "down", "NOT ENFORCED", "DENIED"),
    DIM: ("-", "not tried", "not known here", "<none>"),
}


def tone_of(text: str) -> str:
    """GOOD, BAD, DIM or "": from the word before a colon, or the whole text."""
    word = text.partition(":")[0].strip()
    return next((tone for tone, words in _TONES.items() if word in words), "")


class PlainLook:
    """For everything that is not a terminal."""

    def columns(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
        return render_columns(headings, rows)

    def column_parts(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
        """``columns`` in parts, for long tables."""
        return render_column_parts(headings, rows)

    def box(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> str:
        return render_box(headings, rows, right=right)

    def toned(self, text: str, tone: str) -> str:
        """``text`` in the colour of ``tone``."""
        del tone
        return text


PLAIN = PlainLook()
