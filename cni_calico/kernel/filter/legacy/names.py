"""PURE: names of our objects in legacy iptables and among IP sets, from those that nf_tables would have.

Rule: iptables allows 28 characters and IP sets 31; a name that is too long, or unsafe in a script, is cut and gets a
digest after "_", which no unchanged name contains. All begin as upstream's do (``cali-``, ``cali40``, ``cali60``), so
that its agent removes them when it comes back; what follows then is ours alone, so that taking over from it leaves them
alone.
"""

from __future__ import annotations

import re
from _blake2 import blake2b  # hashlib would load libcrypto
from functools import lru_cache

CHAINS = "cali-p-"
SETS = {4: "cali40p-", 6: "cali60p-"}
SPARE_SET = {4: "cali4tp", 6: "cali6tp"}  # filled, swapped with the set whose content changes, and destroyed
RULE_COMMENT = "cali:"
_CHAIN_ROOM, _SET_ROOM = 28 - len(CHAINS), 31 - len(SETS[4])
_DIGEST_BYTES = 8
_CACHED = 4096  # of 1,000 policies' names some 1,200; the names of classes' chains do not come again
_SAFE = re.compile(r"[A-Za-z0-9.\-/]+")


def digest(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()


def _fitting(name: str, room: int) -> str:
    if len(name) <= room and _SAFE.fullmatch(name):
        return name
    return f"{re.sub('[^A-Za-z0-9]', '', name)[: room - 2 * _DIGEST_BYTES - 1]}_{digest(name)}"


@lru_cache(_CACHED)
def chain_name(name: str) -> str:
    return CHAINS + _fitting(name, _CHAIN_ROOM)


@lru_cache(_CACHED)
def set_name(name: str, family: int) -> str:
    return SETS[family] + _fitting(name, _SET_ROOM)


def tagged(text: str) -> str:
    """The comment that tells a rule of ours, and whether it is still the one that was written."""
    return RULE_COMMENT + digest(text)
