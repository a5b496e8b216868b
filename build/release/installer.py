"""install.sh as a release has it: it knows its version, where releases are published, and whose signature counts. What
is made for one processor has the version alone; join.py fills in all of it.

Rule: without a key it says so and installs nothing that is not vouched for otherwise; what is filled in cannot end the
quotes that it stands in.
"""

from __future__ import annotations

import re
from pathlib import Path

INSTALLER = Path(__file__).resolve().parent / "install.sh"
_FIELDS = ("VERSION", "RELEASES", "KEYS")
_KEYS = re.compile(r"(?:-----BEGIN PUBLIC KEY-----\n[A-Za-z0-9+/=\n]+-----END PUBLIC KEY-----\n)*")


def render_installer(text: str, version: str, releases: str = "", keys: str = "") -> str:
    """``releases``: the address below which each release has a directory, vVERSION; ``keys``: public ones, in PEM form,
    one after the other. Raises ValueError.
    """
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+~]*", version):
        raise ValueError(f"no version: {version!r}")
    if releases and not re.fullmatch(r"https://[^\s'\"$`\\]+[^\s'\"$`\\/]", releases):
        raise ValueError(f"no address of releases: {releases!r}")
    if not _KEYS.fullmatch(keys):
        raise ValueError(f"no public keys in PEM form: {keys[:40]!r}")
    for name, value in zip(_FIELDS, (version, releases, keys), strict=True):
        if text.count(f"\n{name}=\n") != 1:
            raise ValueError(f"install.sh has no place for {name}")
        text = text.replace(f"\n{name}=\n", f"\n{name}='{value.rstrip()}'\n")
    return text
