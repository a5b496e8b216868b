"""PURE: texts without their secrets, for what people send to others.

Rule: what looks like a secret by its name or its form is replaced, in any kind of text; rather too much than too
little: the paths of key files go too.
"""

from __future__ import annotations

import re

HIDDEN = "<hidden>"
_NAMES = (
    r"[\w.-]*(?:password|passwd|passphrase|secret|token|(?<!public[_-])key|key[_-]?data|certificate[\w-]*data"
    r"|authorization|credential)s?"
)
_RULES = (
    (re.compile(r"(\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]+"), rf"\1{HIDDEN}"),
    # BIRD: password "text"; (with any escaped quote in it)
    (re.compile(r'(\bpassword\s+)"(?:[^"\\\n]|\\.)*"', re.IGNORECASE), rf'\1"{HIDDEN}"'),
    # JSON: "client-key-data": "text"
    (re.compile(rf'("{_NAMES}"\s*:\s*)"(?:[^"\\]|\\.)*"', re.IGNORECASE), rf'\1"{HIDDEN}"'),
    # YAML, environment, command lines: token: text, ETCD_PASSWORD=text
    (
        re.compile(rf'(^|[\s,;{{(])({_NAMES}\s*[:=][ \t]*)(?!["\s])[^\s,;)}}]+', re.IGNORECASE | re.MULTILINE),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(rf"""(^|[\s,;{{(])({_NAMES}\s*[:=][ \t]*)(["'])(?:(?!\3).)*\3""", re.IGNORECASE | re.MULTILINE),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # addresses with a user in them
    (re.compile(r"(://)[^/\s@\"']+@"), rf"\1{HIDDEN}@"),
)


def redact(text: str) -> str:
    """``text`` with its secrets hidden."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
