"""PURE: the standing rules: what guards tunnels, sources and the host's loopback addresses, with or without policies.

Rule: they are a part of the same tables as the policies (``select_standing``), so that a change between "only these"
and "policies, too" never touches them. What classes of endpoints do where there are policies (tunnels' packets from
workloads) stands in chains that exist only without.

    input        2     tunnels           VXLAN and IPIP from an address that is no node's (tunnels.py)
    prerouting  -300  spoofing          to 127.0.0.0/8, or a source that is not the workload's (stages.py)
                -300  loopback-in       127.0.0.0/8 from a workload, as source or destination; only where this kernel
                                        cannot check sources
    forward      5     service-loops     to a service's address that nobody translated (stages.py)
    postrouting -149  dscp              no guard: the DSCP of who asks for one (marking.py)

and only without policies:

    postrouting  150  loopback-out      127.0.0.0/8 as source, to a workload (with policies: stages.py)
    forward      2     from-encapsulated  VXLAN and IPIP from a workload
    input        1     to-host-encapsulated  the same, to the host itself

On the way in, 127.0.0.0/8 has to be dropped before connection tracking: a pod's answer to a connection to
127.0.0.1:hostPort has the host's address there, and gets 127.0.0.1 back only later. On the way out it is dropped after
source translation, which gives such a connection the host's address; legacy iptables cannot drop there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cni_calico.netfilter.tables import UNRECOGNISED_STANDING, BaseHook, NftChain, NftTable
from cni_calico.nodeagent.policing.tables.chains import drop_and_tell, encapsulated_from_workload
from cni_calico.nodeagent.policing.tables.endpoints import SPOOF_CHAINS
from cni_calico.nodeagent.policing.tables.marking import CHAIN as MARKING
from cni_calico.nodeagent.policing.tables.matches import in_network
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import (
    LOOPBACK,
    SERVICE_LOOPS,
    SPOOFING,
    TO_LOOPBACK,
    drop_loopback,
    from_workload,
    to_workload,
)
from cni_calico.nodeagent.policing.tables.tunnels import KNOWN_NODES

LOOPBACK_IN, LOOPBACK_OUT = "loopback-in", "loopback-out"
ENCAPSULATED = ("from-encapsulated", "to-host-encapsulated")
EARLY = (KNOWN_NODES, LOOPBACK_IN, LOOPBACK_OUT, *ENCAPSULATED)  # what needs no record of a workload or a service
STANDING = (*EARLY, SPOOFING, SERVICE_LOOPS, MARKING)
_FAMILIES = {"ip": 4, "ip6": 6}


def render_loopback(settings: FilterSettings) -> NftChain:
    """For IPv4 and a kernel that cannot check sources: where it can, that chain drops these packets, too. The kernel
    itself drops ::1 that comes from an interface.
    """
    rules = (*drop_loopback(settings, is_source=True), *drop_loopback(settings, is_source=False))
    return NftChain(LOOPBACK_IN, rules, BaseHook("prerouting", -300))


def select_standing(table: NftTable, settings: FilterSettings, names: Iterable[str] = STANDING) -> NftTable:
    """The part of a family's table that stands without policies, with the sets and chains that it looks up."""
    family = _FAMILIES.get(table.family, 0)
    found = NftTable(table.family, table.name)
    for chain in render_without_policies(family, settings) if family else ():
        found.chains[chain.name] = chain
    waiting = [table.chains[name] for name in names if name in table.chains]
    while waiting:
        chain = waiting.pop()
        found.chains[chain.name] = chain
        for name in _looked_up(chain):
            if name in table.sets and name not in found.sets:
                found.sets[name] = table.sets[name]
                if name in table.elements:
                    found.elements[name] = table.elements[name]
                else:
                    verdicts = table.verdicts.get(name, {})
                    found.verdicts[name] = verdicts
                    waiting += [table.chains[one.chain] for one in verdicts.values() if one.chain]
    return found


def select_early(table: NftTable, settings: FilterSettings) -> NftTable:
    """The part that stands before everything has been read."""
    found = select_standing(table, settings, (KNOWN_NODES,))
    if table.family == "ip":
        found.chains[LOOPBACK_IN] = render_loopback(settings)
    return found


def render_without_policies(family: int, settings: FilterSettings) -> Iterator[NftChain]:
    """What the stages and the chains of classes say where policies are enforced."""
    if family == 6 and not settings.ipv6:
        return
    if family == 4 and not settings.by_iptables:
        out = tuple(
            drop_and_tell(settings, (*in_network(LOOPBACK, True), to_workload(prefix)), TO_LOOPBACK)
            for prefix in settings.prefixes
        )
        yield NftChain(LOOPBACK_OUT, out, BaseHook("postrouting", 150))
    rules = tuple(
        drop_and_tell(settings, (*rule.tests, from_workload(prefix)), rule.comment)
        for prefix in settings.prefixes
        for rule in encapsulated_from_workload(settings)
    )
    if rules:
        yield NftChain(ENCAPSULATED[0], rules, BaseHook("forward", 2))
        yield NftChain(ENCAPSULATED[1], rules, BaseHook("input", 1))


def has_policies(chains: Iterable[str]) -> bool:
    """Whether chains with these names are more than standing rules."""
    return any(name not in (*STANDING, UNRECOGNISED_STANDING) and not name.startswith(SPOOF_CHAINS) for name in chains)


def _looked_up(chain: NftChain) -> Iterator[str]:
    for rule in chain.rules:
        yield from rule.lookups()
