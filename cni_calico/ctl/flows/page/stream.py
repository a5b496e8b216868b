"""What the open page is told: what was recorded before, then what is new, as events.

Rule: nothing is lost between the two, because the question for what is new is asked first. What is missing is said.
"""

from __future__ import annotations

import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from cni_calico.ctl.command_line.flow_arguments import parse_filters
from cni_calico.ctl.flows.page.script.whole import MOST
from cni_calico.ctl.flows.places import FlowPlace
from cni_calico.ctl.flows.show import (
    describe_incomplete,
    describe_losses,
    explain_command,
    parse_query_arguments,
)
from cni_calico.ctl.output.escaping import shown
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.flows.query import FlowQuery

PageEvent = tuple[str, dict[str, Any]]
_WHAT = {
    "nflog-allowed": "reports of what was let through",
    "nflog-denied": "reports of what was denied",
    "destroy": "times ends of connections",
}


def parse_page_query(arguments: Namespace, since: float | None, now: datetime) -> FlowQuery:
    """What came before, at most MOST flows. ``since``: what the page has already, in seconds since 1970. Raises
    InvalidConfig.
    """
    query = parse_query_arguments(arguments, now)
    last = MOST if arguments.last is None else min(arguments.last, MOST)
    return replace(query, last=last, since=query.since if since is None else since, follow=False, aggregate=False)


def follow_flows(
    place: FlowPlace,
    words: str,
    since: float | None,
    asker: socket.socket,
    *,
    timeout_s: float,
    clock: Callable[[], float],
) -> Iterator[PageEvent]:
    """(event, document): flow; lost (text, and how many were missed by this page alone); ready, when what came before
    has been told; wrong (error): the words are no filter; gone (error): there is no recorder any more; pulse, when
    there is nothing. Ends once ``asker`` has gone.
    """
    try:
        before = parse_page_query(parse_filters(words), since, datetime.now(UTC))
    except InvalidConfig as e:
        yield "wrong", {"error": str(e)}
        return
    try:
        yield from _told(place, before, asker, timeout_s, clock)
    except CalicoError as e:
        yield "gone", {"error": str(e)}


def _told(
    place: FlowPlace, before: FlowQuery, asker: socket.socket, timeout_s: float, clock: Callable[[], float]
) -> Iterator[PageEvent]:
    with ExitStack() as opened:
        new = None
        if before.until is None:
            new = opened.enter_context(place.follow(FlowQuery(before.conditions), timeout_s))
        lost = place.lost_so_far(timeout_s)
        for document in place.ask(before, timeout_s):
            if document.get("end"):
                said = (*describe_losses(document["lost"]), *describe_incomplete(document))
                yield from (("lost", {"text": text}) for text in said)
                yield "ready", {"node": document["node"], "goes_on": new is not None}
            else:
                yield _event_of(document)
        if new is None:
            return
        due = clock() + place.losses_s
        for document in new.documents(asker):
            yield _event_of(document) if document else ("pulse", {})
            if clock() >= due:
                due, known = clock() + place.losses_s, lost
                lost = place.lost_so_far(timeout_s)
                more = {source: count - known.get(source, 0) for source, count in lost.items()}
                yield from (("lost", {"text": _describe_loss(*one)}) for one in more.items() if one[1] > 0)
        yield "gone", {"error": "the recorder has ended, or this page did not take what it was told"}


def _event_of(document: dict[str, Any]) -> PageEvent:
    if "note" in document:
        return "lost", {"text": shown(document["note"])}
    if "lost" in document:
        return "lost", {"text": shown(document.get("why")), "missed": document["lost"]}
    return "flow", {**document, "explain": explain_command(document)}


def _describe_loss(source: str, count: int) -> str:
    at = time.strftime("%H:%M:%S")
    return f"not recorded: {count} {_WHAT.get(source, shown(source))} until {at}"
