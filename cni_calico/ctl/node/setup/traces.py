"""What calico-node has made in this host's kernel: found, and taken away.

Rule: only what is recognised as ours: names, protocols and comments that calico-node gives. Absent is success.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import EEXIST

from cni_calico.ctl.node.setup.bird import select_routes
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import routing_rules
from cni_calico.kernel.filter import iptables
from cni_calico.kernel.filter.boot_table import apply_waiting
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.legacy.filter import LegacyFilter
from cni_calico.kernel.filter.legacy.matches import Marks
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.filter.port_table import apply_forwards
from cni_calico.kernel.host_routes import apply_host_routes, read_host_routes
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.links import delete_link
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.tunnels import remove_tunnel
from cni_calico.kernel.wireguard.device import read_device, remove_device
from cni_calico.model.host import PROTO_CALICO, HostRoute
from cni_calico.model.resources import Network
from cni_calico.model.wireguard import DEFAULT_NAMES
from cni_calico.netfilter.tables import DropTable, TableId
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN
from cni_calico.nodeagent.dataplane.encryption.desired import mark_of
from cni_calico.nodeagent.dataplane.encryption.families import GUARDS
from cni_calico.nodeagent.dataplane.floating import TABLE as FLOATING
from cni_calico.nodeagent.dataplane.forward_rules import plan_forward
from cni_calico.nodeagent.dataplane.masquerade_rules import TABLE as MASQUERADE
from cni_calico.nodeagent.dataplane.parts.masquerade import LegacyMasquerade
from cni_calico.nodeagent.policing.enforce.filters import marks_of
from cni_calico.nodeagent.policing.tables.touched import FILTER, TABLES

_MARKS = 0xFFFF0000
_ENCRYPTION = tuple(TableId("inet", name) for name in GUARDS)
_TRANSLATIONS = tuple(TableId(family, name) for name in (MASQUERADE, FLOATING) for family in ("ip", "ip6"))


def read_interface_names(prefixes: Sequence[str], deadline: Deadline) -> list[str]:
    """Of workloads. Raises KernelError."""
    return [one.name for one in read_interfaces(deadline) if one.name.startswith(tuple(prefixes))]


def remove_traces(prefixes: Sequence[str], pools: Sequence[Network], deadline: Deadline) -> list[HostRoute]:
    """``pools``: those to whose addresses our BIRD may have left routes. Returns BIRD's other ones, which stay. Raises
    KernelError.
    """
    _remove_interfaces(prefixes, deadline)
    _remove_encryption(deadline)
    for name in (IPIP, *VXLAN.values()):
        remove_tunnel(name, deadline)
    found = read_host_routes(deadline)
    of_bird, others = select_routes(found, pools)
    routes = [one for one in found if one.protocol == PROTO_CALICO] + of_bird
    for _, error in apply_host_routes((), routes, deadline):
        raise error
    _remove_tables(deadline)
    apply_waiting((), deadline)  # of Docker's driver
    apply_forwards((), deadline)
    _remove_legacy(deadline)
    return others


def _remove_interfaces(prefixes: Sequence[str], deadline: Deadline) -> None:
    there = [one for one in read_interfaces(deadline) if one.name.startswith(tuple(prefixes))]
    if not there:
        return
    with Rtnl() as rtnl:
        for outcome in rtnl.submit([delete_link(one.index, one.name) for one in there], deadline):
            if outcome.error is not None:
                raise outcome.error


def _remove_encryption(deadline: Deadline) -> None:
    """WireGuard's rules (known by their mark), the tables that they lead to, and interfaces of our names with a key."""
    mark = mark_of(_MARKS)
    for family, name in DEFAULT_NAMES.items():
        rules = routing_rules.read_rules(family, deadline)
        ours = [rule for rule in rules if rule.invert and rule.mark == rule.mask == mark]
        # what pods send to nodes is asked for just before, by their networks
        before = {rule.priority - 1 for rule in ours}
        ours += [rule for rule in rules if rule.source is not None and rule.priority in before]
        for rule in ours:
            routing_rules.remove_rule(rule, deadline)
        for table in {rule.table for rule in ours}:
            apply_host_routes((), read_host_routes(deadline, table=table, families=(family,)), deadline, table=table)
        try:
            device = read_device(name, deadline)
        except KernelError as e:
            if e.errno != EEXIST:
                raise
            continue  # somebody else's
        if device is not None and device.public_key:
            remove_device(name, deadline)


def _remove_tables(deadline: Deadline) -> None:
    try:
        with NfTables() as kernel:
            there = [table for table in (*_TRANSLATIONS, *_ENCRYPTION, *TABLES) if kernel.has_table(table, deadline)]
            if there:
                kernel.apply([DropTable(table) for table in there], deadline)
    except KernelError:
        if programs.is_in_use():
            return  # a kernel without nf_tables
        raise


def _remove_legacy(deadline: Deadline) -> None:
    """Accepted packets in iptables' both forms; policies and masquerading of the legacy one."""
    for family, variant in iptables.readable_variants():
        if script := plan_forward(iptables.read_rules(family, variant, deadline), ()):
            iptables.apply_rules(family, variant, script, deadline)
    for family in FILTER:
        LegacyMasquerade().remove(family, deadline)
    marks = marks_of(_MARKS)
    if marks and not programs.missing_programs() and programs.is_in_use():
        with LegacyFilter(Marks(*marks), iptables.LOCK_S) as filtering:
            filtering.remove(FILTER.values(), deadline)
