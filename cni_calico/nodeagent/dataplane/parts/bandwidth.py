"""Limits of the bandwidth of workloads, in the kernel.

Rule: an interface with a limit gets ours, whoever else shaped it; one without is left to others, except for what this
agent set itself, and devices with our names, of which none stays that no limit wants. A change is looked at by itself:
each question to the kernel waits for whoever holds its lock of links, filters are asked for interface by interface, and
lists of all interfaces of a full node take ten times as long as what is asked about FEW.
No more than PIECE limits are set at once, those that were others before first: a changed one waits for no 250 new ones.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.shaping import Shaper
from cni_calico.model.host import LinkShaping, TokenBucket
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.bandwidth import (
    DEVICE_PREFIX,
    NO_LIMITS,
    DesiredBandwidth,
    Shaping,
    device_name,
)
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Pass

_OTHERS_DEVICES = (DEVICE_PREFIX, "bwp")  # the bandwidth plugin's
_UNSHAPED = LinkShaping()
PIECE = 24  # interfaces; some 20 ms of a processor, so that a pass with a piece stays below 0.1 s beside 250 workloads
FEW = 16  # interfaces, with the devices for what workloads send


class Bandwidth:
    name = "bandwidth"

    def __init__(self) -> None:
        self._settled: DesiredBandwidth | None = NO_LIMITS  # None: not known
        self._brought: dict[str, Shaping] = {}  # of the interfaces that are known to have it
        self._limited: dict[str, TokenBucket] = {}  # what this agent has limited interfaces to

    def wants(self, changed: Collection[str]) -> bool:
        return False  # who shapes a workload's interface by hand is corrected by the next full pass

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        asked = desired.bandwidth
        if asked == self._settled and (not full or asked == NO_LIMITS):
            return
        before, self._settled, self._brought = self._brought, None, {}
        known = {} if full else {name: shaping for name, shaping in before.items() if asked.wanted.get(name) == shaping}
        # the others in the order of their indexes: who has been there for longer comes before new ones
        changed = sorted(asked.wanted.keys() - known.keys(), key=lambda n: (n not in before, asked.wanted[n].index))
        failures = len(done.failed)
        touched = None if full else self._touched(changed, asked)
        with Shaper(deadline, touched if touched is not None and len(touched) <= FEW else None) as shaper:
            held = shaper.read([name for name in changed if asked.wanted[name].egress])
            left = PIECE
            for at, name in enumerate(changed):
                if not left:
                    done.limits_left = len(changed) - at
                    break
                said = len(done.changed)
                try:
                    self._bring(shaper, name, asked.wanted[name], held, done)
                    known[name] = asked.wanted[name]
                except KernelError as e:
                    done.failed.append(str(e))
                left -= len(done.changed) > said
            if not desired.additive:
                self._remove(shaper, asked, held, done)
        self._brought = known
        if len(done.failed) == failures and not done.limits_left:
            self._settled = asked

    def _touched(self, changed: Collection[str], asked: DesiredBandwidth) -> set[str]:
        """All interfaces that have to do with these, and with limits that nobody wants any more."""
        devices = {device_name(name) for name in changed if asked.wanted[name].egress is not None}
        unlimited = {name for name in self._limited if name not in asked.wanted or asked.wanted[name].ingress is None}
        return {*changed, *devices, *unlimited, *asked.strays, *_owners(asked).values()}

    def _bring(self, shaper: Shaper, name: str, shaping: Shaping, held: dict[str, LinkShaping], done: Pass) -> None:
        there = held.get(name, _UNSHAPED)
        if shaping.ingress is not None:
            if there.root != shaping.ingress:
                shaper.limit(name, shaping.ingress, there.root)
                done.changed.append(f"limited what {name} receives to {8 * shaping.ingress.rate} bit/s")
            self._limited[name] = shaping.ingress
        if shaping.egress is None:
            return
        device = device_name(name)
        if there.ingress == "clsact":
            raise KernelError(f"cannot limit what {name} sends: it has a clsact qdisc; remove it (tc qdisc del)")
        if not shaper.is_ready(device, shaping.mtu):
            shaper.make_device(device, shaping.mtu)
        root = held.get(device, _UNSHAPED).root
        if root != shaping.egress:
            shaper.limit(device, shaping.egress, root)
            done.changed.append(f"limited what {name} sends to {8 * shaping.egress.rate} bit/s")
        if there.redirects != (device,):
            for other in shaper.redirect(name, device):
                if other.startswith(_OTHERS_DEVICES):
                    shaper.remove_device(other)

    def _remove(self, shaper: Shaper, asked: DesiredBandwidth, held: dict[str, LinkShaping], done: Pass) -> None:
        for name, limit in sorted(self._limited.items()):
            shaping = asked.wanted.get(name)
            if shaping is not None and shaping.ingress is not None:
                continue
            try:
                if held.get(name, _UNSHAPED).root == limit:  # otherwise it is somebody else's, or of another pod
                    shaper.unlimit(name)
                    done.changed.append(f"no longer limit what {name} receives")
                del self._limited[name]
            except KernelError as e:
                done.failed.append(str(e))
        owners = _owners(asked)
        for device in filter(shaper.has, sorted(asked.strays)):
            name = owners.get(device, "")
            try:
                if shaper.has(name):  # first: what is redirected to a device that is gone is dropped
                    shaper.stop_redirecting(name)
                shaper.remove_device(device)
                done.changed.append(f"no longer limit what {name} sends" if name else f"removed {device}")
            except KernelError as e:
                done.failed.append(str(e))


def _owners(asked: DesiredBandwidth) -> dict[str, str]:
    """By device that no limit wants, the workload's interface that it was for."""
    named = ((device_name(name), name) for name in asked.workloads) if asked.strays else ()
    return {device: name for device, name in named if device in asked.strays}
