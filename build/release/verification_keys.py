"""The public keys that a release carries: what published.toml says, and nothing else.

Rule: a key is known by the SHA-256 of its DER form, which stands in published.toml; so a key that somebody put into the
directory, or took from it, is noticed before anything is made.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from published import Unpublishable

KEYS = Path(__file__).resolve().parent / "keys"
PUBLIC = "cni-calico.pub"
_BLOCK = re.compile(r"-----BEGIN PUBLIC KEY-----\n([A-Za-z0-9+/=\n]+)-----END PUBLIC KEY-----\n")


def fingerprint(block: str) -> str:
    """Of one PEM block. Raises ValueError."""
    match = _BLOCK.fullmatch(block)
    if match is None:
        raise ValueError("no public key in PEM form")
    return hashlib.sha256(base64.b64decode(match[1])).hexdigest()


def join_keys(files: Sequence[Path], wanted: Sequence[str]) -> str:
    """The text of cni-calico.pub, the keys in the order of ``wanted`` (fingerprints); empty where nothing is."""
    found: dict[str, str] = {}
    for file in files:
        try:
            found[fingerprint(file.read_text())] = file.read_text()
        except (ValueError, binascii.Error) as e:
            raise Unpublishable(f"cannot read {file}: {e}") from e
    if missing := [each for each in wanted if each not in found]:
        raise Unpublishable(
            f"published.toml names the key {missing[0]}, and no file of build/release/keys has it: add it"
        )
    if odd := sorted(found.keys() - set(wanted)):
        raise Unpublishable(f"build/release/keys has a key that published.toml does not name: {odd[0]}; add it to keys")
    return "".join(found[each] for each in wanted)


def write_keys(directory: Path, wanted: Sequence[str], keys: Path = KEYS) -> None:
    """cni-calico.pub in ``directory``, where anything is published. Raises Unpublishable."""
    if wanted:
        (directory / PUBLIC).write_text(join_keys(sorted(keys.glob("*.pub")), wanted))
