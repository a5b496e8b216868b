"""PURE: which pools a request may use, and which addresses are reserved.

Rule: pools named by the request are used whatever they select, if they are usable at all and serve the purpose at hand;
otherwise the automatic ones that select both the node and the namespace, sorted by name. A pool that cannot be read,
which kubectl gets past an API server, gives nothing, and is named only if no other pool is left; as long as its network
can be read, no younger pool gives the same addresses. Every error says what was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network

from cni_calico.errors import CorruptRecord, InvalidConfig, NoPool
from cni_calico.model.documents.fields import JSON, brief
from cni_calico.model.resources import Address, IPPool, IPReservation, Metadata, Network
from cni_calico.model.selectors import parse_selector

_UNREADABLE = 0  # a block size that no pool has
WORKLOAD, LOAD_BALANCER = "Workload", "LoadBalancer"  # values of a pool's allowedUses


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node as selectors see it; ``known`` is False if there is no record of it (it then has no labels)."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    known: bool = True


class PoolsRead(tuple[IPPool, ...]):
    """``wrong`` says of those of which only the network is known what is wrong with them, by name; ``lost`` why another
    pool is not among them, of which not even that can be read.
    """

    wrong: Mapping[str, str]
    lost: CorruptRecord | None

    def __new__(
        cls, pools: Iterable[IPPool], wrong: Mapping[str, str] | None = None, lost: CorruptRecord | None = None
    ) -> PoolsRead:
        made = super().__new__(cls, pools)
        made.wrong, made.lost = wrong or {}, lost
        return made


def unreadable_pool(name: str, document: JSON) -> IPPool | None:
    """A pool of which only the network can be read: it has no blocks. None if that cannot be read either."""
    spec = document.get("spec") if isinstance(document, Mapping) else None
    text = spec.get("cidr") if isinstance(spec, Mapping) else None
    cidr = _parse_cidr(text) if isinstance(text, str) else None
    return None if cidr is None else IPPool(Metadata(name), cidr, _UNREADABLE)


def select_pools(
    pools: Sequence[IPPool],
    *,
    family: int,
    node: NodeFacts,
    explicit: Sequence[str] = (),
    use: str = WORKLOAD,
    namespace_labels: Mapping[str, str] | None = None,
) -> tuple[IPPool, ...]:
    """The pools to take addresses of ``family`` from, in order. Raises NoPool, and CorruptRecord if what is missing may
    be a pool that cannot be read.
    """
    of_family = [pool for pool in pools if pool.cidr.version == family]
    usable = sorted((p for p in of_family if is_usable(p, of_family)), key=lambda p: p.metadata.name)
    reasons = pools.wrong if isinstance(pools, PoolsRead) else {}
    if explicit:
        named = {pool.cidr: pool for pool in (_find_pool(text, usable, pools, family, reasons) for text in explicit)}
        return _serving(tuple(named.values()), use)
    lost = pools.lost if isinstance(pools, PoolsRead) else None
    unreadable = (pool for pool in of_family if _is_unreadable(pool))
    wrong: NoPool | CorruptRecord | None = next((_cannot_read(pool, reasons) for pool in unreadable), lost)
    if not usable:
        raise wrong or NoPool(f"cannot find a qualified ippool: no IPv{family} pool exists that is enabled")
    selecting = []
    for pool in usable:
        try:
            if pool.assignment_mode == "Automatic" and _selects(pool, node, namespace_labels):
                selecting.append(pool)
        except NoPool as e:
            wrong = wrong or e
    if not selecting:
        raise wrong or NoPool(f"no configured Calico pools for node {node.name}")
    return _serving(tuple(selecting), use)


def is_usable(pool: IPPool, pools: Iterable[IPPool]) -> bool:
    """Whether addresses may be taken from a pool, given all pools of its family."""
    return pool.usable and overlapped(pool, pools) is None


def overlapped(pool: IPPool, pools: Iterable[IPPool]) -> IPPool | None:
    """An older pool that covers some of the same addresses with another block size: both would assign them."""
    for other in pools:
        comes_first = _is_unreadable(other) or _is_older(other, pool)
        if other.block_size != pool.block_size and comes_first and other.cidr.overlaps(pool.cidr):
            return other
    return None


def _is_unreadable(pool: IPPool) -> bool:
    return pool.block_size == _UNREADABLE


def _cannot_read(pool: IPPool, reasons: Mapping[str, str]) -> CorruptRecord:
    name = pool.metadata.name
    return CorruptRecord(f"cannot use IPPool {name}: {reasons.get(name, 'it cannot be read')}")


def _is_older(pool: IPPool, than: IPPool) -> bool:
    mine, others = pool.metadata, than.metadata
    return (mine.creation_timestamp, mine.name) < (others.creation_timestamp, others.name)


def _serving(pools: tuple[IPPool, ...], use: str) -> tuple[IPPool, ...]:
    serving = tuple(pool for pool in pools if use in pool.allowed_uses)
    if not serving:
        raise NoPool(f"cannot find a qualified ippool, no pools match the required use ({use})")
    return serving


def _find_pool(
    text: str, usable: Sequence[IPPool], pools: Sequence[IPPool], family: int, reasons: Mapping[str, str]
) -> IPPool:
    """The usable pool with this CIDR or name."""
    wanted = _parse_cidr(text)
    if wanted is None:
        named = [pool for pool in pools if pool.metadata.name == text]
        if not named:
            raise NoPool(f'error parsing pool "{brief(text)}": invalid CIDR address: {brief(text)}')
        wanted = named[0].cidr
    if wanted.version != family:
        raise NoPool(f'error parsing pool "{brief(text)}": {wanted} is no IPv{family} network')
    for pool in usable:
        if pool.cidr == wanted:
            return pool
    for pool in pools:
        if pool.cidr != wanted:
            continue
        if _is_unreadable(pool):
            raise _cannot_read(pool, reasons)
        other = overlapped(pool, pools)
        if other is not None and _is_unreadable(other):
            raise _cannot_read(other, reasons)
        if other is not None:
            raise NoPool(
                f"cannot use IPPool {pool.metadata.name}: it overlaps IPPool {other.metadata.name} ({other.cidr}), "
                "whose blocks have another size"
            )
    raise NoPool(f"the given pool ({wanted}) does not exist, or is not enabled")


def _parse_cidr(text: str) -> Network | None:
    if "/" not in text:
        return None
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def selects_node(pool: IPPool, node: NodeFacts) -> bool:
    """Whether the pool's nodeSelector matches. Raises NoPool naming a pool whose selector cannot be read."""
    return _matches(pool, "nodeSelector", pool.node_selector, node.labels)


def _selects(pool: IPPool, node: NodeFacts, namespace_labels: Mapping[str, str] | None) -> bool:
    if not selects_node(pool, node):
        return False
    selector = pool.namespace_selector.strip()
    if selector in ("", "all()"):
        return True
    # if the namespace is unknown, a pool that selects namespaces is not used
    return namespace_labels is not None and _matches(pool, "namespaceSelector", selector, namespace_labels)


def require_selectors(pool: IPPool, node: NodeFacts) -> None:
    """Raises NoPool for a pool of which a selector cannot be read."""
    for name, selector in (("nodeSelector", pool.node_selector), ("namespaceSelector", pool.namespace_selector)):
        if selector.strip():
            _matches(pool, name, selector, node.labels)


def _matches(pool: IPPool, name: str, selector: str, labels: Mapping[str, str]) -> bool:
    try:
        return parse_selector(selector).matches(labels)
    except InvalidConfig as e:
        raise NoPool(f"cannot use IPPool {pool.metadata.name}: its {name} is wrong: {e.message}") from e


def pool_of(pools: Iterable[IPPool], network: Network | Address) -> IPPool | None:
    """The pool (the narrowest, if they overlap) that contains an address or block."""
    first = network.network_address if isinstance(network, IPv4Network | IPv6Network) else network
    found = [pool for pool in pools if pool.cidr.version == first.version and first in pool.cidr]
    return max(found, key=lambda pool: pool.cidr.prefixlen, default=None)


def reserved_networks(reservations: Iterable[IPReservation]) -> tuple[Network, ...]:
    """The networks that are never assigned unless asked for by address."""
    return tuple(cidr for reservation in reservations for cidr in reservation.reserved_cidrs)
