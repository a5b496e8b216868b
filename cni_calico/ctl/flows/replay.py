"""``calicoctl policy replay``: what a change of policy would have done to recorded flows.

Rule: what differs from what was recorded without any change is told apart: records and policy have changed since. The
exit status is 0 if nothing that was allowed would be denied, 1 if something would, 2 for trouble.
"""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cni_calico.ctl.flows.places import open_place
from cni_calico.ctl.flows.show import describe_incomplete, describe_losses
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.output.escaping import shown_lines
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.diff import DIFFERS, TROUBLE
from cni_calico.ctl.policy.proposed import read_proposed
from cni_calico.ctl.policy.replayed import Replay, ReplayedRow, describe_judged
from cni_calico.ctl.policy.review import Review, ReviewRow, ReviewSection
from cni_calico.ctl.policy.review_file import require_fitting_page, write_review
from cni_calico.ctl.policy.told_labels import told_labels_for
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig
from cni_calico.flows.query import FlowQuery
from cni_calico.regular import open_regular

_LINE, _MOST_ROWS, _DAY_S = 1 << 20, 200, 86400.0
_HEAD = "Network sets and services are as now, labels as recorded."
_JUDGED_BY = {"labels": "recorded", "networkSets": "now", "services": "now"}


def replay(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises InvalidConfig, and CommandFailed with what changes."""
    if not arguments.overlay and not arguments.without:
        raise InvalidConfig("cannot replay: name the change with --with FILE or DIR, or --without KIND/NAME")
    require_fitting_page(arguments)
    require_one_place(arguments)
    if arguments.endpoints and not arguments.directory:
        raise InvalidConfig("cannot replay: --endpoints is for --dir; without it the datastore has the endpoints")
    if arguments.directory:
        change = read_proposed(None, arguments)
    else:
        with open_session(arguments, environ) as session:
            change = read_proposed(session, arguments)
    found = Replay(change.records, change.before, change.after, change.hosts, told_labels_for(change))
    uncertain = list(change.uncertain)
    lost = 0
    for document in read_flows(arguments, environ):
        if "end" in document:
            uncertain += describe_incomplete(document)
            for loss in describe_losses(document.get("lost", ())):
                arguments.warn(loss)
            continue
        if "verdict" in document:
            found.add(document)
        elif "lost" in document:
            lost += int(document["lost"])
    found.finish(change)
    if lost:
        found.uncertain["not in any line: too many different ones, or lost"] += lost
    rows = [row for row in _sorted(found.changed.values()) if row.after.denied or arguments.any]
    if arguments.html:
        text = write_review(arguments, _review(found, rows, uncertain, arguments))
    else:
        text = _render(found, rows, uncertain, arguments)
    status = TROUBLE if uncertain else DIFFERS if rows else 0
    if not status:
        return text
    raise CommandFailed("", output=text, status=status)


def _sorted(rows: Iterable[ReplayedRow]) -> list[ReplayedRow]:
    return sorted(
        rows, key=lambda row: (not row.after.denied, -row.connections, row.source, row.destination, row.traffic)
    )


# -- in ---------------------------------------------------------------------------------------------------------------


def require_one_place(arguments: Namespace) -> None:
    """What chooses among flows is a question to recorders; those of files all count. Raises InvalidConfig."""
    options = {"--since": arguments.since is not None, "--host": arguments.host, "--node": bool(arguments.nodes)}
    chosen = [name for name, is_given in options.items() if is_given]
    if arguments.flows and chosen:
        raise InvalidConfig(
            f"{' and '.join(chosen)} and --flows do not go together: of a file all flows count",
            details="choose when it is written, such as with 'calicoctl flows --aggregate --since 1h -o jsonl'",
        )


def read_flows(arguments: Namespace, environ: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Of files, else of all nodes or this host, as ``calicoctl flows`` asks."""
    if arguments.flows:
        for name in arguments.flows:
            yield from _of_file(name)
        return
    query = FlowQuery((), since=time.time() - (_DAY_S if arguments.since is None else arguments.since), aggregate=True)
    yield from open_place(arguments, environ).ask(query, arguments.timeout)


def _of_file(name: str) -> Iterator[dict[str, Any]]:
    """A line for each flow, as ``calicoctl flows --aggregate -o jsonl`` writes it."""
    number = 0
    try:
        with open(open_regular(name), "rb") as file:
            while line := file.readline(_LINE):
                number += 1
                document = json.loads(line)
                if not isinstance(document, dict):
                    raise ValueError
                yield document
    except (ValueError, RecursionError, OSError) as e:
        why = str(e.strerror) if isinstance(e, OSError) else f"line {number} is no flow"
        raise InvalidConfig(
            f"cannot read {name}: {why}", details="write it with 'calicoctl flows --aggregate --since 24h -o jsonl'"
        ) from e


# -- out --------------------------------------------------------------------------------------------------------------


def _render(found: Replay, rows: list[ReplayedRow], uncertain: list[str], arguments: Namespace) -> str:
    drifted = _sorted(found.drifted.values())
    if arguments.output != TABLE:
        document = {
            "judgedBy": _JUDGED_BY,
            "changes": [_document(row) for row in rows],
            "changedSince": [_document(row) for row in drifted],
            "unchanged": found.same,
            "notByPolicy": found.others,
            "uncertain": dict(found.uncertain),
            "unreadable": uncertain,
            "byLabelsOfNow": found.of_now,
        }
        return render_value(document, arguments.output)
    lines = [_head(found), "", *_lines(rows)]
    if drifted:
        lines += [*([""] if rows else []), "Records and policy have changed since these were recorded:"]
        lines += [f"  {line}" for line in _lines(drifted)]
    lines += [""] if rows or drifted else []
    lines += [f"Uncertain: {one}" for one in _uncertain(found, uncertain)]
    lines.append(_summary(found, rows, arguments))
    return shown_lines("\n".join(lines) + "\n")


def _head(found: Replay) -> str:
    if not found.of_now:
        return _HEAD
    return f"{_HEAD} Of {found.of_now} connections those of an end were not recorded: they are those of now."


def _uncertain(found: Replay, uncertain: list[str]) -> list[str]:
    return [*(f"{number} connections: {why}" for why, number in sorted(found.uncertain.items())), *uncertain]


def _summary(found: Replay, rows: list[ReplayedRow], arguments: Namespace) -> str:
    if not (found.changed or found.drifted or found.same or found.others or found.uncertain):
        return "No flow was recorded: nothing was judged."
    changed = sum(row.connections for row in rows)
    what = "connections would be decided otherwise" if arguments.any else "connections would be denied"
    return f"{changed} {what}, {found.same} as they were."


def _review(found: Replay, rows: list[ReplayedRow], uncertain: list[str], arguments: Namespace) -> Review:
    """For a page."""
    return Review(
        "What a change would have done to recorded flows",
        f"{_head(found)} {_summary(found, rows, arguments)}",
        (
            ReviewSection("Uncertain", sentences=_uncertain(found, uncertain)),
            ReviewSection("Would be denied", [_review_row(row) for row in rows if row.after.denied]),
            ReviewSection("Would be allowed", [_review_row(row) for row in rows if not row.after.denied]),
            ReviewSection(
                "Records and policy have changed since these were recorded",
                [_review_row(row) for row in _sorted(found.drifted.values())],
            ),
        ),
    )


def _review_row(row: ReplayedRow) -> ReviewRow:
    note = f"{row.connections} connection{'' if row.connections == 1 else 's'}, last {row.last}"
    verdicts = describe_judged(row.before), describe_judged(row.after)
    return ReviewRow(row.source, row.destination, row.traffic, *verdicts, note, row.after.denied)


def _lines(rows: list[ReplayedRow]) -> Iterator[str]:
    for row in rows[:_MOST_ROWS]:
        verdicts = f"{describe_judged(row.before)}  ->  {describe_judged(row.after)}"
        yield f"{row.source} -> {row.destination}  {row.traffic}  {verdicts}"
        yield f"    {row.connections} connection{'' if row.connections == 1 else 's'}, last {row.last}"
    if len(rows) > _MOST_ROWS:
        yield f"... and {len(rows) - _MOST_ROWS} more; -o json has all of them"


def _document(row: ReplayedRow) -> dict[str, Any]:
    return {
        **{"from": row.source, "to": row.destination, "traffic": row.traffic},
        **{"before": describe_judged(row.before), "after": describe_judged(row.after)},
        **{"connections": row.connections, "last": row.last},
    }
