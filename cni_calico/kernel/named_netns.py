"""Network namespaces with a name, as ``ip netns`` makes them: made and removed, by pyroute2.

Rule: a name that exists already is an error, one that is gone already is not.
"""

from __future__ import annotations

import os

from cni_calico import faults
from cni_calico.errors import KernelError
from cni_calico.kernel import netns

CREATE = faults.declare("netns.create")
REMOVE = faults.declare("netns.remove")
DIRECTORY = "/var/run/netns"


def path_of(name: str) -> str:
    return f"{DIRECTORY}/{name}"


def ensure_named(name: str) -> str:
    """Make a network namespace of this name; its path. Raises KernelError, after which it may exist."""
    from pyroute2 import netns as named

    path = path_of(name)
    if os.path.lexists(path):
        raise KernelError(f"cannot create network namespace {name}: {path} exists already")
    try:
        faults.before(CREATE)
        named.create(name)
        os.close(netns.open_netns(path))
        faults.after(CREATE)
    except (OSError, KernelError) as e:
        cause = e.strerror or e if isinstance(e, OSError) else e
        raise KernelError(f"cannot create network namespace {name}: {cause}") from e
    return path


def remove_named(name: str) -> None:
    """Raises KernelError."""
    from pyroute2 import netns as named

    try:
        faults.before(REMOVE)
        named.remove(name)
        faults.after(REMOVE)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise KernelError(f"cannot remove network namespace {name}: {e.strerror or e}", errno=e.errno or 0) from e


def list_named(prefix: str) -> list[str]:
    """The names that begin with ``prefix``."""
    try:
        return sorted(name for name in os.listdir(DIRECTORY) if name.startswith(prefix))
    except OSError:
        return []
