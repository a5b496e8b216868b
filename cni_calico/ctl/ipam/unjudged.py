"""PURE: addresses without attributes that nobody seems to have and the janitor does not judge, and who releases them.

Rule: the janitor judges what a pod or a node that is gone had. Which containers a node has is known there only, and an
allocation without attributes does not say of which node its container is. So these are only named: whoever knows that
nobody has them releases them with ``ipam release``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from cni_calico.ipam.consistency import Records, list_users
from cni_calico.ipam.lost.bare import Named, is_bare, is_container, outlives_its_pod, parse_bare_handle, suffixes
from cni_calico.ipam.lost.endpointed import Endpointed, endpointed
from cni_calico.model.resources import Address, Block

SHOWN = 100
_DEL = "only its container's DEL releases it"


@dataclass(frozen=True, slots=True)
class Unjudged:
    address: Address
    handle_id: str
    why: str  # who would have to know, and who releases it

    def __str__(self) -> str:
        return f"{self.address} (handle {self.handle_id}): {self.why}"


def find_unjudged(records: Records, *, knows_pods: bool, is_strict: Callable[[], bool]) -> tuple[Unjudged, ...]:
    """``knows_pods``: the endpoints are Kubernetes' pods; ``is_strict``: whether affinity is, asked once, if it
    matters.
    """
    nodes, held = {node.metadata.name for node in records.nodes}, []
    for block in records.blocks.values():
        for address, handle_id in _without_attributes(block):
            named = parse_bare_handle(handle_id)
            is_judged = named is not None and (block.node not in nodes or (bool(named.pod) and knows_pods))
            if not is_judged:
                held.append((block.node or "", address, handle_id, named))
    if not held:  # as in all newer clusters
        return ()
    everybody, users = endpointed(records.endpoints), list_users(records.endpoints, records.nodes)
    is_strict = cache(is_strict)
    return tuple(
        Unjudged(address, handle_id, _why(handle_id, named, node, bool(nodes - {node}) and not is_strict()))
        for node, address, handle_id, named in held
        if address not in users and not _may_be_of(everybody, handle_id, named)
    )


def _without_attributes(block: Block) -> Iterator[tuple[Address, str]]:
    for ordinal, index in enumerate(block.allocations):
        if index is None:
            continue
        attribute = block.attributes[index]
        handle_id = attribute.handle_id or ""
        if handle_id and is_bare(attribute.secondary) and not any(attribute.extra.values()):
            if is_container(handle_id.rpartition(".")[2]) or not outlives_its_pod(handle_id):
                yield block.cidr[ordinal], handle_id


def _may_be_of(everybody: Endpointed, handle_id: str, named: Named | None) -> bool:
    is_pods = named is not None and bool(named.pod) and (named.namespace, named.pod) in everybody.pods
    return is_pods or not everybody.containers.isdisjoint(suffixes(handle_id))


def _why(handle_id: str, named: Named | None, node: str, may_be_borrowed: bool) -> str:
    pod = f"{named.namespace}/{named.pod}" if named is not None and named.pod else ""
    either = f"if it is pod {pod}'s, a janitor that knows Kubernetes releases it; else " if pod else ""
    if may_be_borrowed:
        is_judged = bool(node) and is_container(handle_id.rpartition(".")[2])
        by_agent = f", or node {node}'s agent, if it has seen the container running there" if is_judged else ""
        return f"{either}it may be another node's container's, as affinity is not strict: {_DEL}{by_agent}"
    if not is_container(handle_id.rpartition(".")[2]):
        gc = f", and GC of the network that its handle begins with, on node {node}" if "." in handle_id and node else ""
        return f"{either}its handle is not certainly a container's ID: only who took it releases it{gc}"
    return f"only node {node} knows its container: GC there releases it, or its agent, if that sees the runtimes"


def render_unjudged(found: Sequence[Unjudged], *, every: bool) -> list[str]:
    """No line where there are none, as in all newer clusters."""
    if not found:
        return []
    shown = found if every else found[:SHOWN]
    lines = [
        f"Found {len(found)} addresses without attributes that nobody seems to have and the janitor does not judge:"
    ]
    lines += [f"  {one}" for one in shown]
    if len(shown) < len(found):
        lines.append(f"  and {len(found) - len(shown)} more: --show-problem-ips names each")
    return [*lines, "  Once you know that nobody has them: ipam check -o REPORT, ipam release --from-report=REPORT"]


def report_unjudged(found: Iterable[Unjudged]) -> list[dict[str, str]]:
    return [{"ip": str(one.address), "handle": one.handle_id, "reason": one.why} for one in found]
