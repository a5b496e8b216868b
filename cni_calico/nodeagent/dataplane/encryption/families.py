"""PURE: the parameters of one family's encryption, and whether there is anything to do about it at all.

Rule: this is what a node without encryption imports of it, and all.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cni_calico.model.resources import Node
from cni_calico.nodeagent.context.felix import FelixSettings

GUARDS = ("calico-encryption", "calico-wireguard")  # tables of nftables that are only there with encryption
_KEYS = ("wireguardPublicKey", "wireguardPublicKeyV6")


class FamilySettings(NamedTuple):
    enabled: bool
    name: str
    port: int
    mtu: int


def of_family(felix: FelixSettings, family: int) -> FamilySettings:
    if family == 4:
        return FamilySettings(felix.wireguard_enabled, felix.wireguard_name, felix.wireguard_port, felix.wireguard_mtu)
    enabled = felix.wireguard_enabled_v6 and felix.ipv6_support
    return FamilySettings(enabled, felix.wireguard_name_v6, felix.wireguard_port_v6, felix.wireguard_mtu_v6)


def is_enabled(felix: FelixSettings) -> bool:
    """In a family at least."""
    return felix.wireguard_enabled or (felix.wireguard_enabled_v6 and felix.ipv6_support)


def concerns(felix: FelixSettings, own: Node | None, interfaces: Collection[str]) -> bool:
    """Whether encryption is on, or something of it is left. ``interfaces``: the names of those that are there."""
    if is_enabled(felix) or felix.wireguard_name in interfaces or felix.wireguard_name_v6 in interfaces:
        return True
    status = None if own is None else own.status
    return status is not None and any(status.get(name) for name in _KEYS)
