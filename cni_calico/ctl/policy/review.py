"""PURE: what a change of policy does, as one page of HTML for whoever reviews it.

Rule: the page is whole, runs nothing and loads nothing; every text of a record is escaped, and isolated so that one
that is written from right to left does not turn its neighbours. A verdict is a word, not a colour alone.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from cni_calico.ctl.output.pages import STYLE as EVERY_PAGES

MARK = "<!-- calicoctl policy -->"
MOST_ROWS = 5000  # of a section
_STYLE = (
    EVERY_PAGES
    + """\
main { max-width: 1400px }
td { overflow-wrap: anywhere }
td:nth-child(1), td:nth-child(2) { min-width: 130px }
td.denied { color: var(--bad); font-weight: 650 }
bdi { unicode-bidi: isolate }
.scroll { max-height: none }
"""
)


@dataclass(frozen=True, slots=True)
class ReviewRow:
    """``note``: below the ends. ``denies``: whether it is denied after the change."""

    source: str
    destination: str
    traffic: str
    before: str
    after: str
    note: str
    denies: bool


@dataclass(frozen=True, slots=True)
class ReviewSection:
    """Rows, or else sentences. An empty one is not shown."""

    title: str
    rows: Sequence[ReviewRow] = ()
    sentences: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Review:
    """What is on a page."""

    title: str
    summary: str
    sections: Sequence[ReviewSection]


def render_review(review: Review, made: str) -> str:
    """``made``: when, in words."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    body = "\n".join(map(_section, filter(lambda one: one.rows or one.sentences, review.sections)))
    return (
        f'<!DOCTYPE html>\n{MARK}\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" '
        f'content="no-referrer"><title>{escape(review.title)}</title><style>{_STYLE}</style></head>\n'
        f"<body><main><header><h1>{escape(review.title)}</h1><p class=soft>{_text(review.summary)}</p></header>\n"
        f"{body}\n"
        f"<footer>Made by calicoctl, {escape(made)}.</footer></main></body></html>\n"
    )


def _section(one: ReviewSection) -> str:
    lines = "".join(f"<li>{_text(sentence)}</li>" for sentence in one.sentences)
    listed = f"<ul>{lines}</ul>" if lines else ""
    return f"<section><h2>{escape(one.title)}</h2>{_table(one.rows) if one.rows else ''}{listed}</section>"


def _table(rows: Sequence[ReviewRow]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("From", "To", "Traffic", "Before", "After"))
    shown = "".join(map(_row, rows[:MOST_ROWS]))
    more = f"<p class=soft>and {len(rows) - MOST_ROWS:,} more; -o json has all</p>" if len(rows) > MOST_ROWS else ""
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{shown}</tbody></table></div>{more}"


def _row(row: ReviewRow) -> str:
    note = f"<div class=soft>{_text(row.note)}</div>" if row.note else ""
    after = f"<td class={'denied' if row.denies else 'allowed'}>{_text(row.after)}</td>"
    first = f"<td>{_text(row.source)}{note}</td><td>{_text(row.destination)}</td>"
    return f"<tr>{first}<td>{_text(row.traffic)}</td><td>{_text(row.before)}</td>{after}</tr>"


def _text(text: str) -> str:
    return f"<bdi>{escape(text)}</bdi>"
