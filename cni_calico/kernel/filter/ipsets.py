"""IP sets (of iptables): reads their names, removes one; with pyroute2, so that the ipset program is not needed.

Rule: a kernel without support for IP sets has none, and reading must not load the module. Removing an absent set is
success.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EBUSY, ENOENT
from typing import Any

from cni_calico import faults
from cni_calico.errors import KernelError

DESTROY = faults.declare("ipset.destroy")
_MODULE = "/sys/module/ip_set"
_BUSY = 4100  # IPSET_ERR_BUSY
_NAMES_ONLY = 1 << 1  # IPSET_FLAG_LIST_SETNAME: without the members, of which there may be thousands


@contextmanager
def _opened(doing: str) -> Iterator[Any]:
    from pyroute2 import IPSet
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPSet() as sets:
            yield sets
    except NetlinkError as e:
        if e.code == _BUSY:
            raise KernelError(f"cannot {doing}: a rule or another set uses it", errno=EBUSY) from e
        raise KernelError(f"cannot {doing}: {e.args[-1] if e.args else e}", errno=e.code or 0) from e
    except OSError as e:
        raise KernelError(f"cannot {doing}: {e.strerror or e}", errno=e.errno or 0) from e


def read_ipsets() -> list[str]:
    """The names of all sets of this namespace. Raises KernelError."""
    if not os.path.isdir(_MODULE):
        return []
    with _opened("read IP sets") as sets:
        return sorted(message.get_attr("IPSET_ATTR_SETNAME") for message in sets.list(flags=_NAMES_ONLY))


def remove_ipset(name: str) -> None:
    """Raises KernelError, with EBUSY while a rule or another set uses it."""
    try:
        with _opened(f"remove IP set {name}") as sets:
            faults.before(DESTROY)
            sets.destroy(name)
            faults.after(DESTROY)
    except KernelError as e:
        if e.errno != ENOENT:
            raise
