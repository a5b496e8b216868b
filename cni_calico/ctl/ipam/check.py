"""``calicoctl ipam check``: inconsistencies, as text and as a report that ``ipam release`` accepts.

Rule: ipam/consistency.py finds the problems, this module puts them into words. The sections are in upstream's order.
What the janitor would release comes last and does not count as a problem, because it is released without any help.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

from cni_calico import __version__
from cni_calico.ctl.ipam.departed import DepartedHere, find_departed_here, render_departed, report_departed
from cni_calico.ctl.ipam.lost import LostThings, find_lost, is_kubernetes, render_lost, report_lost
from cni_calico.ctl.ipam.records import endpoints_on, read_cluster, read_items, read_records
from cni_calico.ctl.ipam.unjudged import Unjudged, find_unjudged, render_unjudged, report_unjudged
from cni_calico.ctl.output.files import write_file
from cni_calico.ctl.output.texts import render_json
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.deadline import ProgressDeadline
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.consistency import (
    Allocation,
    ConsistencyReport,
    Finding,
    Inconsistency,
    Records,
    check_records,
    list_allocations,
)

REPORT_VERSION = 1
_TOP_NODES = 20
_TOLD_EACH = 1_000  # records between two words about progress
_LEAKS = (Inconsistency.LEAKED, Inconsistency.NO_HANDLE_ID)
_UNKNOWN = (Inconsistency.OUTSIDE_POOLS,)
_BY_SECTION = (
    ("Scanning for IPs that are allocated but not actually in use...", _LEAKS,
     "Found {n} IPs that are allocated in IPAM but not actually in use."),
    ("Scanning for IPs that are in use by a workload or node but not allocated in IPAM...", _UNKNOWN,
     "Found {n} in-use IPs that are not in active IP pools."),
    ("", (Inconsistency.UNALLOCATED,),
     "Found {n} in-use IPs that are in active IP pools but have no corresponding IPAM allocation."),
    ("", (Inconsistency.DOUBLE,), "Found {n} IPs that are used more than once."),
    ("Scanning for IPAM handles with no matching IPs...", (Inconsistency.LEAKED_HANDLE,),
     "Found {n} handles with no matching IPs."),
    ("", (Inconsistency.HANDLE_COUNT,), "Found {n} handles that count wrong."),
    ("Scanning for IPs with missing handle...", (Inconsistency.MISSING_HANDLE,),
     "Found {n} handles mentioned in blocks with no matching handle resource."),
    ("Scanning blocks and their affinities...", (
        Inconsistency.NO_AFFINITY, Inconsistency.NO_BLOCK, Inconsistency.WRONG_AFFINITY, Inconsistency.TWO_AFFINITIES,
        Inconsistency.UNFINISHED,
        Inconsistency.UNKNOWN_NODE),
     "Found {n} blocks and affinities that do not match."),
    ("", (Inconsistency.BLOCK_OUTSIDE_POOLS,), "Found {n} blocks outside of any pool."),
    ("", (Inconsistency.LOST_ORDINAL,), "Found {n} blocks with addresses that are never given out."),
)  # fmt: skip


def check(session: Session, arguments: Namespace) -> str:
    """Raises CommandFailed if there are problems, DatastoreError, CalicoError if the report cannot be written."""
    every = arguments.show_problem_ips or bool(arguments.report)
    cluster = read_cluster(session)
    try:
        records, report, lost, unjudged, here = _judge(session, arguments.progress, every=every)
    finally:
        arguments.progress("")
    text = ""
    if arguments.report or arguments.output != TABLE:
        document = {
            **build_report(report, *cluster),
            "lost": report_lost(lost),
            "unasked": lost.unasked,
            "unjudged": report_unjudged(unjudged),
            "departed": report_departed(here),
        }
        if arguments.report:
            write_file(arguments.report, render_json(document))
        if arguments.output != TABLE:
            text = render_value(document, arguments.output)
    if arguments.output == TABLE:
        shown = {"show_all": arguments.show_all_ips, "show_problems": arguments.show_problem_ips}
        text = render_check(records, report, lost, unjudged, here, **shown)
        text += f"Report written to {arguments.report}\n" if arguments.report else ""
    if report.findings:
        raise CommandFailed("", output=text)  # the text has said everything
    return text


def text_of(session: Session) -> str:
    """What ``ipam check --show-problem-ips`` prints. Raises DatastoreError."""
    return render_check(*_judge(session, lambda text: None, every=True), show_problems=True)


def _judge(
    session: Session, progress: Callable[[str], None], *, every: bool
) -> tuple[Records, ConsistencyReport, LostThings, tuple[Unjudged, ...], DepartedHere]:
    """``progress`` is told what is being done; as long as there is some, the command's time does not run out. Raises
    DatastoreError.
    """
    patience = ProgressDeadline(session.deadline.require("read the addresses"))
    session, count = replace(session, deadline=patience), 0

    def note() -> None:
        nonlocal count
        if count % _TOLD_EACH == 0:
            patience.renew()
            progress(f"Reading, {count:,} records so far...")
        count += 1

    items = read_items(session, note)
    patience.renew()
    progress(f"Looking in {count:,} records for what nobody has...")
    lost = find_lost(session, items, every=every)  # first: it needs memory of its own, which is given back
    progress(f"Comparing {count:,} records...")
    records = read_records(session, items)
    report = check_records(records)
    patience.renew()
    here = find_departed_here(partial(endpoints_on, items), os.environ)
    return records, report, lost, _unjudged(session, records), here


def _unjudged(session: Session, records: Records) -> tuple[Unjudged, ...]:
    """Raises DatastoreError."""

    def is_strict() -> bool:
        try:
            config = Allocator(session.store).ledger(session.deadline).config()
        except CorruptRecord:
            return False
        return config is not None and config.strict_affinity

    return find_unjudged(records, knows_pods=is_kubernetes(session), is_strict=is_strict)


# -- as text ----------------------------------------------------------------------------------------------------------


def render_check(
    records: Records,
    report: ConsistencyReport,
    lost: LostThings,
    unjudged: Sequence[Unjudged],
    here: DepartedHere,
    *,
    show_all: bool = False,
    show_problems: bool = False,
) -> str:
    lines = ["Checking IPAM for inconsistencies...", "", "Loading all IPAM blocks..."]
    lines.append(f"Found {len(records.blocks)} IPAM blocks.")
    for cidr, taken in report.taken.items():
        block = records.blocks[cidr]
        lines.append(f" IPAM block {cidr} affinity={block.affinity or '<none>'}: {taken} allocated")
        lines += [f"  {_describe(found)}" for found in list_allocations(block, report.users)] if show_all else []
    lines += [f"IPAM blocks record {sum(report.taken.values())} allocations.", ""]
    lines += ["Loading all IPAM pools...", *(f"  {pool.cidr}" for pool in records.pools if pool.usable)]
    lines += [f"Found {sum(pool.usable for pool in records.pools)} active IP pools.", ""]
    lines += [f"Loading all nodes and workload endpoints: {len(report.users)} IPs are in use.", ""]
    lines += [*_render_nodes(report.on_nodes), ""]
    lines += _render_findings(report, show_problems=show_problems)
    lines += [*render_lost(lost), *render_unjudged(unjudged, every=show_problems), *render_departed(here), ""]
    released = f", and {len(here.found)} to be released" if here.found else ""
    lines += [f"Check complete; found {len(report.findings)} problems{released}."]
    return "\n".join(lines) + "\n"


def _describe(found: Allocation) -> str:
    users = f" used by {', '.join(found.users)}" if found.users else ""
    return f"{found.address} handle={found.handle_id}{users}"


def _render_nodes(on_nodes: Mapping[str, int]) -> list[str]:
    lines = [f"Looking for top (up to {_TOP_NODES}) nodes by allocations..."]
    top = sorted(on_nodes.items(), key=lambda item: -item[1])[:_TOP_NODES]
    lines += [f"  {node} has {count} allocations" for node, count in top]
    if on_nodes:
        most = f"Node with most allocations has {max(on_nodes.values())}"
        lines.append(f"{most}; median is {median(on_nodes.values()):g}")
    return lines


def _render_findings(report: ConsistencyReport, *, show_problems: bool) -> list[str]:
    lines: list[str] = []
    for head, problems, found in _BY_SECTION:
        findings = report.of(*problems)
        lines += [head] if head else []
        lines.append(found.format(n=len(findings)))
        details = show_problems or problems[0] not in (*_LEAKS, *_UNKNOWN, Inconsistency.UNALLOCATED)
        lines += [f"  {finding.text}" for finding in findings] if details else []
    corrupt = report.of(Inconsistency.CORRUPT)
    lines.append(f"Found {len(corrupt)} records that cannot be read.")
    lines += [f"  {finding.text}" for finding in corrupt]
    return lines


# -- as a report ------------------------------------------------------------------------------------------------------


def build_report(report: ConsistencyReport, cluster: dict[str, Any], revision: str) -> dict[str, Any]:
    """The report for ``ipam release --from-report``. ``datastoreLocked``: nothing could change while it was made."""
    leaked = {finding.address for finding in report.of(Inconsistency.LEAKED)}
    return {
        "version": __version__,
        "reportVersion": REPORT_VERSION,
        "clusterGUID": cluster.get("clusterGUID", ""),
        "clusterType": cluster.get("clusterType", ""),
        "clusterInfoRevision": revision,
        "datastoreLocked": cluster.get("datastoreReady") is False,
        "allocations": {
            str(found.address): [_report_allocation(found, in_use=found.address not in leaked)]
            for found in report.allocations
        },
        "leakedHandles": [{"handle": finding.handle_id} for finding in report.of(Inconsistency.LEAKED_HANDLE)],
        "problems": [_report_finding(finding) for finding in report.findings],
    }


def _report_allocation(found: Allocation, *, in_use: bool) -> dict[str, Any]:
    return {
        "ip": str(found.address),
        "block": str(found.block),
        "ordinal": found.ordinal,
        "handle": found.handle_id,
        "sequenceNumber": found.sequence_number,
        "attributes": dict(found.attributes),
        "inUse": in_use,
        "owners": list(found.users),
    }


def _report_finding(finding: Finding) -> dict[str, Any]:
    body = {"problem": str(finding.problem), "subject": finding.subject, "text": finding.text}
    for name, value in (("ip", finding.address), ("block", finding.block), ("handle", finding.handle_id)):
        if value is not None:
            body[name] = str(value)
    return body
