"""What our BIRD has left on this host: its configuration, and routes in the kernel that outlive it.

Rule: a BIRD of the host's own has the same protocol number, and may have the same directory. Ours are the files with
the names that calico-node writes, if the main one has its mark; and, only then, the routes to addresses of pools.
Everything else stays.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from cni_calico.bounded import read_bytes
from cni_calico.directories import BIRD_CONFIG_DIR
from cni_calico.doing import Doing
from cni_calico.model.host import HostRoute
from cni_calico.model.resources import Network, is_within
from cni_calico.nodeagent.bgp.bird.adoption import MARK
from cni_calico.nodeagent.bgp.bird.controller import NEXT, REASON, REFUSED
from cni_calico.nodeagent.bgp.bird.links import CONFIG
from cni_calico.nodeagent.bgp.bird.process import RTPROT_BIRD
from cni_calico.nodeagent.bgp.config.render import AGGREGATION, IPAM, MAIN

_WRITTEN = (REASON, AGGREGATION, IPAM, MAIN)  # the main file last: it says that the others are ours
_LIMIT_BYTES = 64 << 20


def has_run(directory: str) -> bool:
    """Whether BIRD's configuration in this directory is calico-node's."""
    try:
        return read_bytes(f"{directory}/{MAIN}", limit=_LIMIT_BYTES).startswith(MARK.encode())
    except (OSError, ValueError):
        return False


def select_routes(routes: Sequence[HostRoute], pools: Sequence[Network]) -> tuple[list[HostRoute], list[HostRoute]]:
    """PURE: BIRD's routes: those to addresses of ``pools``, and the others."""
    ours: list[HostRoute] = []
    others: list[HostRoute] = []
    for route in routes:
        if route.protocol == RTPROT_BIRD:
            (ours if any(is_within(route.dst, pool) for pool in pools) else others).append(route)
    return ours, others


def remove_configuration(directory: str) -> None:
    """And the directories that calico-node has made, where nothing else is in them. Raises KernelError."""
    with Doing(f"remove BIRD's configuration in {directory}"):
        for path in _files(directory):
            if os.path.lexists(path):
                os.unlink(path)
    with_confd = (directory, os.path.dirname(directory)) if directory == BIRD_CONFIG_DIR else ()
    for empty in (f"{directory}/{NEXT}", f"{directory}/{REFUSED}", *with_confd):
        try:
            os.rmdir(empty)
        except OSError:
            continue  # it is absent, or something else is in it


def _files(directory: str) -> Iterator[str]:
    link = f"{directory}/{CONFIG[0]}"
    if has_run(directory) and os.path.islink(link) and os.readlink(link) == CONFIG[1]:
        yield link
    for place in (f"{directory}/{NEXT}", f"{directory}/{REFUSED}", directory):
        if has_run(place):
            yield from (f"{place}/{name}" for name in _WRITTEN)
