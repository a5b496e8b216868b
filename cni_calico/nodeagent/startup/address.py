"""PURE: the node's addresses, from the variables IP and IP6, the stored ones, and those on the host's interfaces.

Rule: one family at a time. A fixed address wins; "autodetect" always detects; "none" and an empty IP6 keep what is
stored; an empty IP detects only if nothing is stored. A stored address stays while an interface of the host has it,
also one that is down, until the method is changed: a new network card, another route to a can-reach target or another
InternalIP does not change a node's address. A method that finds nothing falls back to what is stored; IPv4 without
either is an error, IPv6 without either is a node without IPv6 and a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cni_calico.errors import InvalidConfig
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Address, Interface
from cni_calico.nodeagent.context.address_setting import AddressSetting, Method
from cni_calico.nodeagent.startup.autodetect import Choice, not_found, select_addresses, select_holder


@dataclass(frozen=True, slots=True)
class Found:
    """``detected``: a method found the address, in contrast to a configured or stored one. ``notes`` are for the log of
    a start; they are no doubts about the address.
    """

    address: Interface | None
    interface: str = ""
    detected: bool = False
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts from outside: interfaces, Kubernetes' internal IPs, the source address towards a can-reach target.

    ``method_changed``: what is stored was found by a method other than the present one.
    """

    interfaces: Sequence[HostInterface]
    internal_ips: Sequence[Address] = ()
    reached_from: Address | None = None
    default_interface: str = ""
    method_changed: bool = False


def plan_address(
    family: int, setting: AddressSetting, method: Method, stored: Interface | None, facts: HostFacts
) -> Found:
    """The address to store. Raises InvalidConfig if IPv4 is asked for and cannot be found."""
    if setting.mode == "fixed":
        assert setting.address is not None
        return _fixed(family, setting, facts)
    if setting.mode == "autodetect" or (setting.mode == "keep" and family == 4 and stored is None):
        found = select_addresses(
            method,
            family,
            facts.interfaces,
            internal_ips=facts.internal_ips,
            reached_from=facts.reached_from,
            default_interface=facts.default_interface,
        )
        if found:
            return _detected(family, found, stored, facts)
        return _not_detected(family, method, stored, facts)
    return _kept(stored, facts)


def _detected(family: int, found: Sequence[Choice], stored: Interface | None, facts: HostFacts) -> Found:
    """The first address that was found, unless an interface still has the stored one."""
    choice = found[0]
    if stored is None or choice.address.ip == stored.ip:
        return Found(choice.address, choice.interface, detected=True)
    held = next((item for item in found if item.address.ip == stored.ip), select_holder(stored.ip, facts.interfaces))
    if facts.method_changed or not held.interface:
        told = f"the node's IPv{family} address changes from {stored} to {choice.address} ({choice.interface})"
        return Found(choice.address, choice.interface, detected=True, warnings=(told,))
    variable = "IP" if family == 4 else "IP6"
    told = (
        f"the node's IPv{family} address stays {held.address}, because {held.interface} still has it; with nothing "
        f"stored it would be {choice.address} ({choice.interface or 'on no interface'}): set {variable} to that to move"
    )
    return Found(held.address, held.interface, detected=True, notes=(told,))


def _fixed(family: int, setting: AddressSetting, facts: HostFacts) -> Found:
    assert setting.address is not None
    held = select_holder(setting.address.ip, facts.interfaces)
    if family == 4 and not setting.with_prefix:
        return Found(held.address, held.interface, warnings=_unheld(held))
    return Found(setting.address, held.interface, warnings=_unheld(held))


def _kept(stored: Interface | None, facts: HostFacts) -> Found:
    if stored is None:
        return Found(None)
    held = select_holder(stored.ip, facts.interfaces)
    return Found(stored, held.interface, warnings=_unheld(held))


def _not_detected(family: int, method: Method, stored: Interface | None, facts: HostFacts) -> Found:
    error = not_found(family, method, facts.interfaces)
    if stored is not None:
        kept = _kept(stored, facts)
        return Found(stored, kept.interface, warnings=(f"{error}; the stored address {stored} is kept", *kept.warnings))
    if family == 4:
        raise error
    return Found(None, warnings=(f"{error}; this node goes without IPv6",))


def _unheld(choice: Choice) -> tuple[str, ...]:
    if choice.interface:
        return ()
    return (f"the node's address {choice.address.ip} is on none of this host's interfaces",)


def require_some(found: Sequence[Found], backend: str) -> None:
    """Networking needs an address of one family. Raises InvalidConfig."""
    if backend != "none" and all(item.address is None for item in found):
        raise InvalidConfig(
            "cannot set up the node: no IPv4 or IPv6 address is configured or detected",
            details="set IP or IP6, or CALICO_NETWORKING_BACKEND=none if Calico is not to do networking",
        )
