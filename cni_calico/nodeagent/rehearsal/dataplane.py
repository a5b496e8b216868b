"""The data plane in a rehearsal: what its parts would change, each compared as the part itself compares.

Rule: everything here reads, and each part of the data plane is here, by its name. A part that cannot be read is
trouble, and does not stop the others. WireGuard's peers change while the agent runs, so only the device, its port and
its peers' keys are compared; of the guard of encryption only whether it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel import host_routes, sysctl, tunnels
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter import ipsets, iptables, nft
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.offload import is_this_checksum_broken, read_tx_checksum
from cni_calico.kernel.shaping import Shaper
from cni_calico.kernel.wireguard.device import read_device
from cni_calico.model.host import LinkShaping
from cni_calico.nodeagent.context.features import CHECKSUM_BROKEN
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.bandwidth import NO_LIMITS, device_name
from cni_calico.nodeagent.dataplane.delta import plan_devices, plan_routes, plan_set, select_conflicts
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encapsulation import IPIP
from cni_calico.nodeagent.dataplane.encryption.guard import FAMILY as GUARD_FAMILY
from cni_calico.nodeagent.dataplane.encryption.guard import TABLE as GUARD_TABLE
from cni_calico.nodeagent.dataplane.endpoints import is_workload_interface, select_proven
from cni_calico.nodeagent.dataplane.floating import FAMILIES
from cni_calico.nodeagent.dataplane.forward_rules import (
    UPSTREAM,
    count_upstream_chains,
    plan_forward,
    plan_takeover,
    select_upstream_sets,
)
from cni_calico.nodeagent.dataplane.masquerade_rules import FAMILY, TABLE
from cni_calico.nodeagent.dataplane.parts.floating import earlier_leads
from cni_calico.nodeagent.dataplane.parts.takeover import refusal
from cni_calico.nodeagent.dataplane.parts.tunnels import DEVICES
from cni_calico.nodeagent.rehearsal.found import Rehearsed
from cni_calico.nodeagent.rehearsal.masquerading import describe_nat
from cni_calico.nodeagent.status.policing import Standing

ROUTES, TUNNELS, SETTINGS, NAT, RULES = "routes", "tunnels", "settings", "masquerading", "others' rules"
FLOATING, BANDWIDTH, ENCRYPTION, INTERFACES = "floating IPs", "bandwidth", "encryption", "interfaces"


@dataclass(frozen=True, slots=True)
class RehearsedPlane:
    """What it is compared with. ``by_nftables``: which packet filter the policies would use."""

    desired: Desired
    felix: FelixSettings
    standing: Standing
    by_nftables: bool
    mtu_file: str
    files: Files = field(default_factory=Files)


def rehearse_plane(plane: RehearsedPlane, found: Rehearsed, deadline: Deadline) -> None:
    """Each part in turn."""
    for name, (kind, part) in PARTS.items():
        try:
            for text in part(plane, deadline):
                found.change(kind, text)
        except (CalicoError, OSError) as e:
            found.trouble.append(f"{name}: {e}")
    try:
        _takeover(plane, found, deadline)
    except (CalicoError, OSError) as e:
        found.trouble.append(f"{RULES}: {e}")


def _guard(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    desired, is_there = plane.desired, nft.has_table(GUARD_FAMILY, GUARD_TABLE, deadline)
    if desired.guard is not None and not is_there:
        yield "set the guard of encryption"
    elif desired.guard is None and desired.guard_is_off and is_there:
        yield "remove the guard of encryption: it is not mandatory any more"


def _checksums(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    broken = dict(plane.felix.features).get(CHECKSUM_BROKEN, is_this_checksum_broken())
    there = {interface.name for interface in read_interfaces(deadline)} if broken else set()
    for name in sorted(there.intersection(plane.desired.devices)):
        if read_tx_checksum(name):
            yield f"do the checksums of {name} in software"


def _floating(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    for family in FAMILIES:
        leads = {one.external: one.internal for one in plane.desired.floating if one.external.version == family}
        if leads != earlier_leads(family, deadline):
            yield f"set floating IPs of IPv{family}: {', '.join(map(str, leads)) or 'none'}"


def _settings(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    for path, value in plane.desired.settings:
        there = sysctl.read(path)
        if there is not None and there != value:
            yield f"set net/{'/'.join(path)} to {value} (is {there})"


def _signatures(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    unsigned = plane.desired.unsigned
    for item in select_proven(unsigned, host_routes.read_host_routes(deadline)) if unsigned else ():
        yield f"sign interface {item.device} with the alias of its workload"


def _devices(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    desired = plane.desired
    changes, removed = plan_devices(desired.devices, tunnels.read_tunnels(DEVICES, deadline))
    for change in changes:
        verb = "make" if change.actual is None else "make anew" if change.remake else "change"
        yield f"{verb} {change.wanted.name}"
    if not desired.additive:
        yield from (f"remove {name}" for name in removed)


def _neighbours(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    desired = plane.desired
    there = tunnels.read_tunnels(DEVICES, deadline)
    hops, entries = tunnels.read_vteps([name for name in desired.devices if name != IPIP and name in there], deadline)
    for what, changes in (
        ("neighbour", plan_set(desired.neighbours, hops)),
        ("forwarding entry", plan_set(desired.forwarding, entries)),
    ):
        yield from (f"add {what} {one}" for one in changes.add)
        yield from (f"remove {what} {one}" for one in (() if desired.additive else changes.remove))


def _routes(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    desired, felix = plane.desired, plane.felix
    if not desired.routes_enabled:
        return
    actual = host_routes.read_host_routes(deadline)
    planned = plan_routes(desired.routes, actual, felix)
    conflicts = select_conflicts(planned.add, desired.routes, actual, felix)
    for route in planned.add:
        if route in conflicts:
            yield f"cannot add route {route}: the host has {conflicts[route]}"
        else:
            yield f"add route {route}"
    for route in planned.remove:
        if not desired.additive or is_workload_interface(route.device, felix):
            yield f"remove route {route}"


def _encryption(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    for one in plane.desired.encryption:
        device = None if one.found is None else read_device(one.name, deadline)
        if one.enabled and not one.impossible:
            if device is None:
                yield f"make {one.name}, with a key and {len(one.peers)} peers"
                continue
            if device.port != one.port:
                yield f"set the port of {one.name} to {one.port} (is {device.port})"
            there, wanted = {peer.public_key for peer in device.peers}, {peer.key for peer in one.peers}
            if there != wanted:
                yield f"change peers of {one.name}: {len(wanted - there)} more, {len(there - wanted)} fewer"
        elif device is not None and not one.enabled and one.mark and device.mark == one.mark:
            yield f"remove {one.name}"


def _bandwidth(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    asked = plane.desired.bandwidth
    if asked == NO_LIMITS:
        return
    with Shaper(deadline) as shaper:
        held = shaper.read([name for name, shaping in asked.wanted.items() if shaping.egress])
    unshaped = LinkShaping()
    for name, shaping in asked.wanted.items():
        device = device_name(name)
        if shaping.ingress is not None and held.get(name, unshaped).root != shaping.ingress:
            yield f"limit what {name} receives to {8 * shaping.ingress.rate} bit/s"
        if shaping.egress is not None and held.get(device, unshaped).root != shaping.egress:
            yield f"limit what {name} sends to {8 * shaping.egress.rate} bit/s"
    yield from (f"remove {device}, which limits nobody any more" for device in sorted(asked.strays))


def _masquerading(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    for nat in plane.desired.nat:
        yield from describe_nat(nat, plane.felix, plane.by_nftables, deadline)


def _forwarding(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    for family, variant in iptables.readable_variants():
        if plan_forward(iptables.read_rules(family, variant, deadline), plane.desired.forward_prefixes):
            yield f"accept forwarding for workloads in FORWARD (IPv{family}, {variant})"


def _mtu(plane: RehearsedPlane, deadline: Deadline) -> Iterator[str]:
    wanted = plane.desired.mtu
    if not wanted or plane.files.holds(plane.mtu_file, str(wanted).encode()):
        return
    try:
        there = plane.files.read_bytes(plane.mtu_file).strip().decode("ascii", "replace")
    except OSError:
        there = ""
    if there != str(wanted):
        yield f"set the MTU of new workloads to {wanted}" + (f" (is {there})" if there else "")


def _takeover(plane: RehearsedPlane, found: Rehearsed, deadline: Deadline) -> None:
    """What upstream's agent left."""
    lost: Collection[str] = () if plane.felix.takeover_without_policies else plane.standing.lost
    if not has_upstream_rules(deadline):
        return
    if lost:
        found.notes.append(refusal(tuple(lost)))
        return
    if not plane.standing.upstream_goes:
        found.notes.append(f"upstream's rules stay: {plane.standing.sentence}")
        return
    for family, variant in iptables.readable_variants():
        saved = iptables.read_rules(family, variant, deadline)
        if plan_takeover(saved):
            count = count_upstream_chains([saved])
            found.change(RULES, f"remove {count} chains of upstream's agent (IPv{family}, {variant})")
    if nft.has_table("arp", "calico-arp", deadline):
        found.change(RULES, "remove table arp calico-arp of upstream's agent")
    sets = select_upstream_sets(ipsets.read_ipsets(deadline))
    if sets:
        found.change(RULES, f"remove {len(sets)} IP sets of upstream's agent")


def has_upstream_rules(deadline: Deadline) -> bool:
    """Whether upstream's agent left any rules here; nothing is tried for that. Raises KernelError."""
    saved = (iptables.read_rules(family, variant, deadline) for family, variant in iptables.readable_variants())
    if any(map(plan_takeover, saved)) or nft.has_table("arp", "calico-arp", deadline):
        return True
    return any(f"-{UPSTREAM}" in nft.print_table(family, TABLE, deadline) for family in FAMILY.values())


# by the names that the parts have; taking over from upstream is rehearse_plane's last step
PARTS: Mapping[str, tuple[str, Callable[[RehearsedPlane, Deadline], Iterator[str]]]] = {
    "the guard of encryption": (ENCRYPTION, _guard),
    "settings": (SETTINGS, _settings),
    "signatures of interfaces": (INTERFACES, _signatures),
    "tunnel devices": (TUNNELS, _devices),
    "checksums of tunnels": (TUNNELS, _checksums),
    "neighbours": (TUNNELS, _neighbours),
    "floating IPs": (FLOATING, _floating),
    "routes": (ROUTES, _routes),
    "encryption": (ENCRYPTION, _encryption),
    "bandwidth": (BANDWIDTH, _bandwidth),
    "masquerading": (NAT, _masquerading),
    "accepting forwarding": (RULES, _forwarding),
    "the MTU file": (SETTINGS, _mtu),
}
