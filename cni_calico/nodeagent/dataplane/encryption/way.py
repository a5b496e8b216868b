"""PURE: what the packet filter does for packets on their way through WireGuard's interfaces, as a script for nft.

Rule: the table is entirely ours and drops nothing.

    forward, output  -150   mss-*    segments of TCP no larger than what fits through
    postrouting       100   source   of this host, if it is none of the interface's: the interface's own

The second is for packets that a host sends with an address of its own: a peer that is upstream's takes none but the
interface's.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption

FAMILY, TABLE = "inet", "calico-wireguard"
_PROTOCOL = {4: "ip", 6: "ip6"}


def render_way(families: Sequence[DesiredEncryption]) -> str:
    """For the families that are enabled; without any the table goes."""
    lines = [f"add table {FAMILY} {TABLE}", f"delete table {FAMILY} {TABLE}"]
    if not families:
        return "\n".join(lines) + "\n"
    clamp = 'oifname "{}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu'
    lines.append(f"table {FAMILY} {TABLE} {{")
    for hook in ("forward", "output"):
        lines.append(f"  chain mss-{hook} {{ type filter hook {hook} priority -150;")
        lines += [f"    {clamp.format(one.name)}" for one in families]
        lines.append("  }")
    lines.append("  chain source { type nat hook postrouting priority 100;")
    for one in families:
        if one.address is not None:
            protocol = _PROTOCOL[one.family]
            own = f"fib saddr type local {protocol} saddr != {one.address}"
            lines.append(f'    oifname "{one.name}" meta nfproto ipv{one.family} {own} masquerade')
    return "\n".join([*lines, "  }", "}"]) + "\n"
