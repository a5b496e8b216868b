"""Checksums of tunnels in software, where the kernel, or FeatureDetectOverride, says that devices get them wrong.

Rule: only our tunnels are touched, never the node's own interfaces. What this agent switched off it switches on again
when nothing asks for it any more, also after a restart, so that is written down first; what somebody else switched off
stays off.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.offload import is_this_checksum_broken, read_tx_checksum, set_tx_checksum
from cni_calico.nodeagent.context.features import CHECKSUM_BROKEN
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Pass

FILE = "checksums-off"  # the devices that this agent changed, by name: their indexes


class TunnelChecksums:
    name = "checksums of tunnels"

    def __init__(self, files: Files, path: str) -> None:
        """``path``: a file that a reboot removes, as it does the devices."""
        self._files, self._path = files, path
        self.changed: dict[str, int] | None = None  # None: not read yet
        self._written: dict[str, int] = {}
        self._is_kernel_broken = is_this_checksum_broken()

    def wants(self, changed: Collection[str]) -> bool:
        return False  # every pass looks

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if self.changed is None:
            self.changed = self._written = self._read()
        before = self.changed
        broken = dict(felix.features).get(CHECKSUM_BROKEN, self._is_kernel_broken)
        if not before and not self._written and not (broken and desired.devices):
            return
        indexes = {interface.name: interface.index for interface in read_interfaces(deadline)}
        there = {name: indexes[name] for name in desired.devices if name in indexes}
        ours = {name: index for name, index in before.items() if there.get(name) == index}
        due: list[str] = []
        for name in there:
            try:
                if broken and read_tx_checksum(name):
                    due.append(name)
                elif not broken and name in ours:
                    if read_tx_checksum(name) is False and set_tx_checksum(name, on=True):
                        done.changed.append(f"checksums of {name} left to the device again")
                    del ours[name]
            except KernelError as e:
                done.failed.append(str(e))
        self._keep({**ours, **{name: there[name] for name in due}}, done)
        for name in due:
            try:
                if set_tx_checksum(name, on=False):
                    done.changed.append(f"checksums of {name} in software")
            except KernelError as e:
                done.failed.append(str(e))

    def _keep(self, ours: dict[str, int], done: Pass) -> None:
        """A file that cannot be written keeps nothing from being switched off; it is tried again."""
        self.changed = ours
        if ours == self._written:
            return
        try:
            self._write(ours)
            self._written = ours
        except OSError as e:
            done.failed.append(f"cannot write {self._path}: {e.strerror or e}")

    def _read(self) -> dict[str, int]:
        """What cannot be read was written by nobody of ours: then nothing is switched on again."""
        try:
            found = json.loads(self._files.read_bytes(self._path))
        except (OSError, ValueError):
            return {}
        if not isinstance(found, Mapping):
            return {}
        return {name: index for name, index in found.items() if type(index) is int}

    def _write(self, ours: Mapping[str, int]) -> None:
        if ours:
            self._files.write_atomic(self._path, json.dumps(ours).encode(), 0o644, durable=False)
        else:
            self._files.remove(self._path)
