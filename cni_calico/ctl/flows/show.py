"""``calicoctl flows``: connections, each with the rule that decided about it.

Rule: a flow is shown as it was recorded, and what was not recorded is said at the end. Texts from records are escaped
for terminals.
"""

from __future__ import annotations

import json
import shlex
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cni_calico.ctl.flows.expected import keeping_expected, require_expected_fits
from cni_calico.ctl.flows.places import open_place
from cni_calico.ctl.flows.staged import StagedSummary, describe_staged
from cni_calico.ctl.output.escaping import shown
from cni_calico.ctl.output.texts import render_json, render_yaml
from cni_calico.ctl.output.values import is_jsonpath, render_value
from cni_calico.ctl.session import CommandFailed
from cni_calico.daemon.settings_table import parse_duration_s
from cni_calico.errors import InvalidConfig
from cni_calico.flows.names import FOLDED, FOLDED_SET
from cni_calico.flows.query import DENIED, ONLY_DENIED, STAGED, Condition, FlowQuery

_DEFAULT_LAST, DENIED_STATUS = 20, 3
_WIDTHS = (23, 26, 26, 10, 7)
_HEADINGS = ("TIME", "FROM", "TO", "PORT", "VERDICT", "BY")


def show(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Prints lines as they come. Raises RecorderSilent, QueryFailed, and CommandFailed with status 3 for
    --fail-if-denied.
    """
    steps = arguments.verbose or arguments.output not in ("table", "compact", "wide")
    query = replace(parse_query_arguments(arguments, datetime.now(UTC)), steps=steps)
    require_expected_fits(arguments)
    printed = FlowPrinter(arguments)
    documents = open_place(arguments, environ).ask(query, arguments.timeout)
    for document in keeping_expected(arguments, documents) if arguments.expectations else documents:
        printed.receive(document)
    text = printed.rest()
    if older := describe_kept(query, printed.kept):
        arguments.note(older)
    if arguments.fail_if_denied and printed.denied:
        raise CommandFailed(f"{printed.denied} flows were denied", output=text, status=DENIED_STATUS)
    return text


def parse_query_arguments(arguments: Namespace, now: datetime) -> FlowQuery:
    """Raises InvalidConfig."""
    found: dict[tuple[str, bool], list[str]] = {}
    for field, value, negated in arguments.filters:
        found.setdefault((field, negated), []).append(value)
    for name, count in (("last", arguments.last), ("first", arguments.first)):
        if count is not None and count < 0:
            raise InvalidConfig(f"--{name} must not be negative: {count}")
    first = arguments.first
    if first is not None and (arguments.last is not None or arguments.follow or arguments.aggregate):
        raise InvalidConfig("--first shows the oldest flows: it goes without --last, --follow and --aggregate")
    if arguments.negate:
        raise InvalidConfig("there is no filter after --not")
    since, until = _parse_when(arguments.since, "since", now), _parse_when(arguments.until, "until", now)
    if since is not None and until is not None and since > until:
        raise InvalidConfig("--since is later than --until: there is nothing between them")
    if arguments.follow and until is not None:
        raise InvalidConfig("-f and --until do not go together: what is new comes after any time that has been")
    if arguments.follow and arguments.aggregate:
        raise InvalidConfig("-f and --aggregate do not go together: nobody knows yet how many there will be")
    last = arguments.last
    if last is first is None and since is None and until is None and not arguments.follow and not arguments.aggregate:
        last = _DEFAULT_LAST
    conditions = tuple(Condition(field, tuple(values), negated) for (field, negated), values in found.items())
    staged = arguments.staged or any(one.field == STAGED for one in conditions)
    return FlowQuery(conditions, last, since, until, arguments.follow, arguments.aggregate, first=first, staged=staged)


def _parse_when(text: str, name: str, now: datetime) -> float | None:
    if not text:
        return None
    try:
        return now.timestamp() - parse_duration_s(text)
    except ValueError:
        pass
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidConfig(
            f"--{name}: expected a duration such as 5m, or a time such as {now:%Y-%m-%dT%H:%M:%SZ}, got {text!r}"
        ) from None
    return (when if when.tzinfo else when.astimezone()).timestamp()


class FlowPrinter:
    """Documents in, text out: at once where lines can be printed one by one."""

    def __init__(self, arguments: Namespace) -> None:
        self._arguments = arguments
        self._format = "table" if arguments.output == "compact" else arguments.output
        self._path = is_jsonpath(self._format)
        self._kept: list[dict[str, Any]] = []
        self._headed = False
        self._ending: dict[str, Any] = {}
        self._staged = StagedSummary()
        self.count = self.denied = 0

    def receive(self, document: dict[str, Any]) -> None:
        if document.get("end"):
            self._ending = document
            return
        if "note" in document:
            self._arguments.warn(shown(document["note"]))
            return
        if "lost" in document:
            self._arguments.warn(f"LOST EVENTS: {document['lost']}: {shown(document.get('why'))}")
            return
        self.count += 1
        self.denied += document["verdict"] == DENIED
        self._staged.add(document)
        if self._format == "jsonl" or (self._format == "json" and self._arguments.follow):
            self._arguments.say(json.dumps(document, ensure_ascii=False) + "\n")
        elif self._path and self._arguments.follow:
            self._arguments.say(render_value(document, self._format))
        elif (self._path or self._format in ("json", "yaml")) and not self._arguments.follow:
            self._kept.append(document)
        elif self._format == "yaml":
            self._arguments.say("---\n" + render_yaml(document))
        elif self._format == "dict":
            self._arguments.say("".join(describe_whole(document)) + "\n")
        else:
            self._say_row(document)

    def _say_row(self, document: Mapping[str, Any]) -> None:
        if not self._headed:
            self._headed = True
            self._arguments.say(_line(_HEADINGS))
        wide = self._format == "wide"
        self._arguments.say(_line(row_of(document, wide=wide)))
        if self._arguments.verbose:
            for text in (*describe_sent(document), *describe_steps(document)):
                self._arguments.say(f"  {text}\n")
            if document["verdict"] == DENIED:
                self._arguments.say(f"  {explain_command(document)}\n")

    @property
    def kept(self) -> Mapping[str, float | None]:
        """How far back the recorder has flows, and sums."""
        found: Mapping[str, float | None] = self._ending.get("kept") or {}
        return found

    def rest(self) -> str:
        """What is left to be printed at the end; losses go to standard error."""
        for text in (*describe_losses(self._ending.get("lost", ())), *describe_unanswered(self._ending)):
            self._arguments.note(text)
        if ("verdict", DENIED, False) not in self._arguments.filters:
            for text in describe_only_denied(self._ending):
                self._arguments.note(text)
        for text in self._staged.lines():
            self._arguments.note(shown(text))
        if self._format == "json" and not self._arguments.follow:
            return render_json(self._kept)
        if self._format == "yaml" and not self._arguments.follow:
            return render_yaml(self._kept)
        if self._path and not self._arguments.follow:
            return render_value(self._kept, self._format)
        if self._format in ("table", "wide"):
            self._arguments.note(f"{self.count} flow{'' if self.count == 1 else 's'}")
        return ""


def describe_whole(document: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """A line for each value: the names that lead to it, and the value."""
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from describe_whole(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
            for number, one in enumerate(value):
                yield from describe_whole(one, f"{prefix}{name}[{number}].")
        else:
            text = ", ".join(map(shown, value)) if isinstance(value, list) else "" if value is None else shown(value)
            yield f"{shown(prefix + name)}: {text}".rstrip() + "\n"


def _line(cells: Iterable[str]) -> str:
    *first, last = cells
    columns = (cell.ljust(width) for cell, width in zip(first, _WIDTHS, strict=True))
    return f"{'  '.join(columns)}  {last}".rstrip() + "\n"


def row_of(document: Mapping[str, Any], *, wide: bool = False) -> tuple[str, ...]:
    """The cells of a line."""
    icmp, port = document.get("icmp"), document["destination"].get("port")
    where = f"type {icmp['type']}" if icmp else port
    decided = [shown(one["said"]) for one in document["decided"]]
    by = decided[-1:] if document["verdict"] == DENIED else decided
    count = f"{document['connections']} x " if document["connections"] != 1 else ""
    return (
        _local_time(document["last"] if count else document["start"]),
        _shown_end(document["source"], wide=wide),
        _shown_end(document["destination"], wide=wide),
        shown(document["protocol"]) + (f"/{where}" if where is not None else ""),
        "DENIED" if document["verdict"] == DENIED else "allowed",
        count
        + ", ".join([*by, *filter(None, (shown(describe_staged(document)),))])
        + (_shown_nodes(document) if wide else ""),
    )


def _shown_nodes(document: Mapping[str, Any]) -> str:
    """Who has recorded it, where that is not this host alone."""
    return f" ({shown(', '.join(document['nodes']))})" if "nodes" in document else ""


def _shown_end(end: Mapping[str, Any], *, wide: bool) -> str:
    if "name" not in end:
        within = end.get("set")
        return shown(f"{end['ip']} ({_path(within)})" if within else end["ip"])
    name = _path(end)
    return shown(f"{name} ({end['ip']})" if wide and end["kind"] not in FOLDED else name)


def _path(named: Mapping[str, Any]) -> str:
    return f"{named['namespace']}/{named['name']}" if named["namespace"] else str(named["name"])


def _local_time(text: str) -> str:
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    except ValueError:
        return text


def describe_sent(document: Mapping[str, Any]) -> Iterator[str]:
    """Where it was sent, if that was translated and is known."""
    asked, service = document["destination"].get("asked"), document["destination"].get("service")
    if asked:
        where = f"[{asked['ip']}]" if ":" in asked["ip"] else asked["ip"]
        yield f"sent to {f'service {shown(_path(service))}, ' if service else ''}{shown(where)}:{asked['port']}"


def describe_steps(document: Mapping[str, Any]) -> Iterator[str]:
    """Who decided on each side, and who passed on before: a line each where the row does not say it."""
    decided = document["decided"]
    hidden = decided[:-1] if document["verdict"] == DENIED else []
    for one in decided:
        passed = [shown(step["said"]) for step in one.get("passed", ())]
        if passed or one in hidden:
            yield ", ".join([*passed, shown(one["said"])])


def explain_command(document: Mapping[str, Any]) -> str:
    """The command that computes what would be decided now, for a shell: names are hostile."""
    ends = (("from", document["source"]), ("to", document["destination"]))
    words = [f"--{option} {_explained(end)}" for option, end in ends]
    port = document["destination"].get("port")
    words.append(
        f"--protocol {shlex.quote(shown(document['protocol']))}" + (f" --port {port}" if port is not None else "")
    )
    return f"calicoctl policy explain {' '.join(words)}"


def _explained(end: Mapping[str, Any]) -> str:
    if end.get("kind") == FOLDED_SET:
        return shlex.quote(shown(f"ADDRESS-IN-{_path(end)}"))  # it is not known which
    return shlex.quote(shown(_path(end) if end.get("kind") == "pod" else end["ip"]))


def describe_kept(query: FlowQuery, kept: Mapping[str, float | None]) -> str:
    """What there is besides, of a time that is asked for and too long ago; "" for nothing."""
    oldest, sums, since = kept.get("flows"), kept.get("sums"), query.since
    if query.aggregate or since is None or oldest is None or sums is None or max(since, sums) >= oldest:
        return ""
    begin = datetime.fromtimestamp(oldest).strftime("%Y-%m-%d %H:%M:%S")
    return f"connections before {begin} are only kept added up: --aggregate shows them"


def describe_losses(lost: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What was not recorded, in sentences."""
    what = {"nflog-allowed": "reports of what was let through", "nflog-denied": "reports of what was denied"}
    for one in lost:
        where = f"node {shown(one['node'])}: " if one.get("node") else ""
        begin, end = (datetime.fromtimestamp(one[name]).strftime("%Y-%m-%d %H:%M:%S") for name in ("from", "to"))
        if one["why"] == "recorder":
            yield f"{where}not recorded: from {begin} to {end} there was no recorder"
        elif one["count"] is None:
            yield f"{where}ends of connections were lost about {end}: some flows end later than they did"
        else:
            name = what.get(one["source"], shown(one["source"]))
            when = f"at {end}" if begin == end else f"between {begin} and {end}"
            yield f"{where}not recorded: {one['count']} {name} {when} ({shown(one['why'])})"


def describe_only_denied(ending: Mapping[str, Any]) -> Iterator[str]:
    """The nodes of which there are no flows that were let through."""
    nodes = ending.get(ONLY_DENIED) or []
    if nodes:
        one = f"node {shown(nodes[0])}" if nodes[0] else "this node"
        who = f"{one} records" if len(nodes) == 1 else f"{len(nodes)} nodes, such as {one}, record"
        yield f"{who} only what is denied; with FELIX_FLOWS=Enabled also what is let through"


def describe_incomplete(ending: Mapping[str, Any]) -> Iterator[str]:
    """The nodes of which all flows, or some, are missing."""
    yield from describe_unanswered(ending)
    yield from describe_only_denied(ending)


def describe_unanswered(ending: Mapping[str, Any]) -> Iterator[str]:
    """The nodes whose flows are missing."""
    for node, why in (ending.get("unanswered") or {}).items():
        yield f"node {shown(node)} did not answer: {shown(why)}"
