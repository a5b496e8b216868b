"""``calicoctl ipam release``: single addresses, and those that reports name as leaked. Rule: an address is released
only if its handle and sequence number are still those in the report, and, if several reports are given, only if it is
leaked in all of them. Because a new pod's address is allocated before its endpoint is written, reports made while the
cluster runs need --force.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from cni_calico.bounded import REPORT_BYTES, parse_json, read_text
from cni_calico.ctl.ipam.records import read_cluster
from cni_calico.ctl.ipam.show import parse_address
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.errors import AddressMismatch, InvalidConfig
from cni_calico.ipam.allocator import Allocator, Release
from cni_calico.model.keys import HandleKey


def release(session: Session, arguments: Namespace) -> str:
    if arguments.ip:
        return _release_address(session, arguments.ip)
    if arguments.from_report:
        return _release_reported(session, arguments.from_report, force=arguments.force)
    raise InvalidConfig("cannot release: give --ip or --from-report")


def _release_address(session: Session, text: str) -> str:
    address = parse_address(text)
    if not Allocator(session.store).release_addresses([address], session.deadline):
        raise CommandFailed(f"cannot release {address}: IP address {address} is not assigned")
    return f"Successfully released IP address {address}\n"


def _read_report(name: str) -> dict[str, Any]:
    try:
        report = parse_json(read_text(name, limit=REPORT_BYTES), name)
    except (OSError, ValueError) as e:
        raise InvalidConfig(f"cannot read report {name}: {getattr(e, 'strerror', None) or e}") from e
    if not isinstance(report, dict) or not isinstance(report.get("allocations"), dict):
        raise InvalidConfig(f"cannot read report {name}: it was not written by 'calicoctl ipam check -o'")
    return report


def _leaked(report: dict[str, Any], name: str) -> set[Release]:
    """The guarded releases of a report."""
    found = set()
    for entries in report["allocations"].values():
        for entry in entries if isinstance(entries, list) else ():
            if not isinstance(entry, dict) or not isinstance(entry.get("inUse"), bool):
                raise InvalidConfig(f"cannot read report {name}: {entry!r} is not an allocation")
            if not entry["inUse"]:
                address = parse_address(str(entry.get("ip")))
                found.add(Release(address, entry.get("handle"), entry.get("sequenceNumber")))
    return found


def _release_reported(session: Session, names: Iterable[str], *, force: bool) -> str:
    reports = {name: _read_report(name) for name in names}
    cluster, _ = read_cluster(session)
    for name, report in reports.items():
        if report.get("clusterGUID") != cluster.get("clusterGUID", "") and not force:
            raise InvalidConfig(f"cannot use report {name}: it is about another cluster", details="or use --force")
        if not report.get("datastoreLocked") and not force:
            raise InvalidConfig(
                f"cannot use report {name}: the datastore was not locked when it was made",
                details="run 'calicoctl datastore migrate lock' before the check, or use --force",
            )
    leaked = set.intersection(*(_leaked(report, name) for name, report in reports.items()))
    return _release_all(session, leaked) + _remove_handles(session, reports.values())


def _release_all(session: Session, leaked: set[Release]) -> str:
    allocator = Allocator(session.store)
    lines, released = [], 0
    for one in sorted(leaked, key=lambda one: (one.address.version, int(one.address))):
        try:
            released += len(allocator.release_addresses([one], session.deadline))
        except AddressMismatch as e:
            lines.append(f"Skipped {one.address}: {e}")
    lines.append(f"Released {released} IPs successfully")
    return "\n".join(lines) + "\n"


def _remove_handles(session: Session, reports: Iterable[dict[str, Any]]) -> str:
    """Release the handles that are empty in all reports, if they still hold no address."""
    removed = 0
    allocator = Allocator(session.store)
    for handle_id in sorted(set.intersection(*map(_empty_handles, reports))):
        if session.store.get(HandleKey(handle_id), session.deadline) is not None:
            allocator.release_handle(handle_id, session.deadline)
            removed += 1
    return f"Released {removed} handles without addresses\n" if removed else ""


def _empty_handles(report: dict[str, Any]) -> set[str]:
    entries = report.get("leakedHandles") or ()
    return {str(entry["handle"]) for entry in entries if isinstance(entry, dict) and "handle" in entry}
