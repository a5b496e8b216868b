"""What follows from records that were just written, and is easily overlooked: a host endpoint of no node, a BGP session
that is cut.

Rule: it is said after writing and prevents nothing; a user who may not read what it takes is told nothing.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator

from cni_calico.ctl.input.nearest import did_you_mean
from cni_calico.ctl.policy.lifelines import read_cut_sessions
from cni_calico.ctl.session import Session, shown_key
from cni_calico.errors import CalicoError, DatastoreForbidden
from cni_calico.model.keys import ResourceKey, ResourceList

_HOST = "HostEndpoint"
_POLICY = ("GlobalNetworkPolicy", "GlobalNetworkSet", "Tier", "Profile", "FelixConfiguration")
_SHOWN = 6
_OF_SESSIONS = frozenset((_HOST, *_POLICY, "BGPPeer", "BGPConfiguration"))


def warn_of_consequences(session: Session, arguments: Namespace, written: Iterable[ResourceKey]) -> None:
    """Never raises."""
    keys = list(dict.fromkeys(written))
    try:
        for text in _without_node(session, [key for key in keys if key.kind == _HOST]):
            arguments.warn(text)
        if any(key.kind in _OF_SESSIONS for key in keys):
            cuts = read_cut_sessions(session, keys)
            for text in cuts[:_SHOWN]:
                arguments.warn(text)
            if len(cuts) > _SHOWN:
                arguments.warn(f"and {len(cuts) - _SHOWN} sessions more are cut; the status of each node has its own")
    except DatastoreForbidden:
        return
    except CalicoError as e:
        arguments.warn(f"cannot see whether a host endpoint cuts a BGP session: {e}")


def _without_node(session: Session, keys: list[ResourceKey]) -> Iterator[str]:
    named = {}
    for key, found in zip(keys, session.store.get_many(keys, session.deadline) if keys else (), strict=True):
        spec = None if found is None else found.value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("node"), str):
            named[key] = spec["node"]
    if not named:
        return
    items = session.store.list(ResourceList("Node"), session.deadline).items
    names = {item.key.name for item in items if isinstance(item.key, ResourceKey)}
    for key, name in named.items():
        if name in names:
            continue
        meant = did_you_mean(name, names) or "'calicoctl get nodes' lists those that exist"
        yield f"{shown_key(key)} has no effect: there is no node {name}; {meant}"
