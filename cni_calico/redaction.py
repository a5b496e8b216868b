"""PURE: texts without their secrets: for answers, logs and everything else that leaves the process.

Rule: only this module decides what is a secret. Everything that looks like one by its name or its form is removed:
values named token, password or key, credentials in headers and in addresses, queries, private keys, JSON web tokens. A
quoted value is hidden to its closing quote, a header to the end of its line. A URL in a message goes through
``shown_url`` where the message is made, because only there it is known where the URL ends. calicoctl's archive
(ctl/output/redaction.py) hides more.
"""

from __future__ import annotations

import re

HIDDEN = "[hidden]"
_IS = r"\\*[\"']?\s*[:=]\s*"
_QUOTED = r"\\+\".*?(?:\\+\"|$)|\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_SECRET = re.compile(
    r"(?i)((?:token|password|passwd|passphrase|secret|credential|client-key-data|private[ _-]?key"
    rf"|(?:api|access)[_-]?key)s?{_IS})(?:{_QUOTED}|(?:(?:bearer|basic)\s+)?[^\s\"']\S*)"
    rf"|((?:authorization|cookie){_IS})(?:{_QUOTED}|[^\n]+)"
    r"|\b((?:bearer|basic)\s+)(?=(?-i:\S*[A-Z0-9+/=]))[\w.~+/=-]{8,}"
    r"|eyJ[\w-]+\.[\w-]+\.[\w-]+"
    r"|-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END|$)",
    re.DOTALL,
)
_ADDRESS = re.compile(r"(?<=\")\w+://[^\"\n]+(?=\")|(?<=')\w+://[^'\n]+(?=')|://\S+")


def without_secrets(text: str) -> str:
    """The text with tokens, passwords and keys replaced."""
    text = _SECRET.sub(lambda found: (found.group(1) or found.group(2) or found.group(3) or "") + HIDDEN, text)
    return _ADDRESS.sub(lambda found: shown_url(found.group()), text) if "://" in text else text


def shown_url(url: str) -> str:
    """A URL without its user, password, query and fragment, whatever characters they contain."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    [place, *query] = re.split(r"[?#]", rest, maxsplit=1)
    if query and "@" in query[0]:
        return scheme + separator + HIDDEN  # a password with a question mark in it, or a query with an @
    _, at, address = place.rpartition("@")
    return scheme + separator + (HIDDEN + at if at else "") + address + (f"?{HIDDEN}" if query else "")
