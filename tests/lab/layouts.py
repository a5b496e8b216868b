"""PURE: the kinds of nodes that distributions make, as manifests/distributions.yaml has them.

Rule: directories, sockets and ranges are those of that file; only what it cannot say (which plugins lie there, what a
boot empties, which rights are missing) is here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from tests.conftest import ROOT

_ROWS: list[dict[str, Any]] = yaml.safe_load((ROOT / "manifests" / "distributions.yaml").read_text())["distributions"]


@dataclass(frozen=True)
class Layout:
    """``provider``: the chart's value. ``ships``: plugins that lie in ``bin_dir`` from the start; ``emptied``: a
    directory above ``conf_dir`` that is a tmpfs, from which nothing can be run; ``loads_modules``: whether a privileged
    pod may.
    """

    name: str
    provider: str
    bin_dir: str
    conf_dir: str
    kubelet: str
    runtime: str
    range: str
    in_kubeadm_config: bool
    ships: Sequence[str] = ()
    emptied: str = ""
    loads_modules: bool = True

    def kept(self) -> list[str]:
        """Directories that outlive a boot."""
        volatile = ("/run/", "/var/run/", *([f"{self.emptied}/"] if self.emptied else ()))
        return [path for path in (self.kubelet, self.bin_dir, self.conf_dir) if not path.startswith(volatile)]

    def emptied_runtime(self) -> str:
        """The runtime's directory where it does not lie in /run, which a boot empties anyway."""
        return "" if self.runtime.startswith(("/run/", "/var/run/")) else self.runtime

    def foreign(self) -> list[str]:
        """Directories that this machine has no reason to have."""
        return [path for path in (*self.kept(), self.runtime) if path.startswith(("/var/snap/", "/var/lib/k0s/"))]

    def fill(self, text: str) -> str:
        for name in ("runtime", "bin_dir", "conf_dir"):
            text = text.replace(f"@{name}@", getattr(self, name))
        return text


def _of(provider: str, **more: Any) -> Layout:
    [row] = [each for each in _ROWS if each["provider"] == provider]
    fields = {"bin_dir": "binDir", "conf_dir": "confDir", "in_kubeadm_config": "inKubeadmConfig"}
    own = {name: row[fields.get(name, name)] for name in ("kubelet", "runtime", "range", *fields)}
    return Layout(row["layout"], provider, **own, **more)


_ALL = ("bandwidth", "bridge", "host-local", "loopback", "portmap", "ptp", "tuning")
KUBEADM = _of("", ships=_ALL)
K3S = _of("K3s")
MICROK8S = _of("MicroK8s", ships=_ALL)
TALOS = _of("Talos", ships=("bridge", "host-local", "loopback", "portmap"), emptied="/etc/cni", loads_modules=False)
K0S = _of("K0s")
OPENSHIFT = _of("OpenShift", ships=_ALL)
LAYOUTS = (KUBEADM, K3S, MICROK8S, TALOS, K0S, OPENSHIFT)
