"""Which connections that this node needs are cut by its host endpoints, and which host endpoints have no effect.

Rule: it is said before a host endpoint is put into force, and again only when something has changed that it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cni_calico.kernel.interfaces import read_source_address
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.lifelines import KUBELET_PORT, Lifeline, describe_cuts, parse_endpoints
from cni_calico.policy.wanted import SetChange, Wanted, WantedChanges

_LOOPBACK = "lo"  # what a host sends to itself passes it, whichever interface has the address
_NODES = 20  # at most this many nodes are judged by whether they reach the kubelet
_KUBELET = "the kubelet (kubectl logs, exec)"


class Lifelines:
    """``cuts``: which host endpoints cut which lifelines."""

    def __init__(self, lifelines: tuple[Lifeline, ...], log: Log) -> None:
        self.cuts: tuple[str, ...] = ()
        self._lifelines = lifelines
        self._log = log
        self._nodes: tuple[Lifeline, ...] = ()
        self.bgp: tuple[Lifeline, ...] = ()  # this node's sessions
        self._judged: tuple[object, ...] = ()  # what the cuts were last judged by, besides policies and sets

    def use_tunnels(self, tunnels: Tunnels) -> None:
        """Note which nodes have to reach the kubelet here."""
        nodes = sorted((net for net in tunnels.nodes if net.prefixlen == net.max_prefixlen), key=str)[:_NODES]
        self._nodes = tuple(Lifeline(_KUBELET, "ingress", net.network_address, KUBELET_PORT) for net in nodes)

    def look_for_cuts(
        self,
        goal: Goal,
        wanted: Callable[[], Wanted],
        changes: WantedChanges,
        owners: Mapping[Address, str],
        *,
        kubelet: bool,
    ) -> None:
        """Report which lifelines host endpoints cut, before they are put into force. The cost grows with all policies,
        so this is done, and ``wanted`` asked for, only if something that it depends on has changed. ``owners``: the
        interfaces of this host's addresses.
        """
        settings, interfaces = goal.settings, goal.hosts.interfaces
        lines = self._lifelines + self.bgp + (self._nodes if kubelet else ())
        judged = (interfaces, owners, lines, settings.failsafe_in, settings.failsafe_out)
        if judged == self._judged and not _concerns(changes, goal, lines, owners):
            return
        self._judged = judged
        ports = {"ingress": settings.failsafe_in, "egress": settings.failsafe_out}

        def find_host(other: Address) -> tuple[ResourceKey, Address] | None:
            own = read_source_address(str(other), other.version)
            if own is None:
                return None
            name = _LOOPBACK if own == other else owners.get(own, "")
            key = interfaces.by_name.get(name, interfaces.everywhere)
            return None if key is None else (key, own)

        before, self.cuts = self.cuts, ()
        if interfaces:
            self.cuts = tuple(describe_cuts(wanted(), lines, ports.__getitem__, find_host, interfaces.everywhere))
        for text in self.cuts:
            if text not in before:
                self._log.error(text)


def _concerns(changes: WantedChanges, goal: Goal, lines: tuple[Lifeline, ...], owners: Mapping[Address, str]) -> bool:
    """Whether changes of policies or of sets may cut a lifeline, or mend one."""
    if not goal.hosts.all or changes.hosts or changes.host_classes:
        return bool(goal.hosts.all)
    touched = {policy for group in goal.hosts.classes.values() for policy in group.policy_ids()}
    if not touched.isdisjoint(changes.policies):
        return True
    ends = frozenset((*(line.other.packed for line in lines), *(own.packed for own in owners)))
    return any(_is_about(change, ends) for change in changes.sets_changed.values())


def _is_about(change: SetChange, ends: frozenset[bytes]) -> bool:
    """Whether a set's change may concern one of these addresses."""
    for members in (change.added, change.removed):
        if members.nets or not ends.isdisjoint(members.addresses):
            return True
        if any(address in ends for address, _, _ in members.ports):
            return True
    return False


def read_lifelines(config: DatastoreConfig | None) -> tuple[Lifeline, ...]:
    """What this node has to connect to; a kubeconfig is read for it."""
    if config is None:
        return ()
    stores = config.etcd_endpoints if config.type == "etcdv3" else ()
    servers: tuple[str, ...] = ()
    if config.kubernetes.api_root or config.kubernetes.kubeconfig:
        from cni_calico.datastore.kubernetes.login import read_servers

        servers = read_servers(config.kubernetes)
    return (*parse_endpoints("the datastore", stores), *parse_endpoints("the API server", servers))


def describe_idle(goal: Goal, missing_profiles: tuple[str, ...]) -> Iterator[str]:
    """What differs, for this node's host endpoints, from what their records suggest."""
    hosts = goal.hosts
    for key, why in hosts.interfaces.idle.items():
        yield f"HostEndpoint {key.name} is not in force: {why}"
    for name in missing_profiles:
        yield f"profile {name} of this node's host endpoints does not exist: what no policy decides there is denied"
    for key, host in hosts.all.items():
        group = hosts.classes.get(host.class_id)
        if host.interface != ALL_INTERFACES or group is None:
            continue
        for policy in sorted(
            {policy for tier in group.raw_ingress + group.raw_egress for policy in tier.policies}, key=str
        ):
            yield (
                f"{policy} does not apply to HostEndpoint {key.name}: doNotTrack needs the name of an interface, or "
                "expectedIPs, instead of interfaceName '*'"
            )
