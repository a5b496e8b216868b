"""The interfaces of this node that host endpoints depend on.

Rule: they are read only while this node has a host endpoint, and again only when the kernel reports a change of one
that is not a workload's. Until they have been read once, nothing may be put into force. While there is one, the
agent's own connections are probed every second: a server that speaks on a connection of which connection tracking knows
nothing (any more) looks like a stranger, and is not heard until this side speaks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.login import read_servers
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, KernelError
from cni_calico.kernel.interfaces import read_interfaces, read_source_address
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.kernel.own_connections import probe_when_idle
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import CLUSTER, ResourceKey
from cni_calico.model.resources import Address
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.dataplane.policy.tunnels import Tunnels
from cni_calico.policy.graph import Graph
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.lifelines import KUBELET_PORT, Lifeline, describe_cuts, parse_endpoints
from cni_calico.policy.wanted import SetChange, WantedChanges

_LOOPBACK = "lo"  # what a host sends to itself passes it, whichever interface has the address
_READ_S = 5.0
_IDLE_S, _SPEAK_S = 1, 5.0
_NODES = 20  # at most this many nodes are judged by whether they reach the kubelet
_KUBELET = "the kubelet (kubectl logs, exec)"


class HostSide:
    """For the engine's thread; it reads the interfaces of that thread's network namespace. ``watch`` is called to ask
    the kernel for notifications about addresses, ``speak`` in a thread of its own to send the datastore something.
    """

    def __init__(
        self, watch: Callable[[], None], lifelines: tuple[Lifeline, ...], log: Log, speak: Callable[[], object]
    ) -> None:
        self.cuts: tuple[str, ...] = ()  # which host endpoints cut which lifelines
        self._watch = watch
        self._lifelines = lifelines
        self._log = log
        self._owners: dict[Address, str] = {}  # the interfaces of this host's addresses
        self._nodes: tuple[Lifeline, ...] = ()
        self._judged: tuple[object, ...] = ()  # what the cuts were last judged by, besides policies and sets
        self._unsure = True
        self._has_read = False
        self._awake = False
        self._speak, self._to_say = speak, threading.Event()
        self._speaking: threading.Thread | None = None

    def notice(self, happened: Happened, prefixes: tuple[str, ...]) -> None:
        """Note what the kernel reported. ``prefixes``: with what the names of workloads' interfaces begin."""
        links = happened.links
        ours = links is None or any(not name.startswith(prefixes) for name in links)
        self._unsure = self._unsure or ours or happened.addresses

    def follow(self, goal: Goal) -> None:
        """Read the interfaces again if they may have changed. Raises KernelError if they could never be read."""
        if self._awake and not goal.hosts.all:
            self.keep_awake(goal)
        if not goal.hosts.all or not self._unsure:
            return
        self._watch()
        try:
            links = read_interfaces(Deadline.after(_READ_S))
        except KernelError:
            if not self._has_read:
                raise
            return  # the last known interfaces count; they are read again in the next round
        self._unsure, self._has_read = False, True
        self._owners = {one.ip: link.name for link in links for one in link.addresses}
        goal.follow_interfaces({link.name: frozenset(one.ip.packed for one in link.addresses) for link in links})

    def keep_awake(self, goal: Goal, *, lost: bool = False) -> None:
        """Call it when rules have changed. The next packet of each of the agent's own connections has to be this
        side's; ``lost``: entries of connection tracking have been removed, so that it has to be sent now.
        """
        if not goal.hosts.all and not self._awake:
            return
        probe_when_idle(_IDLE_S if goal.hosts.all else 0)
        lost, self._awake = lost or not self._awake, bool(goal.hosts.all)
        if self._awake and lost:
            self._to_say.set()
            if self._speaking is None or not self._speaking.is_alive():
                self._speaking = threading.Thread(target=self._speak_up, name="policy-speaks", daemon=True)
                self._speaking.start()

    def _speak_up(self) -> None:
        """Until nothing has been lost since the last time."""
        while self._to_say.is_set():
            self._to_say.clear()
            self._speak()

    def follow_tunnels(self, tunnels: Tunnels) -> None:
        """Note which nodes have to reach the kubelet here."""
        nodes = sorted((net for net in tunnels.nodes if net.prefixlen == net.max_prefixlen), key=str)[:_NODES]
        self._nodes = tuple(Lifeline(_KUBELET, "ingress", net.network_address, KUBELET_PORT) for net in nodes)

    def look_for_cuts(self, goal: Goal, graph: Graph, changes: WantedChanges, *, kubelet: bool) -> None:
        """Report which lifelines host endpoints cut, before they are put into force. The cost grows with all policies,
        so this is done only if something that it depends on has changed.
        """
        settings, interfaces = goal.settings, goal.hosts.interfaces
        lines = self._lifelines + (self._nodes if kubelet else ())
        judged = (interfaces, self._owners, lines, settings.failsafe_in, settings.failsafe_out)
        if judged == self._judged and not self._concerns(changes, goal, lines):
            return
        self._judged = judged
        ports = {"ingress": settings.failsafe_in, "egress": settings.failsafe_out}

        def find_host(other: Address) -> tuple[ResourceKey, Address] | None:
            own = read_source_address(str(other), other.version)
            if own is None:
                return None
            name = _LOOPBACK if own == other else self._owners.get(own, "")
            key = interfaces.by_name.get(name, interfaces.everywhere)
            return None if key is None else (key, own)

        before, self.cuts = self.cuts, ()
        if interfaces:
            self.cuts = tuple(describe_cuts(graph.wanted(), lines, ports.__getitem__, find_host, interfaces.everywhere))
        for text in self.cuts:
            if text not in before:
                self._log.error(text)

    def _concerns(self, changes: WantedChanges, goal: Goal, lines: tuple[Lifeline, ...]) -> bool:
        """Whether changes of policies or of sets may cut a lifeline, or mend one."""
        if not goal.hosts.all or changes.hosts or changes.host_classes:
            return bool(goal.hosts.all)
        touched = {policy for group in goal.hosts.classes.values() for policy in group.policy_ids()}
        if not touched.isdisjoint(changes.policies):
            return True
        ends = frozenset((*(line.other.packed for line in lines), *(own.packed for own in self._owners)))
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
    servers = read_servers(config.kubernetes)
    return (*parse_endpoints("the datastore", stores), *parse_endpoints("the API server", servers))


def speak_to(store: Datastore) -> None:
    """Send the datastore something, on the connection by which it reports changes if it has only one (etcd)."""
    with suppress(CalicoError):
        store.get(CLUSTER, Deadline.after(_SPEAK_S))


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
