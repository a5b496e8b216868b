"""PURE: limits of workloads' bandwidth as token buckets of the kernel.

Rule: a limit is the record's; where the record says nothing, a burst is a tenth of a second (upstream's 512 MiB let so
much pass at full speed first), and no burst is smaller than a packet, which would never be sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cni_calico.model.host import TICKS_PER_S, HostInterface, TokenBucket
from cni_calico.model.qos import BOUNDS
from cni_calico.model.resources import WorkloadEndpoint

DEVICE_PREFIX = "bwcali"  # upstream's: its agent finds and removes ours, and ours its
_BURST_S, _BURST_PACKETS = 0.1, 4
_QUEUE_S = 0.025
_QUEUE_BYTES = 65536  # and one packet: the largest that a stack hands over is split in the queue
_ETHERNET_BYTES = 14
_U32_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Shaping:
    """Of one workload's interface, with its index and MTU: ``ingress`` limits what the workload receives, ``egress``
    what it sends. An interface that was made again under its name has another index, and no limit yet.
    """

    index: int
    mtu: int
    ingress: TokenBucket | None = None
    egress: TokenBucket | None = None


@dataclass(frozen=True, slots=True)
class DesiredBandwidth:
    """``wanted`` by the workload's interface; ``strays``: devices that limit what a workload sends, and no limit wants
    them; ``workloads``: the interfaces of all workloads.
    """

    wanted: Mapping[str, Shaping] = field(default_factory=dict)
    strays: frozenset[str] = frozenset()
    workloads: frozenset[str] = frozenset()


NO_LIMITS = DesiredBandwidth()


def device_name(interface: str) -> str:
    """The interface through which goes what comes in from the workload's."""
    from hashlib import sha512  # it loads libcrypto; few nodes limit bandwidth

    return DEVICE_PREFIX + sha512(interface.encode()).hexdigest()[:9]


def desired_bandwidth(
    present: Mapping[str, WorkloadEndpoint], interfaces: Iterable[HostInterface]
) -> tuple[DesiredBandwidth, list[str]]:
    """What there must be, and what is not as it was written, in words."""
    limited = {name: endpoint for name, endpoint in present.items() if endpoint.qos_controls}
    wanted: dict[str, Shaping] = {}
    said: list[str] = []
    devices = set()
    for interface in interfaces:
        if interface.name.startswith(DEVICE_PREFIX) and interface.kind == "ifb":
            devices.add(interface.name)
        elif interface.name in limited:
            controls = limited[interface.name].qos_controls or {}
            buckets = [_bucket(controls, way, interface, said) for way in ("ingress", "egress")]
            if any(buckets):
                wanted[interface.name] = Shaping(interface.index, interface.mtu, *buckets)
    if not wanted and not devices:
        return NO_LIMITS, said
    used = {device_name(name) for name, shaping in wanted.items() if shaping.egress is not None}
    return DesiredBandwidth(wanted, frozenset(devices - used), frozenset(present)), said


def with_changed(
    former: DesiredBandwidth, present: Mapping[str, WorkloadEndpoint], interfaces: Sequence[HostInterface]
) -> DesiredBandwidth:
    """What there must be if only the workloads with these interfaces are others; ``present`` of these, by interface."""
    names = {interface.name for interface in interfaces}
    changed = desired_bandwidth(present, interfaces)[0].wanted
    wanted = {**{name: shaping for name, shaping in former.wanted.items() if name not in names}, **changed}
    sent = {name for name in names if name in former.wanted and former.wanted[name].egress is not None}
    sends = {name for name, shaping in changed.items() if shaping.egress is not None}
    strays = former.strays.union(map(device_name, sent)) - set(map(device_name, sends))
    return DesiredBandwidth(wanted, strays, former.workloads | present.keys()) if wanted or strays else NO_LIMITS


def _bucket(controls: Mapping[str, object], way: str, interface: HostInterface, said: list[str]) -> TokenBucket | None:
    bits = _number(controls, f"{way}Bandwidth")
    if bits is None:
        return None
    rate, packet = max(1, bits // 8), interface.mtu + _ETHERNET_BYTES
    written = _number(controls, f"{way}Burst")
    burst = int(max(rate * _BURST_S, _BURST_PACKETS * interface.mtu)) if written is None else written // 8
    if burst < packet:
        said.append(
            f"the {way}Burst of {interface.name} is smaller than one packet, which would never pass: {8 * packet} bits "
            "are used"
        )
        burst = packet
    limit = int(rate * _QUEUE_S) + burst
    peak, least = (_number(controls, f"{way}Peakrate") or 0) // 8, 0
    if peak > rate:
        least = max(packet, _number(controls, f"{way}Minburst") or 0)
        limit = min(limit, int(peak * _QUEUE_S) + least)
    else:  # the kernel refuses one that is no higher
        peak = 0
    limit = min(max(limit, _QUEUE_BYTES + packet), _U32_MAX)
    return TokenBucket(rate, limit, _ticks(burst, rate), peak, _ticks(least, peak) if peak else 0)


def _ticks(size: int, rate: int) -> int:
    """How long it takes to send so many bytes; at least long enough."""
    return min(-(-size * TICKS_PER_S // rate), _U32_MAX)


def _number(controls: Mapping[str, object], name: str) -> int | None:
    """A value within its bounds. Anybody may have written another one into a record: it is no limit."""
    value, (low, high) = controls.get(name), BOUNDS[name]
    return value if type(value) is int and low <= value <= high else None
