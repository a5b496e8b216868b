"""PURE: the two API groups in which Calico's records can be custom resources, as values with the same functions.

Rule: everybody who reads or writes custom resources is given one of them. The second is imported only where it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cni_calico.model.access import API_GROUP, NATIVE_GROUP
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import Key
from cni_calico.model.kubernetes import custom


@dataclass(frozen=True, slots=True)
class ApiGroup:
    """``name`` has the version, "crd.projectcalico.org/v1"; ``address_plurals`` are the types of IPAM's records, the
    last of them that of its configuration.
    """

    name: str
    place_of: Callable[[Key], custom.Place]
    read_object: Callable[[JSON], tuple[Key, dict[str, Any]]]
    object_of: Callable[..., dict[str, Any]]
    address_plurals: tuple[str, ...]

    @property
    def root(self) -> str:
        return f"/apis/{self.name}"


_ADDRESSES = ("ipamblocks", "blockaffinities", "ipamhandles")
CUSTOM = ApiGroup(API_GROUP, custom.place_of, custom.read_object, custom.object_of, (*_ADDRESSES, "ipamconfigs"))


def group_named(name: str) -> ApiGroup:
    """``name``: API_GROUP or NATIVE_GROUP."""
    if name == API_GROUP:
        return CUSTOM
    from cni_calico.model.kubernetes import native

    plurals = (*_ADDRESSES, "ipamconfigurations")
    return ApiGroup(NATIVE_GROUP, native.place_of, native.read_object, native.object_of, plurals)
