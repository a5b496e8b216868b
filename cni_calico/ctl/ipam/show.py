"""``calicoctl ipam show`` and ``configure``: how full pools and blocks are, who has an address, the configuration."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

from cni_calico.ctl.ipam.records import read_blocks, read_pools
from cni_calico.ctl.ipam.usage import find_borrowed, find_holder, measure_usage
from cni_calico.ctl.output.looks import PLAIN, PlainLook
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned
from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.ipam.unusable import describe_unusable
from cni_calico.model.documents import codec
from cni_calico.model.documents.fields import Unknown, source_of
from cni_calico.model.identity import container_name
from cni_calico.model.keys import IPAMConfigKey, ResourceKey, endpoints_of_node
from cni_calico.model.resources import Address, IPAMConfig

KUBEVIRT = "kubeVirtVMAddressPersistence"
PERSISTENCE = ("Enabled", "Disabled")
NEW_CONFIG = IPAMConfig(auto_allocate_blocks=True, extra={KUBEVIRT: "Enabled"})


def parse_address(text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError as e:
        raise InvalidConfig(f"cannot read {text!r}: it is not an IP address") from e


def show(session: Session, arguments: Namespace) -> str:
    if arguments.ip:
        address = parse_address(arguments.ip)
        holder = find_holder(list(read_blocks(session, []).values()), address)
        if name := _read_container(session, holder, address):
            holder = {**holder, "container": name}
        return _render_holder(holder) if arguments.output == TABLE else render_value(holder, arguments.output)
    if arguments.show_configuration:
        settings = _read_settings(session)
        is_table = arguments.output == TABLE
        return _render_settings(settings, arguments.look) if is_table else render_value(settings, arguments.output)
    corrupt: list[tuple[str, str]] = []
    if arguments.show_borrowed:
        borrowed = find_borrowed(list(read_blocks(session, corrupt).values()))
        found: Mapping[str, Any] = {"borrowed": borrowed}
        table = _render_borrowed(borrowed, arguments.look)
        nothing = "" if borrowed else "No address is borrowed."
    else:
        pools, blocks = read_pools(session, corrupt), list(read_blocks(session, corrupt).values())
        found = measure_usage(pools, blocks)
        for sentence in describe_unusable(pools, (block.cidr for block in blocks)).values():
            arguments.warn(sentence)
        table = _render_usage(found, with_blocks=arguments.show_blocks, look=arguments.look)
        nothing = "" if found["pools"] else "There is no IP pool; make one with 'calicoctl apply'."
    for why in [*(why for _, why in corrupt), *filter(None, [nothing])]:
        arguments.note(why)
    return table if arguments.output == TABLE else render_value(found, arguments.output)


def _read_container(session: Session, holder: Mapping[str, Any], address: Address) -> str:
    """What people call the container outside Kubernetes that has the address; "" if none has, or its name is not known.
    Raises DatastoreError.
    """
    attributes = holder.get("attributes") or {}
    node = attributes.get("node")
    if not node or "pod" in attributes or "type" in attributes:
        return ""
    for item in session.store.list(endpoints_of_node(node), session.deadline).items:
        try:
            record = codec.decode_endpoint(item.key, item.value) if isinstance(item.key, ResourceKey) else None
        except CorruptRecord:
            continue  # ipam check names it
        if record is not None and any(address in net for net in record.ip_networks):
            return container_name(record)
    return ""


def render_usage(session: Session) -> str:
    """How full pools and blocks are. Raises DatastoreError."""
    usage = measure_usage(read_pools(session, []), list(read_blocks(session, []).values()))
    return _render_usage(usage, with_blocks=True)


# -- tables -----------------------------------------------------------------------------------------------------------


def _usage_row(grouping: str, counted: Mapping[str, Any]) -> list[str]:
    total, used, free = counted["total"], counted["used"], counted["free"]
    shown = str(total) if total < 10**15 else f"{total:.4e}"
    free_shown = str(free) if free < 10**15 else f"{free:.4e}"
    return [
        grouping,
        str(counted["cidr"]),
        shown,
        f"{used} ({round(100 * used / total)}%)",
        f"{free_shown} ({round(100 * free / total)}%)",
    ]


def _render_usage(usage: Mapping[str, Any], *, with_blocks: bool, look: PlainLook = PLAIN) -> str:
    rows: list[list[str]] = []
    for pool in usage["pools"]:
        rows.append(_usage_row("IP Pool", pool))
        if with_blocks:
            rows.extend(_usage_row("Block", block) for block in pool["blocks"])
    if with_blocks:
        rows.extend(_usage_row("Block without pool", block) for block in usage["blocksWithoutPool"])
    return look.box(("GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS FREE"), rows, right=(2,))


def _render_borrowed(borrowed: Sequence[Mapping[str, str]], look: PlainLook) -> str:
    headings = ("IP", "BORROWING-NODE", "BLOCK", "BLOCK OWNER", "TYPE", "ALLOCATED-TO")
    fields = ("ip", "borrowingNode", "block", "blockOwner", "type", "allocatedTo")
    return look.box(headings, [[row[field] for field in fields] for row in borrowed])


def _render_holder(holder: Mapping[str, Any]) -> str:
    if not holder["assigned"]:
        return f"{holder['ip']} is not assigned\n"
    lines = [f"IP {holder['ip']} is in use", "Attributes:"]
    lines += [f"  {name}: {value}" for name, value in holder["attributes"].items()]
    if "container" in holder:
        lines.append(f"Container: {holder['container']}")
    lines.append(f"Handle: {holder['handle'] or 'none'}")
    lines.append(f"Block: {holder['block']} ({holder['affinity'] or 'belongs to nobody'})")
    return "\n".join(lines) + "\n"


# -- configuration ----------------------------------------------------------------------------------------------------


def _read_config(session: Session) -> IPAMConfig:
    found = session.store.get(IPAMConfigKey(), session.deadline)
    return NEW_CONFIG if found is None else codec.decode_ipam_config(IPAMConfigKey(), found.value)


def _read_settings(session: Session) -> dict[str, bool | int | str]:
    config = _read_config(session)
    return {
        "StrictAffinity": config.strict_affinity,
        "AutoAllocateBlocks": config.auto_allocate_blocks,
        "MaxBlocksPerHost": config.max_blocks_per_host,
        "KubeVirtVMAddressPersistence": str(config.extra.get(KUBEVIRT, "Enabled")),
    }


def _render_settings(settings: Mapping[str, bool | int | str], look: PlainLook) -> str:
    rows = [[name, str(value).lower() if isinstance(value, bool) else str(value)] for name, value in settings.items()]
    return look.box(("PROPERTY", "VALUE"), rows)


def configure(session: Session, arguments: Namespace) -> str:
    """Raises InvalidConfig, CommandFailed if strict affinity is asked for while addresses are borrowed."""
    changes: dict[str, Any] = {}
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
        return codec.encode_ipam_config(replace(config, extra=extra, **changes))

    update(session.store, IPAMConfigKey(), change, session.deadline)
    shown = {"strict_affinity": "StrictAffinity", "max_blocks_per_host": "MaxBlocksPerHost"}
    lines = [f"Successfully set {shown[name]} to: {str(value).lower()}\n" for name, value in changes.items()]
    lines += [] if kubevirt is None else [f"Successfully set KubeVirtVMAddressPersistence to: {kubevirt}\n"]
    return "".join(lines)


def _require_nothing_borrowed(session: Session) -> None:
    for found in find_borrowed(list(read_blocks(session, []).values())):
        failed = CommandFailed(f"cannot set StrictAffinity: {found['ip']} is borrowed by node {found['borrowingNode']}")
        failed.details = "see 'calicoctl ipam show --show-borrowed', or use --force"
        raise failed
