"""PURE: the page of flows as HTML, with the data that it begins with.

Rule: the page is whole: its policy lets nothing else be loaded or run, and no text of a flow becomes a part of the
page but by the script, as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.flows.page.body import BODY
from cni_calico.ctl.flows.page.script.whole import SCRIPT
from cni_calico.ctl.flows.page.style import STYLE

MARK = "<!-- calicoctl flows -->"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def content_policy(*, live: bool) -> str:
    """Of the header or the page. ``live``: the script may ask the server that the page is from."""
    return (
        f"default-src 'none'; style-src {_hash(STYLE)}; script-src {_hash(SCRIPT)}; img-src data:; "
        f"connect-src {_quoted(live)}; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _quoted(live: bool) -> str:
    return "'self'" if live else "'none'"


def render_page(data: Mapping[str, Any]) -> str:
    """``data``: live (bool), filter (the words of the command line), made (RFC 3339), flows (documents with
    ``explain``, as they are shown), said (sentences), more (whether there are more flows); that of a file also options
    (field by option).
    """
    inside = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return (
        f'<!DOCTYPE html>\n{MARK}\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(live=bool(data["live"]))}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="referrer" '
        'content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>Flows</title><style>{STYLE}</style></head>\n<body>{BODY}"
        f'<script type="application/json" id="data">{inside}</script><script>{SCRIPT}</script></body></html>\n'
    )
