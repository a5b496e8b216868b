"""PURE: what the handle of an address says about its owner if the allocation has no attributes.

Rule: the oldest releases wrote a handle only: the container's ID, ``<namespace>.<pod>``, or ``<network>.<container>``.
A handle is read only if it can be one of these; everything else, and the handles of later features, is foreign. Pod and
container may both be meant by one text, so an address is lost only if neither exists.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_LATER = (".vmi.", ".sts.", ".id.")  # handles that stay while their pods come and go
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_POD = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Named:
    """Whom a handle may name: a pod, or, with ``pod`` "", only a container."""

    namespace: str = ""
    pod: str = ""


def is_bare(said: Mapping[str, str]) -> bool:
    """Whether an allocation's attributes say nothing of its owner."""
    return not set(said) - {"timestamp"}


def is_container(text: str) -> bool:
    """Whether a text is certainly a container's ID, as every runtime makes them."""
    return _CONTAINER.fullmatch(text) is not None


def outlives_its_pod(handle_id: str) -> bool:
    """Whether a handle may be of a later feature, whose addresses stay while pods come and go: a network may be called
    like a part of one, and what else the allocation says decides (model.lasting:parse_kept).
    """
    return any(mark in handle_id for mark in _LATER)


def parse_bare_handle(handle_id: str) -> Named | None:
    """None if the handle is none of the oldest releases'."""
    if is_container(handle_id.rpartition(".")[2]):
        return Named()  # no identity has such a name, though its network may be called like the handle of one
    if outlives_its_pod(handle_id):
        return None
    namespace, _, pod = handle_id.partition(".")
    return Named(namespace, pod) if _NAMESPACE.fullmatch(namespace) and _POD.fullmatch(pod) else None


def suffixes(handle_id: str) -> frozenset[str]:
    """The IDs, folded, of containers that the handle may be of, in whatever network: both may contain dots."""
    parts = handle_id.casefold().split(".")
    return frozenset(".".join(parts[first:]) for first in range(len(parts)))
