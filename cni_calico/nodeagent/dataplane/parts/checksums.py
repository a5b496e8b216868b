"""Checksums of tunnels in software, where the kernel, or FeatureDetectOverride, says that devices get them wrong.

Rule: only our tunnels are touched, never the node's own interfaces. What this agent switched off it switches on again
when nothing asks for it any more, also after a restart; what somebody else switched off stays off.
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
        self._is_kernel_broken = is_this_checksum_broken()

    def wants(self, changed: Collection[str]) -> bool:
        return False  # every pass looks

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        before = self._read() if self.changed is None else self.changed
        self.changed = before
        broken = dict(felix.features).get(CHECKSUM_BROKEN, self._is_kernel_broken)
        if not before and not (broken and desired.devices):
            return
        indexes = {interface.name: interface.index for interface in read_interfaces(deadline)}
        there = {name: indexes[name] for name in desired.devices if name in indexes}
        ours = {name: index for name, index in before.items() if there.get(name) == index}
        for name, index in there.items():
            try:
                if broken and read_tx_checksum(name):
                    if set_tx_checksum(name, on=False):
                        ours[name] = index
                        done.changed.append(f"checksums of {name} in software")
                elif not broken and name in ours:
                    if read_tx_checksum(name) is False and set_tx_checksum(name, on=True):
                        done.changed.append(f"checksums of {name} left to the device again")
                    del ours[name]
            except KernelError as e:
                done.failed.append(str(e))
        if ours != before:
            self._write(ours)
        self.changed = ours

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
