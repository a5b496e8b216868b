"""What the recorder of flows is told about the rest of the cluster: other nodes' workloads, and network sets.

Rule: only while that is wanted (FlowsNames); what is told is what the recorder's own files say (``flows.elsewhere``,
``flows.network_sets``).
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.errors import CorruptRecord
from cni_calico.flows.elsewhere import ELSEWHERE, EndElsewhere, render_end
from cni_calico.flows.network_sets import MOST_NETWORKS, NETWORK_SETS, NetworkSetLine, render_set
from cni_calico.log import Log
from cni_calico.model.documents.codec import decode_endpoint, decode_resource
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.recording.exporting import end_of
from cni_calico.nodeagent.recording.followed_lines import FollowedLines
from cni_calico.nodeagent.recording.keeper import name_of
from cni_calico.policy.records import labelled_network_set
from cni_calico.policy.sets import NETWORK_SETS as KINDS

_ENDS, _SETS = "names of other nodes' workloads", "names of network sets"
Teller = Callable[[str, str], object]


def end_elsewhere(endpoint: WorkloadEndpoint) -> EndElsewhere:
    _, exported = end_of(endpoint)
    addresses = tuple(net.network_address.packed for net in endpoint.ip_networks)
    return EndElsewhere(name_of(endpoint), exported.name, exported.labels, addresses)


def network_set_line(key: ResourceKey, item: Versioned) -> NetworkSetLine | None:
    """None for one that is too large to be known by name. Raises CorruptRecord."""
    try:
        found = labelled_network_set(key, decode_resource(key, item.value))
    except Wrong as e:
        raise CorruptRecord(str(e)) from e
    networks = [(address, 8 * len(address)) for address in found.addresses]
    networks += found.nets
    return None if len(networks) > MOST_NETWORKS else NetworkSetLine(dict(found.labels), tuple(networks))


def ends_elsewhere(
    store: Datastore, node: str, run_dir: str, log: Log, tell: Teller = lambda *_: None
) -> FollowedLines:
    """Not ``node``'s own, which the recorder knows otherwise."""

    def line_of(item: Versioned) -> bytes | None:
        key = _resource(item.key)
        endpoint = decode_endpoint(key, item.value)
        return None if endpoint.node == node else render_end(_text(key), end_elsewhere(endpoint))

    lines = line_of, lambda key: render_end(_text(_resource(key)), None)
    listings = (ResourceList("WorkloadEndpoint"),)
    return FollowedLines(store, listings, lines, f"{run_dir}/{ELSEWHERE}", _ENDS, log, tell)


def network_sets(store: Datastore, run_dir: str, log: Log, tell: Teller = lambda *_: None) -> FollowedLines:
    def line_of(item: Versioned) -> bytes | None:
        key = _resource(item.key)
        found = network_set_line(key, item)
        return None if found is None else render_set((key.namespace, key.name), found)

    def gone(key: Key) -> bytes:
        return render_set((_resource(key).namespace, _resource(key).name), None)

    listings = tuple(map(ResourceList, KINDS))
    return FollowedLines(store, listings, (line_of, gone), f"{run_dir}/{NETWORK_SETS}", _SETS, log, tell)


def _resource(key: Key) -> ResourceKey:
    assert isinstance(key, ResourceKey)
    return key


def _text(key: ResourceKey) -> str:
    return f"{key.namespace}/{key.name}"
