"""The translation of floating IPs, in a table of nftables for each family.

Rule: with none there is no table, and nothing is done. Connections that were translated for an address end when it no
longer leads where it led; what an earlier run's table said counts too. They are listed in a thread of their own,
because a host may have a million.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from ipaddress import ip_address
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, KernelError
from cni_calico.kernel.filter import nft
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.monitor import RULES
from cni_calico.kernel.netlink.conntrack import remove_translated
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import Log
from cni_calico.model.resources import Address
from cni_calico.netfilter.tables import TableId
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.floating import FAMILIES, TABLE, render_floating
from cni_calico.nodeagent.dataplane.passes import Pass

_LISTED_S = 60.0
_TRIES, _AGAIN_FIRST_S, _AGAIN_LAST_S = 5, 1.0, 30.0
Leads = dict[Address, Address]


class Floating:
    """``_leads``: by family, where each address leads by our table; a family that is not there is not known."""

    name = "floating IPs"

    def __init__(self, log: Log) -> None:
        self._log = log
        self._leads: dict[int, Leads] = {}
        self._seen: dict[int, Any] = {}
        self._ending = EndedTranslations(log)

    def wants(self, changed: Collection[str]) -> bool:
        return RULES in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        for family in FAMILIES:
            leads = {one.external: one.internal for one in desired.floating if one.external.version == family}
            try:
                self._keep(family, leads, render_floating(desired.floating, family), deadline, done, full)
            except KernelError as e:
                self._seen.pop(family, None)
                done.failed.append(f"cannot translate floating IPs of IPv{family}: {e}")

    def _keep(self, family: int, leads: Leads, script: str, deadline: Deadline, done: Pass, full: bool) -> None:
        if family not in self._leads:
            self._leads[family] = earlier_leads(family, deadline)
        before = self._leads[family]
        if not leads and not before:
            return
        same = leads == before and family in self._seen
        if same and (not full or nft.read_table(FAMILIES[family], TABLE, deadline) == self._seen[family]):
            return
        if leads and not nft.usable(deadline):
            raise KernelError("nftables is not installed, or this kernel has none of it; legacy iptables is not used")
        nft.apply_script(script, deadline)
        self._leads[family] = leads
        self._seen[family] = nft.read_table(FAMILIES[family], TABLE, deadline)
        self._ending.end({external for external, internal in before.items() if leads.get(external) != internal})
        shown = ", ".join(map(str, list(leads)[:10])) + (" ..." if len(leads) > 10 else "") if leads else "none"
        done.changed.append(f"{'repaired' if same else 'set'} floating IPs of IPv{family}: {shown}")


def earlier_leads(family: int, deadline: Deadline) -> Leads:
    """Where addresses lead by the table that is there. Raises KernelError."""
    try:
        with NfTables() as tables:
            if not tables.has_table(TableId(FAMILIES[family], TABLE), deadline):
                return {}
    except KernelError:
        return {}  # a kernel without nf_tables has no such table
    listed = nft.read_table(FAMILIES[family], TABLE, deadline)
    return dict(_elements(item.get("map", {}) for item in listed or ()))


def _elements(maps: Iterator[dict[str, Any]]) -> Iterator[tuple[Address, Address]]:
    for one in maps:
        for element in one.get("elem", ()) if one.get("name") == "workloads" else ():
            external, internal = element
            yield ip_address(external), ip_address(internal)


class EndedTranslations:
    """Ends connections to addresses that lead elsewhere now, in the network namespace of the thread that asks."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def end(self, addresses: Collection[Address]) -> None:
        if addresses:
            packed = {address.packed for address in addresses}
            threading.Thread(target=self._end, args=(packed,), name="floating-connections", daemon=True).start()

    def _end(self, addresses: set[bytes]) -> None:
        again = Backoff(_AGAIN_FIRST_S, _AGAIN_LAST_S)
        for left in reversed(range(_TRIES)):
            try:
                with Nfnetlink() as netlink:
                    remove_translated(netlink, addresses, Deadline.after(_LISTED_S))
                return
            except CalicoError as e:
                trying = "; trying again" if left else ""
                self._log.warning(f"connections to former floating IPs may go on{trying}: {e}")
            if left:
                threading.Event().wait(again.next())
