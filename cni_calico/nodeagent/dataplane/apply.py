"""Desired state carried out: devices, neighbours, routes, settings, packet filter rules, the MTU file.

Rule: read, compare, change the difference; one part that fails is reported and does not keep the others from being
done. Nothing is remembered that the kernel could be asked for, but for rules: reading those costs processes, so they
are compared when they changed and at a full resync.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from errno import ENODEV

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, KernelError
from cni_calico.kernel import host_routes, sysctl, tunnels
from cni_calico.kernel.files import Files
from cni_calico.kernel.monitor import NEIGHBOURS, RULES, SETTINGS
from cni_calico.log import Log
from cni_calico.model.host import HostRoute
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.delta import Changes, Grace, plan_devices, plan_routes, plan_set
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN
from cni_calico.nodeagent.dataplane.endpoints import Setting, is_workload_interface
from cni_calico.nodeagent.dataplane.parts.masquerade import Rules
from cni_calico.nodeagent.dataplane.passes import Pass, described

GRACE_S = 10.0
DEVICES = (IPIP, *VXLAN.values())


class Applier:
    """Carries out desired states in the network namespace of the calling thread; one thread."""

    def __init__(self, log: Log, files: Files, mtu_file: str, now: Callable[[], float]) -> None:
        self._log = log
        self._files = files
        self._mtu_file = mtu_file
        self._now = now
        self._grace = Grace(GRACE_S, {})
        self._settled: frozenset[Setting] = frozenset()
        self._vteps: object = None  # what neighbours and forwarding entries were brought to
        self._rules = Rules(log)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, *, full: bool) -> Pass:
        """Everything once. ``full`` compares also what no notification tells about."""
        done = Pass()
        if full:
            self.forget({SETTINGS, NEIGHBOURS})
        parts: tuple[tuple[str, Callable[[], None]], ...] = (
            ("settings", lambda: self._apply_settings(desired, done)),
            ("tunnel devices", lambda: self._apply_devices(desired, deadline, done)),
            ("neighbours", lambda: self._apply_vteps(desired, deadline, done)),
            ("routes", lambda: self._apply_routes(desired, felix, deadline, done)),
            ("packet filter rules", lambda: self._rules.apply(desired, felix, deadline, done, full=full)),
            ("the MTU file", lambda: self._write_mtu(desired, done)),
        )
        for what, part in parts:
            try:
                part()
            except (CalicoError, OSError) as e:
                done.failed.append(f"{what}: {e}")
        return done

    def forget(self, changed: Collection[str]) -> None:
        """Read these again in the next pass: the kernel said that some changed."""
        if SETTINGS in changed:
            self._settled = frozenset()
        if NEIGHBOURS in changed:
            self._vteps = None
        if RULES in changed:
            self._rules.suspect = True

    # -- settings -----------------------------------------------------------------------------------------------------

    def _apply_settings(self, desired: Desired, done: Pass) -> None:
        wanted = frozenset(desired.settings)
        settled = set(self._settled & wanted)
        for setting in desired.settings:
            if setting in settled:
                continue
            name, value = setting
            try:
                found = sysctl.read(name)
                if found is not None and found != value:
                    sysctl.write(name, value, optional=True)
                    done.changed.append(f"net/{'/'.join(name)} = {value} (was {found})")
            except KernelError as e:
                done.failed.append(str(e))
                continue
            settled.add(setting)
        self._settled = frozenset(settled)

    # -- tunnels ------------------------------------------------------------------------------------------------------

    def _apply_devices(self, desired: Desired, deadline: Deadline, done: Pass) -> None:
        changes, removed = plan_devices(desired.devices, tunnels.read_tunnels(DEVICES, deadline))
        for change in changes:
            name = change.wanted.name
            try:
                if change.remake:
                    tunnels.remove_tunnel(name, deadline)
                if change.actual is None or change.remake:
                    tunnels.create_tunnel(change.wanted, deadline)
                    done.changed.append(f"made {name}")
                else:
                    tunnels.change_tunnel(change.wanted, deadline)
                    done.changed.append(f"changed {name}")
            except KernelError as e:
                done.failed.append(str(e))
        for name in () if desired.additive else removed:
            try:
                tunnels.remove_tunnel(name, deadline)
                done.changed.append(f"removed {name}")
            except KernelError as e:
                done.failed.append(str(e))

    def _apply_vteps(self, desired: Desired, deadline: Deadline, done: Pass) -> None:
        wanted = (desired.neighbours, desired.forwarding, desired.additive)
        if wanted == self._vteps:
            return
        devices = [name for name in desired.devices if name != IPIP]
        neighbours, entries = tunnels.read_vteps(devices, deadline)
        hops, vteps = plan_set(desired.neighbours, neighbours), plan_set(desired.forwarding, entries)
        if desired.additive:
            hops, vteps = Changes(hops.add), Changes(vteps.add)
        if hops or vteps:
            failures = tunnels.apply_vteps((hops.add, hops.remove), (vteps.add, vteps.remove), deadline)
            done.failed += map(str, failures)
            count = sum(map(len, (hops.add, hops.remove, vteps.add, vteps.remove)))
            done.changed.append(f"{count} neighbours and forwarding entries")
            if failures:
                return
        self._vteps = wanted

    # -- routes -------------------------------------------------------------------------------------------------------

    def _apply_routes(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass) -> None:
        if not desired.routes_enabled:
            return
        actual = host_routes.read_host_routes(deadline)
        planned = plan_routes(desired.routes, actual, felix)
        if desired.additive:
            gone = tuple(route for route in planned.remove if is_workload_interface(route.device, felix))
            planned = Changes(planned.add, gone)
        held = {(route.dst, route.metric): route.device for route in actual}
        removed = set(planned.remove)

        def delicate(route: HostRoute) -> bool:
            if not is_workload_interface(route.device, felix):
                return False
            if route in removed:
                return True
            holder = held.get((route.dst, route.metric), "")  # another workload's: one of the two is out of date
            return holder != route.device and is_workload_interface(holder, felix)

        ripe = self._grace.ripe(planned, delicate, self._now())
        done.pending = len(planned.add) + len(planned.remove) - len(ripe.add) - len(ripe.remove)
        if ripe:
            failures = host_routes.apply_host_routes(ripe.add, ripe.remove, deadline)
            # a pod's interface that went since we looked is no failure: the kernel's word of it brings the next pass
            vanished = {
                route for route, e in failures if e.errno == ENODEV and is_workload_interface(route.device, felix)
            }
            done.failed += [str(error) for route, error in failures if route not in vanished]
            failed = {route for route, _ in failures}
            done.changed += described("route", "added", [route for route in ripe.add if route not in failed])
            done.changed += described("route", "removed", [route for route in ripe.remove if route not in failed])

    # -- the MTU file -------------------------------------------------------------------------------------------------

    def _write_mtu(self, desired: Desired, done: Pass) -> None:
        """What the CNI plugin gives to pods; not more than before while a pool with a tunnel may be unknown."""
        try:
            found = self._files.read_bytes(self._mtu_file).strip()
        except OSError:
            found = b""
        grows = found.isdigit() and desired.mtu > int(found)
        if not desired.mtu or found == str(desired.mtu).encode() or (desired.additive and grows):
            return
        self._files.write_atomic(self._mtu_file, str(desired.mtu).encode(), 0o644)
        done.changed.append(f"MTU of workloads: {desired.mtu}")
