"""Guards the tunnels that are up before anything of the datastore has been read.

Rule: whom the kernel itself names as the other ends of our tunnels, in forwarding entries and routes, counts as a node,
and nobody else. Rules that an earlier run has left stay as they are. Parameters are those of the environment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_network

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.host_routes import read_host_routes
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.tunnels import read_vteps
from cni_calico.log import Log
from cni_calico.model.resources import Address
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.enforce.filters import NFTABLES, DataPlane, look, opened
from cni_calico.nodeagent.policing.enforce.guard import StandingGuard
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.status.policing import Standing

_READ_S, _AGAIN_S, _WAIT_S = 10.0, 2.0, 0.1


def read_used_tunnels(felix: FelixSettings, deadline: Deadline) -> Tunnels:
    """Our tunnels that are up in this namespace, and whom they lead to. Raises KernelError."""
    up = {interface.name for interface in read_interfaces(deadline) if interface.up}
    vxlan = {family: name for family, name in VXLAN.items() if name in up and (family == 4 or felix.ipv6_support)}
    ends: set[Address] = set()
    if vxlan:
        ends = {entry.remote for entry in read_vteps(vxlan.values(), deadline)[1]}
    if IPIP in up:
        ends |= {route.via for route in read_host_routes(deadline) if route.device == IPIP and route.via is not None}
    named = frozenset(ip_network(end) for end in ends if not (end.is_multicast or end.is_unspecified))
    return Tunnels(frozenset(vxlan), IPIP in up, named | frozenset(felix.external_nodes))


@dataclass(frozen=True, slots=True)
class FoundEarly:
    """``keeps``: whether an earlier run has left rules, which stay; None: unknown. ``plane``: nf_tables if that is what
    the parameters of the environment choose here.
    """

    keeps: bool | None = None
    plane: DataPlane | None = None


class EarlyGuard:
    """For the engine's thread. ``felix``: the parameters as far as the environment has them."""

    def __init__(
        self,
        felix: FelixSettings,
        log: Log,
        tell: Callable[[Standing], None],
        look: Callable[[FelixSettings], DataPlane] = look,
    ) -> None:
        """``look``: finds out what this kernel has."""
        self._felix = felix
        self._log = log
        self._tell, self._look_at_kernel = tell, look
        self._guard: StandingGuard | None = None
        self._goal: Goal | None = None
        self._plane: DataPlane | None = None
        self._standing: Standing | None = None

    @property
    def found(self) -> FoundEarly:
        plane = self._plane if self._plane is not None and self._plane.name == NFTABLES else None
        return FoundEarly(None if self._guard is None else self._guard.keeps, plane)

    def wait(self, known: threading.Event, stopping: threading.Event) -> None:
        """Guard until the parameters and tunnels are known, or ``stopping``."""
        next_look = 0.0
        with ExitStack() as stack:
            while not stopping.is_set() and not known.is_set():
                if self._felix.standing_rules == "Enabled" and time.monotonic() >= next_look:
                    self._look(stack)
                    next_look = time.monotonic() + _AGAIN_S
                known.wait(_WAIT_S)

    def _look(self, stack: ExitStack) -> None:
        problems: tuple[str, ...] = ()
        warnings: tuple[str, ...] = ()
        try:
            tunnels = read_used_tunnels(self._felix, Deadline.after(_READ_S))
            if self._guard is None or self._goal is None:
                plane = self._plane = self._look_at_kernel(self._felix)
                filtering = stack.enter_context(opened(plane, self._felix))
                self._goal = Goal(plane.settings(self._felix, ()))
                self._guard = StandingGuard(Enforcer(filtering.kernel, self._goal, self._log), self._goal)
            self._goal.use_tunnels(tunnels)
            self._guard.tunnels = tunnels
            if self._guard.stand_early(self._felix) and (tunnels.vxlan or tunnels.ipip):
                warnings = (_describe(tunnels),)
            problems = self._guard.problems()
        except CalicoError as e:
            problems = (f"nothing guards tunnels until the Nodes have been read: {e}",)
        said = Standing(problems=problems, warnings=warnings)
        if said != self._standing:
            self._standing = said
            for text in (*problems, *warnings):
                self._log.warning(text)
            self._tell(said)


def _describe(tunnels: Tunnels) -> str:
    return (
        f"the Nodes have not been read yet: {len(tunnels.nodes)} addresses that the tunnels' forwarding entries and "
        "routes name count as nodes until then, and VXLAN and IPIP from others are dropped"
    )
