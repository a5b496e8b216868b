"""PURE: users' fragments of BIRD's configuration, which are included at fixed places in ours.

Rule: a fragment is text between two marks that name it, so that BIRD's complaint (file:line) can be traced to it; a
file that belongs nowhere is reported. Fragments come only from files, never from records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cni_calico.nodeagent.bgp.config.findings import WARNING, BgpProblem

GLOBAL, PEERS = "global.conf", "peers.conf"
_PLACES = frozenset((GLOBAL, PEERS, *(f"{p}{v}.conf" for p in ("kernel", "import", "export") for v in (4, 6))))
_PEER = re.compile(r"peer-(.+)\.conf")
_BEGIN, _END = "# begin custom/", "# end custom/"
_LINE = re.compile(r"([\w.]+\.cfg):(\d+)")


@dataclass(frozen=True, slots=True)
class Fragments:
    """``texts`` by file name."""

    texts: Mapping[str, str] = field(default_factory=dict)

    def lines(self, *names: str) -> list[str]:
        """The existing fragments with these names, each between its marks."""
        out: list[str] = []
        for name in names:
            if name in self.texts:
                out += [f"{_BEGIN}{name}", *self.texts[name].splitlines(), f"{_END}{name}"]
        return out

    @property
    def has_bfd(self) -> bool:
        """Whether they contain a BFD protocol; BIRD accepts only one."""
        return re.search(r"^\s*protocol\s+bfd\b", self.texts.get(GLOBAL, ""), re.MULTILINE) is not None


def peer_file(peer: str) -> str:
    """The fragment of a BGPPeer."""
    return f"peer-{peer}.conf"


def is_fragment(name: str) -> bool:
    return name in _PLACES or _PEER.fullmatch(name) is not None


def find_strays(names: Iterable[str], peers: Iterable[str]) -> tuple[BgpProblem, ...]:
    """Files that belong nowhere: with an unknown name, or for a BGPPeer that this node does not have."""
    known = _PLACES | {peer_file(peer) for peer in peers}
    return tuple(
        BgpProblem(f"custom/{name}", "has no place in BIRD's configuration here; it is not used", WARNING)
        for name in sorted(names)
        if name not in known
    )


def blame(detail: str, files: Mapping[str, str]) -> str:
    """The fragment that BIRD complains about ("bird.cfg:17 syntax error"), "" if it is our own text."""
    found = _LINE.search(detail)
    if found is None:
        return ""
    inside = ""
    for line in files.get(found[1], "").splitlines()[: int(found[2])]:
        mark = line.strip()
        if mark.startswith(_BEGIN):
            inside = mark.removeprefix(_BEGIN)
        elif mark.startswith(_END):
            inside = ""
    return inside
