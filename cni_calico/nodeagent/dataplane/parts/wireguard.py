"""WireGuard's devices with their keys and peers, their routes and rules; what encryption/steps.py says, in its order.

Rule: a family that fails is reported and does not stop the other. A device is read before it is changed, and nothing is
written when nothing has changed. ``begin`` comes before the plain routes are changed and ``finish`` after them, by
encryption/order.py: what leads to WireGuard first, what does not any more last. A device that is disabled stays,
without routes, until nobody sends to it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from errno import EADDRINUSE, EEXIST, EPERM
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import host_routes, routing_rules, sysctl
from cni_calico.kernel.filter import nft
from cni_calico.kernel.monitor import RULES
from cni_calico.kernel.port_holders import udp_holder
from cni_calico.kernel.wireguard import device as door
from cni_calico.log import Log
from cni_calico.model.host import RoutingRule
from cni_calico.model.wireguard import WireguardChange, WireguardDevice, render_public_key
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, described_key, render_plain
from cni_calico.nodeagent.dataplane.encryption.following import Following, begin_following
from cni_calico.nodeagent.dataplane.encryption.order import OrderedRoutes, order_routes
from cni_calico.nodeagent.dataplane.encryption.steps import Leaving, Stepping, shared_with
from cni_calico.nodeagent.dataplane.encryption.told import tell_encryption
from cni_calico.nodeagent.dataplane.encryption.way import FAMILY, TABLE, render_way
from cni_calico.nodeagent.dataplane.parts import wireguard_tables as tables
from cni_calico.nodeagent.dataplane.passes import Pass

LOOSE = "2"  # rp_filter: what comes out of the tunnel may have a source that is reached elsewhere


@dataclass(slots=True)
class _Rest:
    """What a pass has begun and not finished: removals, and what the main table has to have first."""

    desired: DesiredEncryption
    routes: OrderedRoutes
    host_routes: OrderedRoutes
    host_rules: frozenset[RoutingRule]
    removals: WireguardChange | None
    failed: bool  # something before
    awaits: bool  # a handshake


@dataclass(slots=True)
class _Family:
    """``settled``: what the kernel was brought to; ``leaving``: since when it is disabled; ``told``: in the log."""

    stepping: Stepping = field(default_factory=Stepping)
    settled: DesiredEncryption | None = None
    leaving: Leaving | None = None
    key: bytes = b""
    names: set[str] = field(default_factory=set)  # of devices that were made, or are
    rules: set[RoutingRule] = field(default_factory=set)
    waiting: tuple[str, ...] = ()
    renewed: dict[str, int] = field(default_factory=dict)  # by node, how often it has had another key
    following: Following | None = None  # a new key of this node's
    rest: _Rest | None = None
    said: tuple[str, ...] = ()
    looked: bool = False  # for a device that an earlier run had under another name


class Wireguard:
    name = "encryption"

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self._log, self._now = log, now
        self._families: dict[int, _Family] = {}
        self._way: str | None = None  # the script that was applied last, "": the table is not there; None: not known
        self._way_read: Any = None

    def wants(self, changed: Collection[str]) -> bool:
        return RULES in changed

    def begin(self, desired: Desired, deadline: Deadline, done: Pass, full: bool) -> None:
        for family in self._families.values():
            family.rest = None
        for one in desired.encryption:
            family = self._families.setdefault(one.family, _Family())
            if not one.enabled:
                continue
            try:
                self._keep(one, family, deadline, done, full)
                done.awaits[one.family] = () if family.following is None else family.following.told
                done.encryption[one.family] = tell_encryption(
                    one, family.key, family.waiting, renewed=sum(family.renewed.values())
                )
            except KernelError as e:
                self._fail(one, family, e, done)

    def finish(self, desired: Desired, deadline: Deadline, done: Pass, full: bool) -> None:
        for one in desired.encryption:
            family = self._families.setdefault(one.family, _Family())
            try:
                if not one.enabled:
                    self._leave(one, family, deadline, done)
                elif family.rest is not None:
                    rest, family.rest = family.rest, None
                    self._end(rest, family, deadline, done)
            except KernelError as e:
                self._fail(one, family, e, done)
        if desired.encryption or self._way:
            ways = [one for one in desired.encryption if one.enabled and not one.impossible]
            self._keep_way(ways, deadline, done, full)

    def _fail(self, desired: DesiredEncryption, family: _Family, error: KernelError, done: Pass) -> None:
        family.settled = family.rest = None
        if desired.enabled:
            renewed = sum(family.renewed.values())
            done.encryption[desired.family] = tell_encryption(desired, b"", (), _explained(error), renewed)
        done.failed.append(f"IPv{desired.family}: {error}")
        done.refused.append(f"IPv{desired.family} encryption is not in force: {_explained(error)}")
        if door.is_unsupported(error) or error.errno in (EADDRINUSE, EEXIST, EPERM):
            done.public_keys[desired.family] = b""  # others would send what nobody here can read

    # -- a family that is enabled -------------------------------------------------------------------------------------

    def _keep(self, desired: DesiredEncryption, family: _Family, deadline: Deadline, done: Pass, full: bool) -> None:
        family.leaving = None
        self._say(family, (*desired.problems, *render_plain(desired)))
        if desired.impossible:
            done.refused.append(f"IPv{desired.family} encryption is not in force: {desired.impossible}")
            done.public_keys[desired.family] = b""
            return
        if desired.address is None:
            done.refused.append(f"IPv{desired.family} encryption is not in force: this node has no address for it yet")
        self._find_former(desired, family, deadline)
        self._drop_former(desired, family, deadline, done)
        if family.settled == desired and not full:
            done.public_keys[desired.family] = family.key
            family.settled = desired  # equal, and the loop has this one; with a thousand peers it is a megabyte
            return
        family.settled = None
        self._require_ours(desired, family, deadline)
        # what it has is better than none, with which nothing would arrive
        addresses = None if desired.address is None else (desired.address,)
        done.changed += door.ensure_link(desired.name, desired.mtu, addresses, deadline)
        family.names.add(desired.name)
        if desired.family == 4:
            sysctl.ensure(("ipv4", "conf", desired.name, "rp_filter"), LOOSE)
        device = self._settings_with_port(desired, family, deadline, done)
        family.key = done.public_keys[desired.family] = device.public_key
        present = host_routes.read_host_routes(deadline, table=desired.table, families=(desired.family,))
        steps = family.stepping.plan(desired, device, present, self._now())
        if steps.change is not None:
            door.change_device(desired.name, steps.change, deadline)
            done.changed.append(f"changed {len(steps.change.peers)} peers of {desired.name}")
        for node in steps.renewed:
            family.renewed[node] = count = family.renewed.get(node, 0) + 1
            self._log.info(f"node {node} has another key for IPv{desired.family} (change {count} since this start)")
        routes = order_routes(steps.routes, present, partial=desired.partial)
        del present  # the other table may have as many
        failed = tables.change_routes(routes.before, desired.table, deadline, done)
        of_hosts, rules, host_failed = tables.begin_hosts(desired, steps.host_routes, deadline, done)
        if desired.threading and device.peers:
            door.set_threaded(desired.name)
        for node in steps.overdue:
            self._log.warning(
                f"node {node} has not answered WireGuard for 10 s: its packets are sent encrypted all the same; is UDP "
                f"port {desired.port} open between the nodes?"
            )
        if desired.address is not None or desired.mandatory:
            self._ensure_rule(desired, family, deadline, done)
        family.waiting = steps.waiting
        follows = family.following is not None and family.following.look(desired, device, self._now())
        awaits = bool(steps.waiting) or follows
        done.pending += len(steps.waiting) + follows
        family.rest = _Rest(desired, routes, of_hosts, rules, steps.removals, failed or host_failed, awaits)

    def _end(self, rest: _Rest, family: _Family, deadline: Deadline, done: Pass) -> None:
        desired, unrouted = rest.desired, done.unrouted
        if unrouted is None:
            return  # as little is known of the main table as before
        routes = rest.routes.without(unrouted)
        failed = (
            tables.change_routes(routes.after, desired.table, deadline, done) or rest.failed or routes != rest.routes
        )
        failed = tables.end_hosts(desired, rest.host_routes, rest.host_rules, deadline, done) or failed
        if rest.removals is not None and not failed:
            door.change_device(desired.name, rest.removals, deadline)
            done.changed.append(f"removed {len(rest.removals.peers)} peers of {desired.name}, or networks of theirs")
        if not rest.awaits and not failed:
            family.settled = desired

    def _require_ours(self, desired: DesiredEncryption, family: _Family, deadline: Deadline) -> None:
        device = None if desired.name in family.names else door.read_device(desired.name, deadline)
        if device is not None and device.public_key and not is_ours(device, desired):
            raise KernelError(
                f"cannot use {desired.name}: it has the key {described_key(device.public_key)}, which nobody here gave "
                "it; it is left as it is",
                errno=EEXIST,
            )

    def _settings_with_port(
        self, desired: DesiredEncryption, family: _Family, deadline: Deadline, done: Pass
    ) -> WireguardDevice:
        """Without its port there is no device: what it sends would be answered elsewhere."""
        try:
            return self._settings(desired, family, deadline, done)
        except KernelError as e:
            if e.errno != EADDRINUSE:
                raise
            door.remove_device(desired.name, deadline)
            family.names.discard(desired.name)
            family.stepping = Stepping()
            holder = udp_holder(desired.port)
            by = f" by {holder}" if holder else ""
            raise KernelError(f"cannot set {desired.name}: UDP port {desired.port} is in use{by}", errno=e.errno) from e

    def _settings(self, desired: DesiredEncryption, family: _Family, deadline: Deadline, done: Pass) -> WireguardDevice:
        """The device with a key, its port and its mark."""
        share = shared_with(desired)
        device = door.read_device(desired.name, deadline, share)
        if device is None:
            raise KernelError(f"cannot set {desired.name}: it is gone")
        # only a key that all have been told is replaced, so that one request does it once
        renews = bool(desired.renew) and desired.renew == render_public_key(device.public_key)
        change = WireguardChange(
            private_key=None if device.public_key and not renews else door.make_private_key(),
            port=None if device.port == desired.port else desired.port,
            mark=None if device.mark == desired.mark else desired.mark,
        )
        if change == WireguardChange():
            return device
        door.change_device(desired.name, change, deadline)
        read = door.read_device(desired.name, deadline, share)
        if read is None:
            raise KernelError(f"cannot set {desired.name}: it is gone")
        if change.private_key is not None:
            family.following = begin_following(device, self._now())
            done.changed.append(f"made a key for {desired.name}: {described_key(read.public_key)}")
        return read

    def _ensure_rule(self, desired: DesiredEncryption, family: _Family, deadline: Deadline, done: Pass) -> None:
        wanted = rule_of(desired)
        there = routing_rules.read_rules(desired.family, deadline)
        if wanted not in there:
            routing_rules.ensure_rule(wanted, deadline)
            done.changed.append(f"added routing rule {wanted}")
        for rule in there:
            if rule != wanted and (rule in family.rules or is_similar(rule, wanted)):
                routing_rules.remove_rule(rule, deadline)
                done.changed.append(f"removed routing rule {rule}")
        family.rules = {wanted}

    def _find_former(self, desired: DesiredEncryption, family: _Family, deadline: Deadline) -> None:
        """A device of an earlier run's under another name has the key that the Node tells, and its port."""
        if family.looked or not desired.told:
            return
        found = {name: device for name in desired.others if (device := _read_keyed(name, deadline)) is not None}
        family.names |= {name for name, one in found.items() if desired.told == render_public_key(one.public_key)}
        family.looked = True

    def _drop_former(self, desired: DesiredEncryption, family: _Family, deadline: Deadline, done: Pass) -> None:
        """Devices of this agent's under other names."""
        for name in family.names - {desired.name}:
            if door.remove_device(name, deadline):
                done.changed.append(f"removed {name}")
            family.names.discard(name)

    # -- one that is not ----------------------------------------------------------------------------------------------

    def _leave(self, desired: DesiredEncryption, family: _Family, deadline: Deadline, done: Pass) -> None:
        done.public_keys[desired.family] = b""
        self._say(family, ())
        family.settled, family.stepping, family.following = None, Stepping(), None
        self._find_former(desired, family, deadline)
        names = family.names | {desired.name}
        found = {name: device for name in names if (device := _read_keyed(name, deadline)) is not None}
        devices = {name: one for name, one in found.items() if name in family.names or is_ours(one, desired)}
        if not devices:
            family.names.clear()
            return
        now = self._now()
        if family.leaving is None:
            family.leaving = Leaving(now, now)
        present = host_routes.read_host_routes(deadline, table=desired.table, families=(desired.family,))
        routes = frozenset(route for route in present if route.device not in devices)
        whole = replace(desired, partial=False)
        if any(route.device in devices for route in present):
            tables.remove_hosts(whole, deadline, done)
            tables.keep_only(routes, present, desired.table, deadline, done)
        if not all(family.leaving.is_over(device, now) for device in devices.values()):
            done.pending += 1
            return
        for rule in routing_rules.read_rules(desired.family, deadline):
            if rule in family.rules or is_similar(rule, rule_of(desired)):
                routing_rules.remove_rule(rule, deadline)
        tables.remove_hosts(whole, deadline, done)
        tables.keep_only(frozenset(), present, desired.table, deadline, done)
        for name in devices:  # the last: as long as it is there, an agent that starts finishes this
            door.remove_device(name, deadline)
            done.changed.append(f"removed {name}")
        family.leaving = None
        family.names.clear()
        family.rules.clear()

    # -- both ---------------------------------------------------------------------------------------------------------

    def _keep_way(self, families: list[DesiredEncryption], deadline: Deadline, done: Pass, full: bool) -> None:
        if self._way is None and not families and not nft.has_table(FAMILY, TABLE, deadline):
            self._way = ""  # nor did an earlier run leave one
        script = render_way(families)
        same = script == self._way
        if (same and not full) or (not families and self._way == ""):
            return
        if not nft.usable(deadline):
            done.failed.append("cannot clamp TCP's segments: nftables is not installed, or the kernel has none")
            return
        if same and nft.read_table(FAMILY, TABLE, deadline) == self._way_read:
            return
        nft.apply_script(script, deadline)
        self._way_read = nft.read_table(FAMILY, TABLE, deadline)
        self._way = script if families else ""
        done.changed.append("set the packet filter's rules for encrypted packets")

    def _say(self, family: _Family, texts: tuple[str, ...]) -> None:
        for text in texts:
            if text not in family.said:
                self._log.warning(text)
        family.said = texts


def rule_of(desired: DesiredEncryption) -> RoutingRule:
    return RoutingRule(desired.family, desired.priority, desired.table, desired.mark, desired.mark, invert=True)


def is_similar(rule: RoutingRule, wanted: RoutingRule) -> bool:
    """Whether it was made for encryption, with other parameters: nobody else has one that asks for no mark and the same
    table.
    """
    return rule.invert and bool(rule.mask) and rule.mark == rule.mask and rule.table == wanted.table


def is_ours(device: WireguardDevice, desired: DesiredEncryption) -> bool:
    """Whether the Node has its key, or it has our mark, which comes with a key; else it may be the host's own."""
    told = bool(desired.told) and desired.told == render_public_key(device.public_key)
    return told or (desired.mark != 0 and device.mark == desired.mark)


def _read_keyed(name: str, deadline: Deadline) -> WireguardDevice | None:
    """None also for an interface that is not WireGuard's, or has no key yet."""
    try:
        device = door.read_device(name, deadline)
        return device if device is not None and device.public_key else None
    except KernelError as e:
        if e.errno != EEXIST:
            raise
        return None


def _explained(error: KernelError) -> str:
    if door.is_unsupported(error):
        return f"{error}; load the kernel module (modprobe wireguard), or install a kernel that has it"
    return str(error)
