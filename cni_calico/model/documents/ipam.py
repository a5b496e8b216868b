"""PURE: blocks, affinities, handles and the IPAM configuration from and to their etcd documents.

Rule: the time is linear in the number of addresses, and loops over them are left to built-ins, because these functions
run in every ADD. A decoded block is safe to allocate from: no free ordinal is out of range, listed twice or taken.
"""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from cni_calico.model.documents.fields import (
    JSON,
    Field,
    Table,
    Unknown,
    Wrong,
    attributes_of,
    decode_fields,
    encode_fields,
    flag,
    parse_bool,
    parse_int,
    parse_list,
    parse_object,
    parse_text,
    parse_text_map,
    source_of,
    without_zone,
)
from cni_calico.model.resources import Affinity, Attribute, Block, Extra, Handle, IPAMConfig, Network

_BLOCK_FIELDS = (
    "cidr",
    "affinity",
    "affinity_claim_time",
    "allocations",
    "unallocated",
    "attributes",
    "sequenceNumber",
    "sequenceNumberForAllocation",
    "deleted",
)
_BLOCK_FIELD_SET = frozenset(_BLOCK_FIELDS)
_ATTRIBUTE_FIELDS = frozenset(("handle_id", "secondary"))
_INT = frozenset((int,))
_DIGITS = 10  # more than an ordinal has; Python refuses to convert thousands of them
_INT_OR_NONE = frozenset((int, type(None)))
_NONE = frozenset((None,))
_NOTHING: Extra = {}


# -- blocks -----------------------------------------------------------------------------------------------------------


def _parse_attribute(raw: Any, at: str) -> Attribute:
    if type(raw) is not dict:
        parse_object(raw, at)
    handle, secondary = raw.get("handle_id"), raw.get("secondary")
    if handle is not None and type(handle) is not str:
        parse_text(handle, f"{at}.handle_id")
    if secondary is not None:
        if type(secondary) is not dict or not all(type(v) is str for v in secondary.values()):
            parse_text_map(secondary, f"{at}.secondary")
    if raw.keys() <= _ATTRIBUTE_FIELDS and (secondary or "secondary" not in raw) and (handle or "handle_id" not in raw):
        return Attribute(handle, secondary or _NOTHING)
    extra = Unknown({k: v for k, v in raw.items() if k not in _ATTRIBUTE_FIELDS}, raw)
    return Attribute(handle, secondary or _NOTHING, extra)


def _parse_allocations(raw: Any, size: int, attributes: int) -> tuple[int | None, ...]:
    allocations = tuple(parse_list(raw, "allocations"))
    if len(allocations) != size:
        raise Wrong("allocations", f"one entry for each of {size} addresses", f"{len(allocations)} entries")
    expected = "an index into attributes or null"
    if not _INT_OR_NONE.issuperset(map(type, allocations)):
        for ordinal, index in enumerate(allocations):
            if type(index) not in _INT_OR_NONE:
                raise Wrong(f"allocations[{ordinal}]", expected, index)
    for index in set(allocations) - _NONE:
        if not 0 <= index < attributes:
            raise Wrong(f"allocations[{allocations.index(index)}]", expected, index)
    return allocations


def _parse_unallocated(raw: Any, allocations: tuple[int | None, ...]) -> tuple[int, ...]:
    ordinals = tuple(parse_list(raw, "unallocated"))
    fine = _INT.issuperset(map(type, ordinals)) and (
        not ordinals
        or (
            min(ordinals) >= 0
            and max(ordinals) < len(allocations)
            and len(set(ordinals)) == len(ordinals)
            and _NONE.issuperset(map(allocations.__getitem__, ordinals))
        )
    )
    if fine:
        return ordinals
    seen: set[int] = set()
    for i, ordinal in enumerate(ordinals):
        if type(ordinal) is not int or not 0 <= ordinal < len(allocations):
            raise Wrong(f"unallocated[{i}]", f"an ordinal from 0 to {len(allocations) - 1}", ordinal)
        if ordinal in seen:
            raise Wrong(f"unallocated[{i}]", "an ordinal that is not listed before", ordinal)
        if allocations[ordinal] is not None:
            raise Wrong(f"unallocated[{i}]", "an ordinal that is free in allocations", ordinal)
        seen.add(ordinal)
    raise AssertionError("unreachable: the fast check refused what the slow one accepts")


def _parse_sequences(raw: Any) -> dict[int, int]:
    at = "sequenceNumberForAllocation"
    numbers = parse_object(raw, at)
    if not _INT.issuperset(map(type, numbers.values())):
        for ordinal, number in numbers.items():
            parse_int(number, f"{at}.{ordinal}")
    for ordinal in numbers:
        if not ordinal.isdecimal() or len(ordinal) > _DIGITS or str(int(ordinal)) != ordinal:
            raise Wrong(at, "ordinals as its keys", ordinal)
    return {int(ordinal): number for ordinal, number in numbers.items()}


def _parse_affinity_of(raw: JSON) -> str | None:
    """The affinity; old blocks have ``hostAffinity`` instead."""
    affinity = raw.get("affinity")
    if affinity is not None:
        return parse_text(affinity, "affinity")
    host = raw.get("hostAffinity")
    return None if host is None else "host:" + parse_text(host, "hostAffinity")


def _remembered(raw: JSON) -> Extra:
    """The unknown fields; their source also has the known fields that a plain encoding would not reproduce."""
    unknown = {k: v for k, v in raw.items() if k not in _BLOCK_FIELD_SET}
    odd: dict[str, Any] = {}
    for name in _BLOCK_FIELDS:
        if name not in raw:
            if name != "affinity_claim_time":
                odd[name] = _ABSENT
        elif raw[name] is None and (name != "affinity" or "hostAffinity" in raw):
            odd[name] = None
    return Unknown(unknown, odd or None) if unknown or odd else _NOTHING


class _Absent:
    """Marks in an ``Unknown.source`` that a field was absent."""


_ABSENT = _Absent()


def _given(raw: JSON, name: str, default: Any) -> Any:
    value = raw.get(name)
    return default if value is None else value


def _parse_block_cidr(raw: Any, at: str) -> Network:
    try:
        return ip_network(without_zone(parse_text(raw, at)))
    except ValueError as e:
        raise Wrong(at, "the network of a block", raw) from e


def read_block(raw: JSON) -> Block:
    """Raises Wrong."""
    cidr = _parse_block_cidr(raw.get("cidr"), "cidr")
    attributes = tuple(
        _parse_attribute(item, f"attributes[{i}]")
        for i, item in enumerate(parse_list(_given(raw, "attributes", ()), "attributes"))
    )
    allocations = _parse_allocations(_given(raw, "allocations", ()), cidr.num_addresses, len(attributes))
    return Block(
        cidr=cidr,
        affinity=_parse_affinity_of(raw),
        allocations=allocations,
        unallocated=_parse_unallocated(_given(raw, "unallocated", ()), allocations),
        attributes=attributes,
        sequence_number=parse_int(_given(raw, "sequenceNumber", 0), "sequenceNumber"),
        sequence_for=_parse_sequences(_given(raw, "sequenceNumberForAllocation", {})),
        affinity_claim_time=parse_text(_given(raw, "affinity_claim_time", ""), "affinity_claim_time"),
        deleted=parse_bool(_given(raw, "deleted", False), "deleted"),
        extra=_remembered(raw),
    )


def _render_attribute(attribute: Attribute) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if attribute.handle_id is not None:
        out["handle_id"] = attribute.handle_id
    if attribute.secondary:
        out["secondary"] = attribute.secondary
    if attribute.extra is not _NOTHING:
        out.update(attribute.extra)
        source = source_of(attribute.extra) or _NOTHING
        if attribute.handle_id is None and "handle_id" in source:
            out["handle_id"] = None
        if not attribute.secondary and "secondary" in source:
            out["secondary"] = source["secondary"]
    return out


def encode_block(block: Block) -> dict[str, Any]:
    out: dict[str, Any] = {"cidr": str(block.cidr), "affinity": block.affinity}
    if block.affinity_claim_time:
        out["affinity_claim_time"] = block.affinity_claim_time
    out["allocations"] = list(block.allocations)
    out["unallocated"] = list(block.unallocated)
    out["attributes"] = list(map(_render_attribute, block.attributes))
    out["sequenceNumber"] = block.sequence_number
    out["sequenceNumberForAllocation"] = {str(ordinal): number for ordinal, number in block.sequence_for.items()}
    out["deleted"] = block.deleted
    if block.extra is not _NOTHING:
        out.update(block.extra)
        _restore(out, block)
    return out


def _restore(out: dict[str, Any], block: Block) -> None:
    """Put absent and null fields back as they were read, if they still mean the same."""
    odd = source_of(block.extra) or _NOTHING
    for name, raw in odd.items():
        if name != "affinity" and not out.get(name):
            _restore_field(out, name, raw)
    host = out.get("hostAffinity")
    if host is None:
        if block.affinity is None and "affinity" in odd:
            _restore_field(out, "affinity", odd["affinity"])
    elif "affinity" in odd and block.affinity == f"host:{host}":
        _restore_field(out, "affinity", odd["affinity"])
    elif "affinity" in odd or block.affinity is None:
        # readers trust hostAffinity, so it must be removed together with the affinity that it repeats
        del out["hostAffinity"]


def _restore_field(out: dict[str, Any], name: str, raw: Any) -> None:
    if raw is _ABSENT:
        out.pop(name, None)
    else:
        out[name] = raw


# -- affinities, handles, configuration -------------------------------------------------------------------------------


def _parse_counts(raw: Any, at: str) -> dict[Network, int]:
    counts: dict[Network, int] = {}
    for cidr, number in parse_object(raw, at).items():
        try:
            network = ip_network(without_zone(cidr))
        except ValueError as e:
            raise Wrong(at, "blocks in CIDR notation as its keys", cidr) from e
        counts[network] = parse_int(number, f'{at}["{cidr}"]')
    return counts


def _render_counts(counts: Any) -> dict[str, int]:
    return {str(network): number for network, number in counts.items()}


AFFINITY: Table = (
    Field("state", "state", parse_text, "", always=True),
    Field("deleted", "deleted", parse_bool, False, always=True),
)
HANDLE: Table = (
    Field("block", "blocks", _parse_counts, {}, _render_counts, always=True),
    Field("deleted", "deleted", parse_bool, False, always=True),
)
IPAM_CONFIG: Table = (
    flag("strict_affinity", "strict_affinity"),
    flag("auto_allocate_blocks", "auto_allocate_blocks"),
    Field("maxBlocksPerHost", "max_blocks_per_host", parse_int, 0),
)


def read_affinity(raw: JSON) -> Affinity:
    values, extra = decode_fields(raw, AFFINITY, "")
    return Affinity(**values, extra=extra)


def read_handle(raw: JSON) -> Handle:
    values, extra = decode_fields(raw, HANDLE, "")
    return Handle(**values, extra=extra)


def read_ipam_config(raw: JSON) -> IPAMConfig:
    values, extra = decode_fields(raw, IPAM_CONFIG, "")
    return IPAMConfig(**values, extra=extra)


def encode_affinity(affinity: Affinity) -> dict[str, Any]:
    return encode_fields(attributes_of(affinity, AFFINITY), AFFINITY, affinity.extra)


def encode_handle(handle: Handle) -> dict[str, Any]:
    return encode_fields(attributes_of(handle, HANDLE), HANDLE, handle.extra)


def encode_ipam_config(config: IPAMConfig) -> dict[str, Any]:
    return encode_fields(attributes_of(config, IPAM_CONFIG), IPAM_CONFIG, config.extra)
