"""What of a handle belongs to one interface of its container.

Rule: an address whose attributes name an interface is that interface's. One that upstream or an older version assigned
names none: whoever asks says whose it is, and no other interface gives it back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cni_calico.model.resources import Address

INTERFACE = "interface"  # the key in the attributes of an allocation


@dataclass(frozen=True, slots=True)
class Share:
    """``claim`` is given the addresses that name no interface, and answers which of them are this interface's."""

    interface: str
    claim: Callable[[frozenset[Address]], Collection[Address]]

    def others(self, held: Mapping[Address, str]) -> frozenset[Address]:
        """Those of ``held`` (address -> interface, "" where none is named) that are not this interface's."""
        unnamed = frozenset(address for address, interface in held.items() if not interface)
        claimed = frozenset(self.claim(unnamed)) if unnamed else unnamed
        return frozenset(a for a, interface in held.items() if interface != self.interface and a not in claimed)
