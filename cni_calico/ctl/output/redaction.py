"""PURE: texts without their secrets, for what people send to others.

Rule: whatever looks like a secret by its name or form is replaced, in any kind of text. Hiding too much is better than
hiding too little, so the paths of key files are hidden as well. Known secrets (``secrets_in`` a configuration) are
replaced wherever they occur.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from collections.abc import Iterable

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
        re.compile(rf'(^|[\s,;{{(])({_NAMES}\s*[:=][ \t]*)(?!["\'\s])[^\s,;)}}]+', re.IGNORECASE | re.MULTILINE),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(rf"""(^|[\s,;{{(])({_NAMES}\s*[:=][ \t]*)(["'])(?:\\.|(?!\3).)*\3""", re.IGNORECASE | re.MULTILINE),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), HIDDEN),
    # addresses with a user in them
    (re.compile(r"(://)[^/\s@\"']+@"), rf"\1{HIDDEN}@"),
)


# Contents of configurations: values under names that mean nothing else, and users' passwords in addresses.
_NAMED = r"""[\w.-]*(?:password|passwd|passphrase|(?<!\w)secret|token)s?["']?"""
_VALUES = (
    re.compile(rf"^{_NAMED}=(.+)$", re.IGNORECASE | re.MULTILINE),  # a variable: to the end of its line
    re.compile(rf'{_NAMED}\s*[:=]?[ \t]*"((?:[^"\\\n]|\\.)*)"', re.IGNORECASE),
    re.compile(rf"{_NAMED}\s*[:=][ \t]*'([^'\n]*)'", re.IGNORECASE),
    re.compile(rf"{_NAMED}\s*[:=][ \t]*([^\s\"',;}}]+)", re.IGNORECASE),
    re.compile(r"\bBearer\s+([A-Za-z0-9._~+/=-]+)"),
    re.compile(r"://[^/\s@:\"']+:([^/\s@\"']+)@"),
)
SHORTEST = 4  # shorter ones would hide half of the text
_NO_SECRETS = frozenset(("true", "false", "null", "none"))


def secrets_in(configuration: str) -> set[str]:
    """The passwords and tokens in a configuration file or environment ("NAME=value" lines)."""
    found = {match.group(1).strip() for pattern in _VALUES for match in pattern.finditer(configuration)}
    found |= {re.sub(r"\\(.)", r"\1", text) for text in found}  # without their quotes
    return {text for text in found if len(text) >= SHORTEST and text.lower() not in _NO_SECRETS and text[0] != "/"}


def redact(text: str, secrets: Iterable[str] = ()) -> str:
    """``text`` with its secrets hidden; ``secrets`` are hidden wherever they occur, also in base64."""
    for secret in sorted(secrets, key=len, reverse=True):
        encoded = b2a_base64(secret.encode("utf-8", "surrogateescape"), newline=False).decode()
        for form in (secret, encoded, encoded.rstrip("=")):
            text = text.replace(form, HIDDEN)
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
