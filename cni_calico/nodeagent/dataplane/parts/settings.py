"""Settings below /proc/sys/net: the host's and those of workloads' interfaces.

Rule: a setting is read once, and then only if the kernel reports that some have changed; reading all of them takes one
file each.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import sysctl
from cni_calico.kernel.monitor import SETTINGS
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Pass
from cni_calico.plugin.network.plan import Sysctl


class KernelSettings:
    name = "settings"

    def __init__(self) -> None:
        self._settled: frozenset[Sysctl] = frozenset()

    def wants(self, changed: Collection[str]) -> bool:
        return SETTINGS in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        settled = set() if full else set(self._settled.intersection(desired.settings))
        for setting in desired.settings:
            if setting in settled:
                continue
            path, value = setting
            try:
                found = sysctl.read(path)
                if found is not None and found != value:
                    sysctl.write(path, value, optional=True)
                    done.changed.append(f"net/{'/'.join(path)} = {value} (was {found})")
            except KernelError as e:
                done.failed.append(str(e))
                continue
            settled.add(setting)
        self._settled = frozenset(settled)
