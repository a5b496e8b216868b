"""Which of the addresses count that only a pod's annotation names: those that IPAM holds for the pod, as for the agents
(policy.confirmed).

Rule: blocks are read only if a pod claims addresses. A pod's own node also counts what it routes to the pod's
interface; calicoctl does not see routes, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Versioned, pod_of
from cni_calico.errors import CalicoError, CorruptRecord
from cni_calico.model.documents.codec import decode_block
from cni_calico.model.keys import BlockKey, BlockList, ResourceKey
from cni_calico.model.resources import Network, WorkloadEndpoint
from cni_calico.nodeagent.view.claims import is_claimed
from cni_calico.policy.confirmed import ClaimedEndpoint, ConfirmedAddresses, held_in_block, pod_claim


def claims_addresses(item: Versioned, endpoint: WorkloadEndpoint) -> bool:
    """Whether only the annotation of the endpoint's pod names its addresses."""
    pod = pod_of(item)
    return pod is not None and is_claimed(pod) and bool(endpoint.ip_networks)


def confirm(
    session: Session, claiming: Mapping[ResourceKey, WorkloadEndpoint], warn: Callable[[object], None]
) -> dict[ResourceKey, ClaimedEndpoint]:
    """The endpoints with those of their addresses that count."""
    known = ConfirmedAddresses()
    for key, record in claiming.items():
        known.put_claim(key, pod_claim(record))
    if claiming:
        _read_blocks(session, known, warn)
    found = {}
    for key, record in claiming.items():
        confirmed = known.confirmed(key)
        nets = tuple(net for net in record.ip_networks if net.network_address.packed in confirmed)
        found[key] = ClaimedEndpoint(record, nets)
    return found


def _read_blocks(session: Session, known: ConfirmedAddresses, warn: Callable[[object], None]) -> None:
    try:
        items = session.store.list(BlockList(holders=True), session.deadline).items
    except CalicoError as e:
        warn(f"IPAM's blocks cannot be read, so no address counts that only a pod's annotation names: {e}")
        return
    for item in items:
        if isinstance(item.key, BlockKey):
            try:
                known.put_block(item.key.cidr, held_in_block(decode_block(item.key, item.value)).holders)
            except CorruptRecord as e:
                warn(e)


def unconfirmed(endpoint: ClaimedEndpoint | None) -> tuple[Network, ...]:
    """The addresses that do not count; none for an endpoint that claims none."""
    return () if endpoint is None else tuple(n for n in endpoint.record.ip_networks if n not in endpoint.confirmed)


def describe_unconfirmed(name: str, networks: tuple[Network, ...]) -> str:
    listed = ", ".join(str(net.network_address) for net in networks)
    return (
        f"{name}: only its annotation names {listed}, which IPAM does not hold for it, so it is in no selector and no "
        "named port (on its own node it is, while that routes it there and IPAM holds it for nobody else)"
    )
