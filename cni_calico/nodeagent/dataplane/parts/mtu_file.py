"""The MTU that the CNI plugin gives to workloads, in a file (/var/lib/calico/mtu).

Rule: the MTU does not grow while a pool with a tunnel may be among the records that cannot be read.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Pass


class MtuFile:
    name = "the MTU file"

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path

    def wants(self, changed: Collection[str]) -> bool:
        return False  # every pass reads it

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        try:
            found = self._files.read_bytes(self._path).strip()
        except OSError:
            found = b""
        if felix.require_mtu_file and not found and not desired.mtu:
            done.refused.append(f"{self._path} is not there, which RequireMTUFile demands: the MTU is not known yet")
        grows = found.isdigit() and desired.mtu > int(found)
        if not desired.mtu or found == str(desired.mtu).encode() or (desired.additive and grows):
            return
        try:
            self._files.write_atomic(self._path, str(desired.mtu).encode(), 0o644)
        except OSError as e:
            if felix.require_mtu_file:
                done.refused.append(f"cannot write {self._path}, which RequireMTUFile demands: {e.strerror or e}")
            raise
        done.changed.append(f"MTU of workloads: {desired.mtu}")
