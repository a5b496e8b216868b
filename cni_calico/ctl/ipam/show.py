"""``calicoctl ipam show`` and ``configure``: how full pools and blocks are, who has an address, the configuration."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address

from cni_calico.ctl.ipam.records import read_blocks, read_pools
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.ctl.tables import render_box
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned
from cni_calico.errors import InvalidConfig
from cni_calico.ipam.block import holder_of
from cni_calico.ipam.consistency import Allocation, describe_owner, list_allocations
from cni_calico.model.documents import codec
from cni_calico.model.documents.fields import Unknown, source_of
from cni_calico.model.keys import IPAMConfigKey
from cni_calico.model.resources import Address, Block, IPAMConfig, IPPool, Network

KUBEVIRT = "kubeVirtVMAddressPersistence"
PERSISTENCE = ("Enabled", "Disabled")
NEW_CONFIG = IPAMConfig(auto_allocate_blocks=True, extra={KUBEVIRT: "Enabled"})


def parse_address(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError as e:
        raise InvalidConfig(f"cannot read {text!r}: it is no IP address") from e


def show(session: Session, arguments: Namespace) -> str:
    if arguments.ip:
        return _show_address(session, parse_address(arguments.ip))
    if arguments.show_configuration:
        return _show_configuration(session)
    corrupt: list[tuple[str, str]] = []
    if arguments.show_borrowed:
        text = _show_borrowed(list(read_blocks(session, corrupt).values()))
    else:
        text = _read_usage(session, corrupt, with_blocks=arguments.show_blocks)
    for _, why in corrupt:
        arguments.note(why)
    return text


def render_usage(session: Session) -> str:
    """How full pools and blocks are. Raises DatastoreError."""
    return _read_usage(session, [], with_blocks=True)


def _read_usage(session: Session, corrupt: list[tuple[str, str]], *, with_blocks: bool) -> str:
    pools, blocks = read_pools(session, corrupt), list(read_blocks(session, corrupt).values())
    return _show_usage(pools, blocks, with_blocks=with_blocks)


# -- usage ------------------------------------------------------------------------------------------------------------


def _within(block: Block, pool: IPPool) -> bool:
    return block.cidr.version == pool.cidr.version and block.cidr.subnet_of(pool.cidr)  # type: ignore[arg-type]


def _usage_row(grouping: str, cidr: Network, used: int) -> list[str]:
    total = cidr.num_addresses
    free = total - used
    shown = str(total) if total < 10**15 else f"{total:.4e}"
    free_shown = str(free) if free < 10**15 else f"{free:.4e}"
    return [
        grouping,
        str(cidr),
        shown,
        f"{used} ({round(100 * used / total)}%)",
        f"{free_shown} ({round(100 * free / total)}%)",
    ]


def _used(block: Block) -> int:
    return sum(index is not None for index in block.allocations)


def _show_usage(pools: Sequence[IPPool], blocks: Sequence[Block], *, with_blocks: bool) -> str:
    rows: list[list[str]] = []
    grouped: set[Network] = set()
    for pool in sorted(pools, key=lambda p: (p.cidr.version, p.cidr.network_address)):
        mine = [block for block in blocks if _within(block, pool)]
        grouped.update(block.cidr for block in mine)
        rows.append(_usage_row("IP Pool", pool.cidr, sum(map(_used, mine))))
        if with_blocks:
            rows.extend(_usage_row("Block", block.cidr, _used(block)) for block in mine)
    strays = [block for block in blocks if block.cidr not in grouped]
    if with_blocks:
        rows.extend(_usage_row("Block without pool", block.cidr, _used(block)) for block in strays)
    return render_box(("GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS FREE"), rows, right=(2,))


def _show_borrowed(blocks: Sequence[Block]) -> str:
    rows = []
    for block in blocks:
        for found in list_allocations(block, {}):
            borrower = found.attributes.get("node")
            if block.node is not None and borrower and borrower != block.node:
                owner = describe_owner(found)
                rows.append([str(found.address), borrower, str(block.cidr), block.node, _type(found), owner])
    return render_box(("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO"), rows)


def _type(found: Allocation) -> str:
    return found.attributes.get("type") or ("pod" if found.attributes.get("pod") else "workload")


def _show_address(session: Session, address: Address) -> str:
    for block in read_blocks(session, []).values():
        if address.version == block.cidr.version and address in block.cidr:
            holder = holder_of(block, address)
            if holder is None:
                break
            lines = [f"IP {address} is in use", "Attributes:"]
            lines += [f"  {name}: {value}" for name, value in sorted(holder.secondary.items())]
            lines.append(f"Handle: {holder.handle_id or 'none'}")
            lines.append(f"Block: {block.cidr} ({block.affinity or 'belongs to nobody'})")
            return "\n".join(lines) + "\n"
    return f"{address} is not assigned\n"


# -- configuration ----------------------------------------------------------------------------------------------------


def _read_config(session: Session) -> IPAMConfig:
    found = session.store.get(IPAMConfigKey(), session.deadline)
    return NEW_CONFIG if found is None else codec.decode_ipam_config(IPAMConfigKey(), found.value)


def _show_configuration(session: Session) -> str:
    config = _read_config(session)
    rows = [
        ["StrictAffinity", str(config.strict_affinity).lower()],
        ["AutoAllocateBlocks", str(config.auto_allocate_blocks).lower()],
        ["MaxBlocksPerHost", str(config.max_blocks_per_host)],
        ["KubeVirtVMAddressPersistence", str(config.extra.get(KUBEVIRT, "Enabled"))],
    ]
    return render_box(("PROPERTY", "VALUE"), rows)


def configure(session: Session, arguments: Namespace) -> str:
    """Raises InvalidConfig, CommandFailed when strict affinity is asked for while addresses are borrowed."""
    changes: dict[str, bool | int] = {}
    kubevirt = arguments.kubevirt_ip_persistence
    if kubevirt not in (None, *PERSISTENCE):
        raise InvalidConfig("cannot configure IPAM: --kubevirt-ip-persistence must be Enabled or Disabled")
    if arguments.strict_affinity is not None:
        changes["strict_affinity"] = arguments.strict_affinity
    if arguments.max_blocks_per_host is not None:
        if arguments.max_blocks_per_host < 0:
            raise InvalidConfig("cannot configure IPAM: --max-blocks-per-host must not be negative")
        changes["max_blocks_per_host"] = arguments.max_blocks_per_host
    if not changes and kubevirt is None:
        raise InvalidConfig(
            "cannot configure IPAM: give --strict-affinity, --max-blocks-per-host or --kubevirt-ip-persistence"
        )
    if changes.get("strict_affinity") and not arguments.force:
        _require_nothing_borrowed(session)

    def change(current: Versioned | None) -> Document:
        if current is None:
            config = NEW_CONFIG
        else:
            config = codec.decode_ipam_config(IPAMConfigKey(), current.value)
        extra = config.extra
        if kubevirt is not None:
            extra = Unknown({**extra, KUBEVIRT: kubevirt}, source_of(extra))
        return codec.encode_ipam_config(replace(config, extra=extra, **changes))  # type: ignore[arg-type]

    update(session.store, IPAMConfigKey(), change, session.deadline)
    shown = {"strict_affinity": "StrictAffinity", "max_blocks_per_host": "MaxBlocksPerHost"}
    lines = [f"Successfully set {shown[name]} to: {str(value).lower()}\n" for name, value in changes.items()]
    lines += [] if kubevirt is None else [f"Successfully set KubeVirtVMAddressPersistence to: {kubevirt}\n"]
    return "".join(lines)


def _require_nothing_borrowed(session: Session) -> None:
    for block in read_blocks(session, []).values():
        for found in list_allocations(block, {}):
            borrower = found.attributes.get("node")
            if block.node is not None and borrower and borrower != block.node:
                failed = CommandFailed(f"cannot set StrictAffinity: {found.address} is borrowed by node {borrower}")
                failed.details = "see 'calicoctl ipam show --show-borrowed', or use --force"
                raise failed
