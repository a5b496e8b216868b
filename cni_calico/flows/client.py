"""Asks this host's recorder for flows.

Rule: lines come as they are ready; one that is no document of a recorder's (``flows.told``), or a recorder that ends in
between, is an error, never an empty answer. A recorder that looks for long sends empty documents meanwhile, so that
nobody takes it for dead.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.flows.query import FlowQuery, render_query
from cni_calico.flows.told import require_told

_LINE = 16 << 20


class RecorderSilent(CalicoError):
    """There is no recorder, or it does not answer."""

    hint = (
        "what is denied is recorded once policies are in force on a node, which 'calicoctl node status' says, unless "
        "FELIX_FLOWS is Disabled; only root may read it"
    )


class RecorderSlow(RecorderSilent):
    """It answers, but not in time."""

    hint = ""


class QueryFailed(CalicoError):
    """The recorder refuses the question; the text is the recorder's."""


class RecorderMisunderstood(RecorderSilent):
    """What it answers has not the form of a recorder's answer."""

    hint = "the recorder may be of another version: use the calicoctl of this node's version, or restart calico-node"


def ask(path: str, query: FlowQuery, deadline: Deadline, *, whole: bool = False) -> Iterator[dict[str, Any]]:
    """The documents that answer; the last one has ``end``, but for a query of the status, and for one that follows,
    which never ends by itself. ``deadline``: for each piece of the answer, except while following, or for the ``whole``
    of it. Raises RecorderSilent, RecorderMisunderstood, QueryFailed.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(max(0.1, deadline.remaining_s()))
            connection.connect(path)
            connection.sendall(render_query(query))
            connection.settimeout(None if query.follow else max(0.1, deadline.remaining_s()))
            document: dict[str, Any] = {}
            with connection.makefile("rb") as lines:
                while line := lines.readline(_LINE):
                    if document := parse_answer(line):
                        if not query.status:
                            require_understood(document)
                        yield document
                    if whole and deadline.remaining_s() <= 0:
                        raise RecorderSlow(f"cannot read flows from {path}: the recorder looks for longer than that")
        except TimeoutError as e:
            raise RecorderSlow(f"cannot read flows from {path}: the recorder does not answer in time") from e
        except OSError as e:
            raise RecorderSilent(f"cannot read flows from {path}: {e.strerror or e}") from e
    if not query.status and "end" not in document:
        raise RecorderSilent(f"cannot read flows from {path}: the recorder ended before its answer did")


def parse_answer(line: bytes) -> dict[str, Any]:
    """A document of an answer. Raises RecorderSilent, RecorderMisunderstood, QueryFailed."""
    if len(line) >= _LINE:
        raise RecorderMisunderstood("cannot read flows: a line of the recorder's answer has no end")
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as e:
        if not line.endswith(b"\n") and isinstance(e, ValueError):
            raise RecorderSilent("cannot read flows: the recorder's answer was cut off") from e
        raise RecorderMisunderstood(f"cannot read flows: the recorder's answer is no JSON: {e}") from e
    if not isinstance(found, dict):
        raise RecorderMisunderstood("cannot read flows: a line of the recorder's answer is no JSON object")
    if "error" in found:
        raise QueryFailed(f"cannot read flows: {found['error']}")
    return found


def require_understood(document: Mapping[str, Any]) -> None:
    """Raises RecorderMisunderstood."""
    try:
        require_told(document)
    except ValueError as e:
        raise RecorderMisunderstood(f"cannot read flows: the recorder's answer has another form: {e}") from e
