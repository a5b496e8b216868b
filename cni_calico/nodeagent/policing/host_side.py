"""The interfaces of this node that host endpoints depend on.

Rule: they are read only while this node has a host endpoint, and again only when the kernel mentions one that is not a
workload's. Until they have been read once, nothing may be put into force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.policy.hosts import ALL_INTERFACES

_READ_S = 5.0


class HostSide:
    """For the engine's thread, in whose network namespace it looks. ``watch``: have changes of addresses reported."""

    def __init__(self, watch: Callable[[], None]) -> None:
        self._watch = watch
        self._unsure = True
        self._has_read = False

    def notice(self, happened: Happened, prefixes: tuple[str, ...]) -> None:
        """``prefixes``: of the names of workloads' interfaces."""
        links = happened.links
        ours = links is None or any(not name.startswith(prefixes) for name in links)
        self._unsure = self._unsure or ours or happened.addresses

    def follow(self, goal: Goal) -> None:
        """Raises KernelError if the interfaces could never be read."""
        if not goal.hosts.all or not self._unsure:
            return
        self._watch()
        try:
            links = read_interfaces(Deadline.after(_READ_S))
        except KernelError:
            if not self._has_read:
                raise
            return  # as far as is known; read again in the next round
        self._unsure, self._has_read = False, True
        goal.follow_interfaces({link.name: frozenset(one.ip.packed for one in link.addresses) for link in links})


def describe_idle(goal: Goal, missing_profiles: tuple[str, ...]) -> Iterator[str]:
    """What about this node's host endpoints is not as one would expect from their records."""
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
