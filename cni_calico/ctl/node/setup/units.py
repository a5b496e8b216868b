"""The units of a host, as they are in install/systemd/: packages install the same files.

Rule: only the directory of the executables depends on the host. In a bundle the files are at the same place beside the
package as in the sources.
"""

from __future__ import annotations

from pathlib import Path

import cni_calico
from cni_calico.bounded import read_text
from cni_calico.directories import CNI_BIN_DIR
from cni_calico.errors import KernelError

NODE = "calico-node.service"
BOOT_TABLE = "calico-boot-table.service"
DOCKER, DOCKER_SOCKET = "calico-docker.service", "calico-docker.socket"
# not with Kubernetes, where etcd or the API server may be a container of theirs
RUNTIMES = """# Written by "calicoctl node init". Without Kubernetes these start containers by themselves.
[Unit]
Before=containerd.service crio.service
"""
_LIMIT_BYTES = 1 << 20


def read_unit(name: str, executables: str) -> str:
    """The unit for executables in this directory. Raises KernelError if the bundle is not complete."""
    path = Path(cni_calico.__file__).resolve().parent.parent / "install" / "systemd" / name
    try:
        text = read_text(str(path), limit=_LIMIT_BYTES)
    except (OSError, ValueError) as e:
        raise KernelError(f"cannot read the unit {name}: {e}") from e
    return text.replace(f"={CNI_BIN_DIR}/", f"={executables}/").replace(f"={CNI_BIN_DIR} ", f"={executables} ")
