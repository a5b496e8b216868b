"""PURE: what this host's kernel holds, as values: interfaces, routes, neighbours, forwarding entries.

Rule: kernel/ reads and writes these, nodeagent/ computes with them; interfaces are named, never numbered, so that a
value stays valid if a device is removed and created again (``HostInterface.index`` is only an order).
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.model.resources import Address, Interface, Network

PROTO_BOOT = 3
PROTO_CALICO = 80  # upstream's number for routes that its agent writes


@dataclass(frozen=True, slots=True)
class HostInterface:
    """``addresses`` are in the kernel's order, except that those that must not be announced to other hosts (temporary
    ones) come last.
    """

    index: int
    name: str
    up: bool
    mtu: int
    addresses: tuple[Interface, ...] = ()
    mac: str = ""
    kind: str = ""
    alias: str = ""


V6_DEFAULT_METRIC = 1024  # of a route without one


@dataclass(frozen=True, slots=True)
class HostRoute:
    """A route of one table. ``device`` is "" and ``via`` None for a blackhole.

    ``metric`` 0 is the kernel's default for the family (IPv6 shows it as 1024: readers turn that into 0).
    """

    dst: Network
    device: str = ""
    via: Address | None = None
    kind: str = "unicast"
    onlink: bool = False
    scope: str = "global"
    protocol: int = PROTO_CALICO
    source: Address | None = None
    metric: int = 0

    def __str__(self) -> str:
        parts = [self.kind] if self.kind != "unicast" else []
        parts.append(str(self.dst))
        parts += [f"via {self.via}"] if self.via else []
        parts += [f"dev {self.device}"] if self.device else []
        return " ".join(parts + (["onlink"] if self.onlink else []))


@dataclass(frozen=True, slots=True)
class RoutingRule:
    """A rule that sends packets to a routing table: those whose mark, under ``mask``, is ``mark`` (``invert``: is not);
    ``mask`` 0: whatever their mark is. ``source``: only packets from there.
    """

    family: int
    priority: int
    table: int
    mark: int = 0
    mask: int = 0
    invert: bool = False
    source: Network | None = None

    def __str__(self) -> str:
        which = "not " if self.invert else ""
        which += f"from {self.source or 'all'}" + (f" fwmark {self.mark:#x}/{self.mask:#x}" if self.mask else "")
        return f"{self.priority}: {which} lookup {self.table}"


@dataclass(frozen=True, slots=True)
class NeighbourEntry:
    """A permanent neighbour of a device: packets to ``address`` go to ``mac``."""

    device: str
    address: Address
    mac: str


@dataclass(frozen=True, slots=True)
class ForwardingEntry:
    """A static entry of a VXLAN device's forwarding database: packets for ``mac`` go to ``remote``."""

    device: str
    mac: str
    remote: Address


@dataclass(frozen=True, slots=True)
class TunnelDevice:
    """A tunnel device with everything about it that the agent decides.

    ``kind`` is "vxlan" or "ipip"; ``parent``, ``local``, ``vni``, ``port``, ``mac`` and ``learning`` apply to VXLAN
    only. ``address`` is the device's only address: a device read with several never equals the wanted one.
    """

    name: str
    kind: str
    mtu: int
    address: Address | None = None
    more_addresses: bool = False
    parent: str = ""
    local: Address | None = None
    vni: int = 0
    port: int = 0
    mac: str = ""
    learning: bool = False
    up: bool = True


TICKS_PER_S = 15_625_000  # of a token bucket: 64 ns


@dataclass(frozen=True, slots=True)
class TokenBucket:
    """A limit of bandwidth (tbf). ``rate`` and ``peak`` in bytes per second (``peak`` 0: none), ``limit`` of the queue
    in bytes; ``buffer`` and ``mtu``, which the kernel keeps as times at the rate and the peak rate, in ticks of 64 ns.
    """

    rate: int
    limit: int
    buffer: int
    peak: int = 0
    mtu: int = 0

    @property
    def largest(self) -> int:
        """Of a packet that can ever leave it, in bytes."""
        burst = self.buffer * self.rate // TICKS_PER_S
        return min(burst, self.mtu * self.peak // TICKS_PER_S) if self.peak else burst


@dataclass(frozen=True, slots=True)
class LinkShaping:
    """What shapes an interface. ``root``: its tbf or None; ``ingress``: "ingress", "clsact" or "": what holds filters
    of what comes in; ``redirects``: the names of the interfaces to which u32 filters there send packets ("": none).
    """

    root: TokenBucket | None = None
    ingress: str = ""
    redirects: tuple[str, ...] = ()
