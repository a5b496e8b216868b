"""PURE: the part of a handle that belongs to one interface of its container.

Rule: an address whose attributes name an interface belongs to that interface. Addresses assigned by upstream or an
older version name none: the caller decides which interface they belong to, and no other interface releases them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cni_calico.model.resources import Address

INTERFACE = "interface"  # the key in the attributes of an allocation


@dataclass(frozen=True, slots=True)
class Share:
    """``claim`` gets the addresses that name no interface, and whether others name another one; it returns those that
    are this interface's.
    """

    interface: str
    claim: Callable[[frozenset[Address], bool], Collection[Address]]

    def others(self, held: Mapping[Address, str]) -> frozenset[Address]:
        """Those of ``held`` (address -> interface, "" if none is named) that are not this interface's."""
        unnamed = frozenset(address for address, interface in held.items() if not interface)
        named_others = any(interface not in ("", self.interface) for interface in held.values())
        claimed = frozenset(self.claim(unnamed, named_others)) if unnamed else unnamed
        return frozenset(a for a, interface in held.items() if interface != self.interface and a not in claimed)
