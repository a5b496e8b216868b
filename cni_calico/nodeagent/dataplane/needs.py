"""PURE: what the data plane lacks although pods need it now, which keeps the node from being ready.

Rule: a tunnel device is needed while some node's addresses in a pool are reached through it; masquerading while this
node has a block in a pool with natOutgoing. What nothing needs yet is only reported as failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN, encapsulation_of, endpoint_of
from cni_calico.nodeagent.view.snapshot import Snapshot, has_block, may_use

MASQUERADE = {4: "masquerading for IPv4", 6: "masquerading for IPv6"}
_SHOWN = 3


def select_unmet(snapshot: Snapshot, lacking: Mapping[str, str]) -> tuple[str, ...]:
    """One sentence for each pool and each thing it lacks. ``lacking`` says, by name, why a device or MASQUERADE is
    missing.
    """
    unmet = []
    for pool in snapshot.pools if lacking else ():
        family = pool.cidr.version
        kind, mode = encapsulation_of(pool)
        device = {"ipip": IPIP, "vxlan": VXLAN[family]}.get(kind, "")
        if device in lacking:
            nodes = sorted(select_peers(snapshot, pool, mode))
            if nodes:
                unmet.append(f"IPPool {pool.metadata.name} needs {device} to reach {_listed(nodes)}: {lacking[device]}")
        if pool.nat_outgoing and MASQUERADE[family] in lacking and has_block(snapshot, pool, snapshot.node):
            why = lacking[MASQUERADE[family]]
            unmet.append(
                f"IPPool {pool.metadata.name} has natOutgoing and there is no {MASQUERADE[family]}: {why}; install "
                "nftables or iptables and load the kernel module (modprobe nf_nat), or set the pool's natOutgoing to "
                "false"
            )
    return tuple(unmet)


def select_peers(snapshot: Snapshot, pool: IPPool, mode: str) -> Iterator[str]:
    """The other nodes that have, or may get, addresses of the pool that are reached through its tunnel."""
    own = None if snapshot.own is None else endpoint_of(snapshot.own, pool.cidr.version)
    if own is None:
        return
    for name, node in snapshot.nodes.items():
        end = endpoint_of(node, pool.cidr.version)
        if name == snapshot.node or end is None or (mode == "CrossSubnet" and end.address in own.network):
            continue
        if may_use(snapshot, pool, name):
            yield name


def _listed(nodes: list[str]) -> str:
    more = f" and {len(nodes) - _SHOWN} more" if len(nodes) > _SHOWN else ""
    return ("node " if len(nodes) == 1 else "nodes ") + ", ".join(nodes[:_SHOWN]) + more
