"""Carries out the desired state: an ordered list of parts.

Rule: a part that fails is reported and does not stop the others. What the parts know about the kernel is in parts/;
adding one means a file there and a line in ``data_plane``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.after_policies import AfterPolicies
from cni_calico.nodeagent.dataplane.parts.bandwidth import Bandwidth
from cni_calico.nodeagent.dataplane.parts.checksums import FILE as CHECKSUMS_OFF
from cni_calico.nodeagent.dataplane.parts.checksums import TunnelChecksums
from cni_calico.nodeagent.dataplane.parts.encryption import AfterRoutes, Encryption
from cni_calico.nodeagent.dataplane.parts.floating import Floating
from cni_calico.nodeagent.dataplane.parts.forwarding import Forwarding
from cni_calico.nodeagent.dataplane.parts.guard import EncryptionGuard, guard_in
from cni_calico.nodeagent.dataplane.parts.masquerade import Masquerade
from cni_calico.nodeagent.dataplane.parts.mtu_file import MtuFile
from cni_calico.nodeagent.dataplane.parts.routes import Routes
from cni_calico.nodeagent.dataplane.parts.settings import KernelSettings
from cni_calico.nodeagent.dataplane.parts.signatures import Signatures
from cni_calico.nodeagent.dataplane.parts.takeover import Takeover, has_upstream_table
from cni_calico.nodeagent.dataplane.parts.tunnels import TunnelDevices, TunnelNeighbours
from cni_calico.nodeagent.dataplane.passes import Part, Pass


def data_plane(
    log: Log,
    files: Files,
    state_dir: str,
    run_dir: str,
    now: Callable[[], float],
    upstream_goes: Callable[[], bool] = lambda: True,
    lost: Callable[[], Sequence[str]] = tuple,
    *,
    guard: EncryptionGuard | None = None,
) -> list[Part]:
    """The parts in the order in which they are applied: routes need devices, our own rules come after upstream's, and
    what is to be encrypted has its way before it has a plain one.

    ``upstream_goes``: whether what upstream's agent left may be removed now. Masquerading takes over a table of the
    name that upstream uses, so it waits too, but only while upstream's chains are in it. ``lost``: what upstream
    enforces and we would not; while there is any, both wait. ``guard``: of encryption, None for a new one.
    """
    takeover, encryption = Takeover(log, lost), Encryption(log, now)
    return [
        guard_in(files, state_dir, run_dir) if guard is None else guard,
        KernelSettings(),
        Signatures(),
        TunnelDevices(),
        TunnelChecksums(files, f"{run_dir}/{CHECKSUMS_OFF}"),
        TunnelNeighbours(),
        Floating(log),
        encryption,
        Routes(now),
        AfterRoutes(encryption),
        Bandwidth(),
        AfterPolicies(takeover, upstream_goes),
        AfterPolicies(Masquerade(log), lambda: takeover.done or not has_upstream_table()),
        Forwarding(),
        MtuFile(files, f"{state_dir}/mtu"),
    ]


class Applier:
    """Carries out desired states in the network namespace of the calling thread; for one thread."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._look = {part.name for part in parts}  # parts that must not trust what they read before

    def notice(self, changed: Collection[str]) -> None:
        """The monitor reported changes of these kinds."""
        self._look.update(part.name for part in self._parts if part.wants(changed))

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, *, full: bool, only: str = "") -> Pass:
        """Apply everything once, or what ``only`` this part maintains. ``full`` also compares what the monitor does not
        report.
        """
        done = Pass()
        for part in self._parts:
            if only not in ("", part.name):
                continue
            try:
                part.apply(desired, felix, deadline, done, full or part.name in self._look)
                self._look.discard(part.name)
            except (CalicoError, OSError) as e:
                done.failed.append(f"{part.name}: {e}")
                self._look.add(part.name)
        return done
