"""``calicoctl policy diff``: whose connections a change of policy would allow or deny, before it is applied.

Rule: every pair of ends, every port and protocol is compared, not only traffic that was seen. The exit status is
kubectl diff's: 0 nothing, 1 something, 2 trouble, and also 2 if not everything could be judged.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.opening import open_session
from cni_calico.ctl.output.escaping import shown_lines
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.changed_rows import ChangedRow, changed_rows, describe_decider, describe_decision
from cni_calico.ctl.policy.end_names import EndNames, NamedEnds
from cni_calico.ctl.policy.findings import ChangeFinding, find_in_change
from cni_calico.ctl.policy.other_end import describe_other_end
from cni_calico.ctl.policy.proposed import ProposedChange, read_proposed
from cni_calico.ctl.policy.review import Review, ReviewRow, ReviewSection
from cni_calico.ctl.policy.review_file import require_fitting_page, write_review
from cni_calico.ctl.policy.seen_rows import SeenRows
from cni_calico.ctl.policy.told_labels import told_labels_for
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig
from cni_calico.flows.query import ONLY_DENIED
from cni_calico.model.documents.codec import describe
from cni_calico.policy.judge.worlds import WorldPair

DIFFERS, TROUBLE = 1, 2
_MOST_LINES = 200
_STAGED = "{} enforces nothing, and changes nothing here"


@dataclass(slots=True)
class PolicyDiff:
    """What a change does. ``seen``: how often recorded flows were decided as a line says; None: nobody asked."""

    change: ProposedChange
    worlds: WorldPair
    rows: list[ChangedRow]
    findings: list[ChangeFinding]
    uncertain: list[str]
    seen: SeenRows | None = None

    @property
    def status(self) -> int:
        if self.uncertain:
            return TROUBLE
        return DIFFERS if self.rows else 0


def diff(
    arguments: Namespace, environ: Mapping[str, str], flows: Callable[[], Iterable[dict[str, Any]]] | None = None
) -> str:
    """``flows``: what was recorded, if the lines are to say how often each was used. Raises InvalidConfig, and
    CommandFailed with what differs.
    """
    if not arguments.overlay:
        raise InvalidConfig("cannot compare: name the files of the change with --with FILE or DIR")
    require_fitting_page(arguments)
    if arguments.endpoints and not arguments.directory:
        raise InvalidConfig("cannot compare: --endpoints is for --dir; without it the datastore has the endpoints")
    if arguments.directory:
        found = compare_states(read_proposed(None, arguments))
    else:
        with open_session(arguments, environ) as session:
            change = read_proposed(session, arguments)
        found = compare_states(change)
    if flows is not None:
        found.seen = _seen(found, flows())
    for key in change_staged(found):
        arguments.warn(_STAGED.format(key))
    text = write_review(arguments, review_diff(found)) if arguments.html else render_diff(found, arguments.output)
    if not found.status:
        return text
    raise CommandFailed("", output=text, status=found.status)


def _seen(found: PolicyDiff, flows: Iterable[dict[str, Any]]) -> SeenRows:
    seen = SeenRows(found.change.records, found.worlds, found.rows, told_labels_for(found.change))
    for document in flows:
        if "verdict" in document:
            seen.add(document)
        elif "lost" in document and "end" not in document:
            seen.uncertain += int(document["lost"])
        elif "end" in document:
            found.uncertain += [f"flows: node {node} did not answer" for node in document.get("unanswered") or {}]
            nodes = [f"node {node}" if node else "this node" for node in document.get(ONLY_DENIED) or ()]
            found.uncertain += [f"flows: {node} records only what is denied" for node in nodes]
    return seen


def _note(found: PolicyDiff, row: ChangedRow, source: NamedEnds, destination: NamedEnds) -> str:
    """Below a line."""
    other = describe_other_end(found.worlds, row)
    parts = [f"{source.counted} x {destination.counted}", *filter(None, (other, _describe_seen(found, row)))]
    return "; ".join(parts)


def _describe_seen(found: PolicyDiff, row: ChangedRow) -> str:
    if found.seen is None:
        return ""
    if row.reach is not None:
        return "flows are not counted for it"  # but judged, by ``policy replay``
    one = found.seen.seen(row)
    if one is None:
        return "not seen"
    return f"seen {one.connections} connection{'' if one.connections == 1 else 's'}, last {one.last}"


def change_staged(found: PolicyDiff) -> list[str]:
    return [describe(key) for key in found.change.staged]


def compare_states(change: ProposedChange) -> PolicyDiff:
    """Everything that differs between the two states."""
    worlds = WorldPair(change.before, change.after)
    rows = changed_rows(worlds)
    uncertain = list(change.uncertain)
    uncertain += [
        f"{row.where} {row.traffic}: rules with too many lists of ports to compare" for row in rows if row.after is None
    ]
    rows = [row for row in rows if row.after is not None]
    return PolicyDiff(change, worlds, rows, find_in_change(change, worlds), uncertain)


# -- out --------------------------------------------------------------------------------------------------------------


def render_diff(found: PolicyDiff, output: str) -> str:
    names = EndNames(found.change.records)
    if output != TABLE:
        return render_value(_document(found, names), output)
    lines = []
    for row in found.rows[:_MOST_LINES]:
        source, destination = names.describe(row.sources), names.describe(row.destinations)
        verdicts = f"{describe_decision(row.before)}  ->  {describe_decision(row.after)}"
        lines.append(f"{source.shown} -> {destination.shown}  {row.where} {row.traffic}  {verdicts}")
        lines.append(f"    {_note(found, row, source, destination)}")
    if len(found.rows) > _MOST_LINES:
        lines.append(f"... and {len(found.rows) - _MOST_LINES} more; -o json has all of them")
    lines += [*([""] if lines and found.findings else []), *(one.text for one in found.findings)]
    lines += [*([""] if lines and found.uncertain else []), *(f"Uncertain: {one}" for one in found.uncertain)]
    return shown_lines("\n".join([*lines, *([""] if lines else []), _summary(found)]) + "\n")


def review_diff(found: PolicyDiff) -> Review:
    """For a page."""
    names = EndNames(found.change.records)
    rows = []
    for row in found.rows:
        source, destination = names.describe(row.sources), names.describe(row.destinations)
        note = _note(found, row, source, destination)
        verdicts = describe_decision(row.before), describe_decision(row.after)
        ends = ", ".join(source.names), ", ".join(destination.names)
        rows.append(ReviewRow(*ends, f"{row.where} {row.traffic}", *verdicts, note, row.denies))
    staged = [_STAGED.format(key) for key in change_staged(found)]
    return Review(
        "What a change of policy does",
        _summary(found),
        (
            ReviewSection("Uncertain", sentences=found.uncertain),
            ReviewSection("Newly denied", [row for row in rows if row.denies]),
            ReviewSection("Newly allowed", [row for row in rows if not row.denies]),
            ReviewSection("Odd about these policies", sentences=[one.text for one in found.findings]),
            ReviewSection("Staged", sentences=staged),
        ),
    )


def _summary(found: PolicyDiff) -> str:
    more = ""
    if found.seen is not None and found.seen.uncertain:
        more += f" {found.seen.uncertain} recorded connections could not be judged."
    if found.seen is not None and found.seen.of_now:
        more += f" {found.seen.of_now} do not tell the labels of an end, and were counted by those of now."
    return _counted(found) + more


def _counted(found: PolicyDiff) -> str:
    if not found.rows:
        unsure = ", as far as could be judged" if found.uncertain else ""
        return f"No verdict changes for anybody{unsure}."
    denied = sum(row.denies for row in found.rows)
    others = len(found.rows) - denied
    counts = [f"{number} {what}" for number, what in ((denied, "newly denied"), (others, "newly allowed")) if number]
    return f"Kinds of connections that change: {' and '.join(counts)}."


def _document(found: PolicyDiff, names: EndNames) -> dict[str, Any]:
    return {
        "changes": [_row(found, row, names) for row in found.rows],
        "findings": [one.document for one in found.findings],
        "uncertain": found.uncertain,
        "staged": change_staged(found),
        **({} if found.seen is None else {"notCounted": found.seen.uncertain, "byLabelsOfNow": found.seen.of_now}),
    }


def _row(found: PolicyDiff, row: ChangedRow, names: EndNames) -> dict[str, Any]:
    ends = {}
    for side, its in (("from", row.sources), ("to", row.destinations)):
        described = names.describe(its)
        ends[side] = {
            "names": list(described.names),
            "workloads": described.workloads,
            "hostEndpoints": described.hosts,
        }
    note = describe_other_end(found.worlds, row)
    return {
        **ends,
        "direction": row.direction,
        **({} if row.reach is None else {"hostStage": row.reach}),
        "traffic": row.traffic,
        "before": _judged(row.before),
        "after": _judged(row.after),
        **({"otherEnd": note} if note else {}),
        **_seen_document(found, row),
    }


def _seen_document(found: PolicyDiff, row: ChangedRow) -> dict[str, Any]:
    if found.seen is None or row.reach is not None:
        return {}
    one = found.seen.seen(row)
    return {"seen": {"connections": 0} if one is None else {"connections": one.connections, "last": one.last}}


def _judged(judged: Any) -> dict[str, Any]:
    decision = judged.decision
    if decision is None:
        return {"verdict": "none", "by": "not decided"}
    verdict = "allowed" if decision.verdict == "Allow" else "denied"
    return {"verdict": verdict, "by": describe_decider(decision)}
