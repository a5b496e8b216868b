"""``calicoctl ipam check``: inconsistencies, as text and as a report that ``ipam release`` accepts.

Rule: ipam/consistency.py finds the problems, this module puts them into words. The sections are in upstream's order.
What the janitor would release comes last and does not count as a problem, because it is released without any help.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from cni_calico import __version__
from cni_calico.ctl.ipam.departed import DepartedHere, find_departed_here, render_departed, report_departed
from cni_calico.ctl.ipam.lost import LostThings, find_lost, is_kubernetes, render_lost, report_lost
from cni_calico.ctl.ipam.records import read_cluster, read_items, read_records
from cni_calico.ctl.ipam.unjudged import Unjudged, find_unjudged, render_unjudged, report_unjudged
from cni_calico.ctl.output.files import write_file
from cni_calico.ctl.output.texts import render_json
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.consistency import Allocation, ConsistencyReport, Finding, Inconsistency, Records, check_records
from cni_calico.model.resources import Network

REPORT_VERSION = 1
_TOP_NODES = 20
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
    items = read_items(session)
    records = read_records(session, items)
    report = check_records(records)
    lost = find_lost(session, items, every=arguments.show_problem_ips or bool(arguments.report))
    unjudged, here = _unjudged(session, records), find_departed_here(records.endpoints, os.environ)
    spec, revision = read_cluster(session)
    document = {
        **build_report(report, spec, revision),
        "lost": report_lost(lost),
        "unasked": lost.unasked,
        "unjudged": report_unjudged(unjudged),
        "departed": report_departed(here),
    }
    if arguments.report:
        write_file(arguments.report, render_json(document))
    if arguments.output != TABLE:
        text = render_value(document, arguments.output)
    else:
        shown = {"show_all": arguments.show_all_ips, "show_problems": arguments.show_problem_ips}
        text = render_check(records, report, lost, unjudged, here, **shown)
        text += f"Report written to {arguments.report}\n" if arguments.report else ""
    if report.findings:
        raise CommandFailed("", output=text)  # the text has said everything
    return text


def text_of(session: Session) -> str:
    """What ``ipam check --show-problem-ips`` prints. Raises DatastoreError."""
    items = read_items(session)
    records = read_records(session, items)
    lost, unjudged = find_lost(session, items, every=True), _unjudged(session, records)
    here = find_departed_here(records.endpoints, os.environ)
    return render_check(records, check_records(records), lost, unjudged, here, show_problems=True)


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
    by_block: dict[Network, list[Allocation]] = {cidr: [] for cidr in records.blocks}
    for found in report.allocations:
        by_block[found.block].append(found)
    for cidr, mine in by_block.items():
        affinity = records.blocks[cidr].affinity or "<none>"
        lines.append(f" IPAM block {cidr} affinity={affinity}: {len(mine)} allocated")
        lines += [f"  {_describe(found)}" for found in mine] if show_all else []
    lines += [f"IPAM blocks record {len(report.allocations)} allocations.", ""]
    lines += ["Loading all IPAM pools...", *(f"  {pool.cidr}" for pool in records.pools if pool.usable)]
    lines += [f"Found {sum(pool.usable for pool in records.pools)} active IP pools.", ""]
    lines += [f"Loading all nodes and workload endpoints: {len(report.users)} IPs are in use.", ""]
    lines += [*_render_nodes(report.allocations), ""]
    lines += _render_findings(report, show_problems=show_problems)
    lines += [*render_lost(lost), *render_unjudged(unjudged, every=show_problems), *render_departed(here), ""]
    released = f", and {len(here.found)} to be released" if here.found else ""
    lines += [f"Check complete; found {len(report.findings)} problems{released}."]
    return "\n".join(lines) + "\n"


def _describe(found: Allocation) -> str:
    users = f" used by {', '.join(found.users)}" if found.users else ""
    return f"{found.address} handle={found.handle_id}{users}"


def _render_nodes(allocations: Iterable[Allocation]) -> list[str]:
    counts = Counter(found.attributes["node"] for found in allocations if "node" in found.attributes)
    lines = [f"Looking for top (up to {_TOP_NODES}) nodes by allocations..."]
    lines += [f"  {node} has {count} allocations" for node, count in counts.most_common(_TOP_NODES)]
    if counts:
        lines.append(f"Node with most allocations has {max(counts.values())}; median is {median(counts.values()):g}")
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
