"""PURE: texts without their secrets: for answers, logs and everything else that leaves the process.

Rule: this is the only place. Everything that looks like a secret by its name or its form is removed: values named
token, password or key, credentials in headers and in addresses, private keys, JSON web tokens. calicoctl's archive
(ctl/output/redaction.py) hides more.
"""

from __future__ import annotations

import re

HIDDEN = "[hidden]"
_SECRET = re.compile(
    r"(?i)((?:token|password|passwd|passphrase|secret|authorization|client-key-data|private[ _-]?key)\"?\s*[:=]\s*\"?)"
    r"(?:(?:bearer|basic)\s+)?[^\s\",}]+"
    r"|\b((?:bearer|basic)\s+)(?=(?-i:\S*[A-Z0-9+/=]))[\w.~+/=-]{8,}"
    r"|(://)[^\s/\"']+(?=@)"
    r"|eyJ[\w-]+\.[\w-]+\.[\w-]+"
    r"|-----BEGIN [^-]*PRIVATE KEY-----.*?(?:-----END|$)",
    re.DOTALL,
)


def without_secrets(text: str) -> str:
    """The text with tokens, passwords and keys replaced."""
    return _SECRET.sub(lambda found: (found.group(1) or found.group(2) or found.group(3) or "") + HIDDEN, text)
