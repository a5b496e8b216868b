"""The agent's view of the datastore: one cache per listing, one Snapshot made from all of them.

Rule: nothing is applied before every listing has been read once; afterwards an outage freezes the view (``healthy`` is
then False). Changes only call ``on_change``, which gets no details: the snapshot has everything. A change that makes no
difference to the view, such as a heartbeat of a node, causes no call. If a record becomes unreadable, its last readable
version counts, also that of an earlier run if ``last_valid`` has it (Nodes, pools, FelixConfigurations); one that was
never readable is left out, and ``unread`` names it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_network
from typing import Any

from cni_calico.datastore.cache import Cache, error_of
from cni_calico.datastore.interface import Datastore, Versioned, pod_of
from cni_calico.datastore.last_good import Earlier, LastGoodCaches
from cni_calico.datastore.remembered import decoding
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied
from cni_calico.ipam.pools import pool_of
from cni_calico.model.belongings import felix_of_node
from cni_calico.model.documents.codec import (
    decode_endpoint,
    decode_node,
    decode_pool,
    decode_resource,
    encode_pool,
)
from cni_calico.model.keys import Key, ResourceKey, ResourceList, endpoints_of_node
from cni_calico.model.kubernetes.flannel import FLANNEL
from cni_calico.model.resources import Address, IPPool, Network, Node, WorkloadEndpoint
from cni_calico.model.validation.ipam import check_pool
from cni_calico.model.validation.report import Report
from cni_calico.nodeagent.context.configurations import Scoped, select_scoped, spec_of
from cni_calico.nodeagent.view.blocks import FollowedBlocks
from cni_calico.nodeagent.view.claims import LocalEndpoint, is_claimed, judge_claims
from cni_calico.nodeagent.view.floating import is_floating, select_floating_blocks
from cni_calico.nodeagent.view.floating_holders import FloatingHolders
from cni_calico.nodeagent.view.known_nodes import describe_cut_off, parse_node_addresses
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.nodeagent.view.snapshot import BlockRoute, Snapshot, pod_cidr_blocks, select_pod_cidrs

RANDOM = random.SystemRandom()
NODES_S = 30.0


def _node_with_blocks(item: Versioned) -> Node:
    """Its addresses are of IPAM's blocks, so flannel's range and tunnel are not its own."""
    node = decode_node(item.key, item.value)
    status = node.status or {}
    return replace(node, status={k: v for k, v in status.items() if k != FLANNEL}) if FLANNEL in status else node


@dataclass(frozen=True, slots=True)
class CheckedPool:
    """A pool that can be read, and what is wrong with it: it may have been stored without calicoctl's checks."""

    record: IPPool
    problems: tuple[str, ...]


def _pool(item: Versioned) -> CheckedPool:
    pool = decode_pool(item.key, item.value)
    report = Report("IPPool")
    check_pool(report, encode_pool(pool)["spec"])
    about = f"IPPool {pool.metadata.name}: "
    return CheckedPool(pool, tuple(about + str(wrong).removeprefix("IPPool.") for wrong in report.problems))


def _node_part(item: Versioned) -> frozenset[Address]:
    return parse_node_addresses(item.value)


class _OfView:
    """``LastValid`` for these caches, whose pools are checked ones."""

    def __init__(self, last_valid: LastValid) -> None:
        self._last_valid = last_valid
        self._begun = False

    def pop(self, key: Key) -> Any:
        version = self._last_valid.pop(key) if isinstance(key, ResourceKey) else None
        return CheckedPool(version, ()) if isinstance(version, IPPool) else version

    def keep(self, versions: Mapping[Key, Any]) -> None:
        if not self._begun:
            self._begun = True
            self._last_valid.forget()
        kept = {
            key: version.record if isinstance(version, CheckedPool) else version
            for key, version in versions.items()
            if isinstance(key, ResourceKey)
        }
        self._last_valid.keep(kept, kept.get)


FelixSpec = Mapping[str, Any] | None


def _is_decided(cache: Cache[Any]) -> bool:
    return cache.synced or isinstance(cache.error, DatastoreDenied)


FelixParts = tuple[FelixSpec, FelixSpec, Scoped]


def _never(felix: FelixParts) -> bool:
    return False


def _always(pools: Sequence[IPPool], felix_node: FelixSpec, felix_default: FelixSpec, scoped: Scoped) -> bool:
    return True


class Sources:
    """The caches. ``stop`` ends their threads. ``use_pod_cidr``: nodes' pod CIDRs count as their blocks.

    With ``brief`` the datastore sends other Nodes without the parts that are not needed. ``routed`` says, from the
    pools and the FelixConfigurations for this node, for all and for some, whether this node makes routes to other
    nodes' blocks: only then every block has to be followed. ``partial_blocks``: the datastore's list of all blocks has
    only a part of each, and it has those of this node separately. ``last_valid`` remembers last readable versions
    between runs.
    ``watch_after``: as for Cache. ``floating`` says from the FelixConfigurations whether floating IPs are used.
    """

    def __init__(
        self,
        store: Datastore,
        node: str,
        on_change: Callable[[], None],
        *,
        use_pod_cidr: bool = False,
        brief: bool = False,
        routed: Callable[[Sequence[IPPool], FelixSpec, FelixSpec, Scoped], bool] = _always,
        partial_blocks: bool = False,
        last_valid: LastValid | None = None,
        watch_after: threading.Event | None = None,
        floating: Callable[[FelixParts], bool] = _never,
    ) -> None:
        self.node = node
        self._use_pod_cidr = use_pod_cidr
        self._routed = routed
        self._last_valid = last_valid
        earlier: Earlier | None = None if last_valid is None else _OfView(last_valid)
        self._kept = kept = LastGoodCaches(store, on_change, earlier, watch_after)
        brief = brief and not use_pod_cidr
        read = decoding(decode_node) if use_pod_cidr else _node_with_blocks
        self._nodes = kept.follow(ResourceList("Node", brief=brief), read, part=_node_part)
        self._own = kept.follow(ResourceList("Node", "", node), read, part=_node_part) if brief else self._nodes
        self._pools = kept.follow(ResourceList("IPPool"), _pool)
        # by their names, which begin with the node's: others' pods come and go all the time and must not wake us
        self._endpoints = kept.follow(endpoints_of_node(node), self._endpoint)
        self._felix = kept.follow(ResourceList("FelixConfiguration"), decoding(decode_resource))
        self._basis = tuple(kept.all)
        self._blocks = FollowedBlocks(kept, node, self._spread, partial=partial_blocks)
        self._floating = floating
        self._floating_holders: FloatingHolders | None = None
        self._floating_decided = False
        self._more_caches = partial(LastGoodCaches, store, on_change, None, watch_after)

    def _spread(self, stopped: threading.Event) -> float:
        """A random wait of up to a second for every 100 nodes, so that they do not all list the blocks at once when a
        cluster starts.
        """
        until = time.monotonic() + NODES_S
        while not self._nodes.synced and time.monotonic() < until and not stopped.wait(0.02):
            continue
        return RANDOM.uniform(0, len(self._nodes.items()) / 100)

    def _endpoint(self, item: Versioned) -> LocalEndpoint | None:
        """An endpoint of this node: the listing may contain those of nodes whose names begin with this one's."""
        spec = item.value.get("spec")
        if isinstance(spec, Mapping) and spec.get("node") not in (None, self.node):
            return None
        pod = pod_of(item)
        return LocalEndpoint(decode_endpoint(item.key, item.value), pod is not None and is_claimed(pod))

    def local_endpoints(self) -> dict[Key, WorkloadEndpoint]:
        """Those of this node, as they are now. Which of their addresses count is not decided."""
        found = self._kept.records(self._endpoints).items()
        return {key: endpoint.record for key, endpoint in found if endpoint is not None}

    @property
    def begun(self) -> bool:
        """Whether everything but IPAM's records has been read once."""
        return all(cache.synced for cache in self._basis)

    def settle(self) -> bool:
        """Follow as much of IPAM as is needed now. Returns whether everything that is needed has been read once."""
        if not self.begun:
            return False
        pools = self._checked_pools()
        records, felix = [pool.record for pool in pools], self._felix_specs(self._own_labels())
        self._settle_floating(records, felix)
        routed = self._routed(records, *felix)
        settled = self._blocks.settle(routed=routed, claimed=self._claimed_blocks(pools))
        # what an earlier run translated must not end because IPAM has not answered yet
        self._floating_decided = self._floating_decided or (settled and all(map(_is_decided, self._floating_caches())))
        return settled and self._floating_decided

    def _floating_caches(self) -> tuple[Cache[Any], ...]:
        return () if self._floating_holders is None else self._floating_holders.caches

    @property
    def has_asked(self) -> bool:
        """Whether IPAM has said who has the floating IPs; after its first pass an agent does not wait for that."""
        return self._floating_holders is None or self._floating_holders.asked

    def _settle_floating(self, pools: Sequence[IPPool], felix: FelixParts) -> None:
        """Ask IPAM about floating IPs, if there are any. Only the first pass waits for the answer."""
        asking = [each for each in self.local_endpoints().values() if each.ip_nats]
        if not asking and self._floating_holders is None:
            return
        enabled = bool(asking) and self._floating(felix)
        wanted = select_floating_blocks([each for each in asking if is_floating(each, enabled=enabled)], pools)
        if wanted and self._floating_holders is None:
            self._floating_holders = FloatingHolders(self._more_caches())
        if self._floating_holders is not None:
            self._floating_holders.settle(wanted)

    def _claimed_blocks(self, pools: Iterable[CheckedPool]) -> set[Network]:
        """The blocks that can confirm what pods say of their addresses: at most one of each family for a pod."""
        found: set[Network] = set()
        for endpoint in self._kept.records(self._endpoints).values():
            if endpoint is None or not endpoint.claimed or self._use_pod_cidr:
                continue
            for claim in {network.version: network for network in endpoint.record.ip_networks}.values():
                pool = pool_of([pool.record for pool in pools], claim)
                if pool is not None:
                    found.add(ip_network((claim.network_address, pool.block_size), strict=False))
        return found

    def _felix_specs(self, labels: Mapping[str, str] | None) -> FelixParts:
        """What counts on this node, with these labels: of it alone, of all nodes, and of those that it is one of."""
        named = {record.metadata.name: record for record in self._kept.records(self._felix).values()}
        own, default = (
            None if record is None else spec_of(record) for record in map(named.get, (f"node.{self.node}", "default"))
        )
        return own, default, select_scoped(named.values(), labels)

    def _own_labels(self) -> Mapping[str, str] | None:
        own = self._kept.records(self._own).get(ResourceKey("Node", self.node))
        return None if own is None else own.metadata.labels

    def _checked_pools(self) -> list[CheckedPool]:
        return sorted(self._kept.records(self._pools).values(), key=lambda pool: pool.record.metadata.name)

    @property
    def healthy(self) -> bool:
        return all(cache.healthy for cache in self._kept.all)

    @property
    def error(self) -> str:
        """Why the view is not kept up to date; "" if it is."""
        return error_of(self._kept.all)

    def snapshot(self) -> Snapshot:
        """What is known now; only meaningful once ``settle`` has been true, and before that without blocks and routes
        once ``begun`` is.
        """
        nodes = self._all_nodes()
        labels = nodes[self.node].metadata.labels if self.node in nodes else None
        felix_node, felix_default, scoped = self._felix_specs(labels)
        pools = self._checked_pools()
        endpoints = self._kept.records(self._endpoints).values()
        routed = self._blocks.routes()
        judged = judge_claims(
            (endpoint for endpoint in endpoints if endpoint is not None),
            {address: pod for block in routed for address, pod in block.held.items()},
            self._foreign_ranges(nodes.get(self.node), routed),
        )
        problems = (*self._kept.problems(), *(text for pool in pools for text in pool.problems), *judged.problems)
        self._kept.preserve((self._nodes, self._own, self._pools, self._felix))
        made = Snapshot(
            node=self.node,
            nodes=nodes,
            pools=tuple(pool.record for pool in pools),
            blocks=routed + (pod_cidr_blocks(nodes.values()) if self._use_pod_cidr else ()),
            endpoints=judged.endpoints,
            felix_node=felix_node,
            felix_default=felix_default,
            felix_scoped=scoped,
            unread=self._unread(),
            unproven=judged.unproven,
            parts=self._node_parts(),
            handles={block.handles.get(address, ""): pod for block in routed for address, pod in block.held.items()},
            floating={} if self._floating_holders is None else self._floating_holders.known(),
        )
        troubles = () if self._last_valid is None else self._last_valid.troubles
        return replace(made, problems=(*problems, *describe_cut_off(made.cut_off), *troubles))

    def _node_parts(self) -> dict[str, frozenset[Address]]:
        found: dict[str, frozenset[Address]] = {}
        for cache in (self._nodes, self._own):
            found.update((key.name, at) for key, at in self._kept.parts(cache).items() if isinstance(key, ResourceKey))
        return found

    def _all_nodes(self) -> dict[str, Node]:
        nodes = {node.metadata.name: node for node in self._kept.records(self._nodes).values()}
        if self._own is not self._nodes:
            nodes.pop(self.node, None)
            own = (node for node in self._kept.records(self._own).values() if node.metadata.name == self.node)
            nodes.update((node.metadata.name, node) for node in own)
        return nodes

    def _foreign_ranges(self, own: Node | None, blocks: Iterable[BlockRoute]) -> tuple[Network, ...]:
        """The networks in which this node's pods may have addresses that our IPAM does not know."""
        ours = not self._use_pod_cidr and any(block.node == self.node for block in blocks)
        return () if own is None or ours else select_pod_cidrs(own)

    def _unread(self) -> frozenset[Key]:
        fabric: tuple[Cache[Any], ...] = (self._nodes, self._own, self._pools, self._endpoints)
        # also one of any other name: what cannot be read may select this node
        own = felix_of_node(self.node)
        settings = (key for key in self._kept.unread(self._felix) if isinstance(key, ResourceKey))
        unread = frozenset(key for key in settings if key == own or not key.name.startswith("node."))
        return unread.union(self._blocks.unread(), *(self._kept.unread(cache) for cache in fabric))

    def wait_synced(self, deadline: Deadline) -> None:
        """Raises the error that prevents reading a listing, DeadlineExceeded."""
        for cache in self._basis:
            cache.wait_synced(deadline)
        while not self.settle():
            following = (*self._kept.all, *self._floating_caches())
            for cache in following:
                if not cache.wait_until(partial(_is_decided, cache), deadline):
                    cache.wait_synced(deadline)
            refused = [cache for cache in following if not cache.synced]
            if refused and not self.settle():  # which gives up what may be refused
                for cache in refused:
                    if cache in self._kept.all:
                        cache.wait_synced(deadline)

    def stop(self) -> None:
        self._kept.stop()
        if self._floating_holders is not None:
            self._floating_holders.stop()
