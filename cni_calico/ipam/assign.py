"""Serves one request for addresses: adds what is missing to what the request's handle already holds.

Rule: every round looks at what the handle holds in the blocks as they are now, plans what is missing and applies it. So
a conflict, a lost answer and a repeated request are handled alike: by another round. Blocks are searched for only as
far as they are needed, for both families before the first address is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cni_calico.datastore.interface import Versioned, Write
from cni_calico.errors import BlockLimit, CorruptRecord, NoPool, PoolExhausted
from cni_calico.ipam.batch import Assigned, Assignment, Step, plan_batch
from cni_calico.ipam.block import addresses_of, count_free, reserved_ordinals
from cni_calico.ipam.candidates import is_borrowable
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import WORKLOAD, reserved_networks, select_pools
from cni_calico.ipam.release import leave_unselected_blocks, others_in
from cni_calico.ipam.search import BlockSearch, Scope, Source
from cni_calico.ipam.share import Share
from cni_calico.ipam.view import Facts
from cni_calico.model.keys import IPAMConfigKey
from cni_calico.model.resources import Address, IPAMConfig, IPPool, Network
from cni_calico.model.timestamps import stamped

FAMILIES = (4, 6)
DEFAULT_CONFIG = IPAMConfig(auto_allocate_blocks=True, extra={"kubeVirtVMAddressPersistence": "Enabled"})


@dataclass(frozen=True, slots=True)
class AssignRequest:
    """A request for exactly ``addresses``, or for a number of addresses from these pools (names or CIDRs; empty:
    automatic ones).

    ``attributes`` are without the timestamp; ``namespace_labels`` is None if they are unknown; with ``share`` None
    everything that the handle holds counts.
    """

    node: str
    handle_id: str
    attributes: Mapping[str, str]
    num4: int = 0
    num6: int = 0
    pools4: tuple[str, ...] = ()
    pools6: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()
    use: str = WORKLOAD
    namespace_labels: Mapping[str, str] | None = None
    share: Share | None = None

    def select_pools(self, facts: Facts, family: int) -> tuple[IPPool, ...]:
        """The pools that the request may use. Raises NoPool."""
        return select_pools(
            facts.pools,
            family=family,
            node=facts.node,
            explicit=self.pools4 if family == 4 else self.pools6,
            use=self.use,
            namespace_labels=self.namespace_labels,
        )


@dataclass(slots=True)
class Companion:
    """A record that may be created in one transaction with the addresses it names: ``create`` makes the write.

    ``stored``: it was written; ``unknown``: it may have been. Otherwise it was not, and its owner writes it separately.
    """

    create: Callable[[Sequence[Address]], Write]
    tried: bool = False
    stored: Versioned | None = None
    unknown: bool = False


def held_addresses(ledger: Ledger, handle_id: str, share: Share | None = None) -> tuple[Assigned, ...]:
    """What a handle holds, or one interface of it, IPv4 first. Raises DatastoreError."""
    handle = ledger.handle(handle_id)
    return () if handle is None else _held_in(ledger, handle_id, handle.blocks, share)


def _held_in(
    ledger: Ledger, handle_id: str, cidrs: Mapping[Network, object], share: Share | None
) -> tuple[Assigned, ...]:
    ledger.load_blocks(cidrs)
    others = others_in(ledger, handle_id, cidrs, share)
    found = []
    for cidr in sorted(cidrs, key=lambda c: (c.version, c.network_address)):
        block = ledger.block(cidr)
        if block is not None:
            mine = (address for address in addresses_of(block, handle_id) if address not in others)
            found += [Assigned(address, cidr, held=True) for address in mine]
    return tuple(found)


def read_config(ledger: Ledger, facts: Facts) -> IPAMConfig:
    """The IPAM configuration; the first caller who needs it creates the record."""
    config = facts.config
    if config is None:
        ledger.learn(IPAMConfigKey(), None)
        while (config := ledger.config()) is None:
            ledger.apply([Step(IPAMConfigKey(), DEFAULT_CONFIG)])
    return config


class Assigning:
    """An AssignRequest under way; call ``run`` once."""

    def __init__(self, ledger: Ledger, request: AssignRequest, facts: Facts, now_ns: int) -> None:
        self._ledger = ledger
        self._request = request
        self._facts = facts
        self._now_ns = now_ns
        self._wanted = {4: request.num4, 6: request.num6}
        self._reserved = reserved_networks(facts.reservations)
        self._searches: dict[int, BlockSearch] = {}
        self._more: dict[int, Iterator[Source]] = {}
        self._sources: dict[Network, Source] = {}

    def run(self) -> tuple[Assigned, ...]:
        """Raises IPAMError, with nothing of this request left behind except what ``Ledger.apply`` may have stored."""
        before: set[Address] | None = None
        while True:
            held = self._held()
            if before is None:
                before = {item.address for items in held.values() for item in items}
            missing = {f: self._wanted[f] - len(held[f]) for f in FAMILIES if self._wanted[f] > len(held[f])}
            if not missing:
                self._leave_unselected_blocks()
                given = [item for family in FAMILIES for item in held[family][: self._wanted[family]]]
                return tuple(Assigned(item.address, item.block, item.address in before) for item in given)
            self._open_searches(missing)
            for family, count in missing.items():
                self._find(family, count, len(held[family]))
            self._assign(missing)

    def _held(self) -> dict[int, list[Assigned]]:
        handle = self._ledger.handle(self._request.handle_id)
        cidrs = {**dict.fromkeys(handle.blocks if handle else ()), **dict.fromkeys(self._sources)}
        found = _held_in(self._ledger, self._request.handle_id, cidrs, self._request.share)
        return {family: [item for item in found if item.block.version == family] for family in FAMILIES}

    def _assign(self, missing: Mapping[int, int]) -> None:
        request = self._request
        assignment = Assignment(
            request.handle_id,
            stamped(request.attributes, self._now_ns),
            num4=missing.get(4, 0),
            num6=missing.get(6, 0),
        )
        handle = self._ledger.handle(request.handle_id)
        # these blocks are only counted and give no address: an earlier attempt may have ended after writing the handle
        # and before the block
        withheld = {cidr: frozenset(range(cidr.num_addresses)) for cidr in (handle.blocks if handle else ())}
        withheld |= {cidr: self._withheld(source) for cidr, source in self._sources.items()}
        plan = plan_batch(
            {cidr: self._ledger.block(cidr) for cidr in withheld},
            {request.handle_id: handle},
            (assignment,),
            withheld,
        )
        assert plan.outcomes[0] is not None, "the sources were chosen to have enough"
        self._ledger.apply(plan.steps)

    # -- where from ---------------------------------------------------------------------------------------------------

    def _open_searches(self, missing: Mapping[int, int]) -> None:
        opened = {family: self._scope(family) for family in missing if family not in self._searches}
        for family, scope in opened.items():
            self._searches[family] = BlockSearch(self._ledger, scope)
            self._more[family] = self._searches[family].sources()

    def _scope(self, family: int) -> Scope:
        request, facts = self._request, self._facts
        try:
            pools = request.select_pools(facts, family)
        except (NoPool, CorruptRecord) as e:
            raise type(e)(f"failed to request IPv{family} addresses: {e.message}", details=e.details) from e
        config = read_config(self._ledger, facts)
        return Scope(request.node, family, pools, config, self._reserved, self._now_ns)

    def _find(self, family: int, count: int, held: int) -> None:
        """Add sources until there is enough. Raises PoolExhausted, BlockLimit."""
        free = sum(self._count_free(s) for s in self._sources.values() if s.cidr.version == family)
        while free < count:
            try:
                source = next(self._more[family])
            except (PoolExhausted, BlockLimit) as e:
                wanted = self._wanted[family]
                raise type(e)(
                    f"failed to request IPv{family} addresses: Assigned {held + free} out of {wanted} requested "
                    f"IPv{family} addresses; {e.message}",
                    details=e.details,
                ) from e
            found = self._count_free(source)
            if found:
                self._sources[source.cidr] = source
                free += found

    def _count_free(self, source: Source) -> int:
        block = self._ledger.block(source.cidr)
        return 0 if block is None else count_free(block, self._withheld(source))

    def _withheld(self, source: Source) -> frozenset[int]:
        """Ordinals not to be assigned: the reserved ones; all of them if the block is no longer in the state in which
        it was chosen.
        """
        block = self._ledger.block(source.cidr)
        if block is None or not (is_borrowable(block) if source.borrowed else block.node == self._request.node):
            return frozenset(range(source.cidr.num_addresses))
        return reserved_ordinals(source.cidr, self._reserved)

    def _leave_unselected_blocks(self) -> None:
        for search in self._searches.values():
            leave_unselected_blocks(self._ledger, self._facts.node, search.elsewhere, self._facts.pools, self._now_ns)
