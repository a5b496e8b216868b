"""PURE: which resources the words of a command line name.

Rule: KIND, KIND NAME... and KIND/NAME... mean what they mean to kubectl; kinds and names may be lists with commas. The
first word decides: if it has a slash, every word has its own kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.ctl.input.kinds import parse_kind
from cni_calico.errors import InvalidConfig


def parse_targets(words: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """(kinds requested as a whole, (kind, name) of the resources): one of the lists is empty.

    Raises InvalidConfig for a kind that does not exist, an empty name, and words of both forms.
    """
    if not words:
        return [], []
    if "/" in words[0]:
        return [], [_parse_pair(part) for word in words for part in word.split(",")]
    kinds = list(dict.fromkeys(parse_kind(part) for part in words[0].split(",")))
    names = [part for word in words[1:] for part in word.split(",")]
    if "" in names:
        raise InvalidConfig("resource name may not be empty")
    return ([], [(kind, name) for kind in kinds for name in names]) if names else (kinds, [])


def _parse_pair(word: str) -> tuple[str, str]:
    kind, slash, name = word.partition("/")
    if not slash:
        raise InvalidConfig(f"cannot read {word!r}: after KIND/NAME every resource must be named as KIND/NAME")
    if not name:
        raise InvalidConfig("resource name may not be empty")
    return parse_kind(kind), name


def parse_target(words: Sequence[str], verb: str) -> tuple[str, str]:
    """(kind, name) of exactly one resource. Raises InvalidConfig."""
    named = parse_targets(words)[1]
    if len(named) != 1:
        raise InvalidConfig(f"cannot {verb}: name one resource, as KIND NAME or KIND/NAME")
    return named[0]
