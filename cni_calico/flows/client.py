"""Asks this host's recorder for flows.

Rule: lines come as they are ready; one that is no JSON object, or a recorder that ends in between, is an error, never
an empty answer.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.flows.query import FlowQuery, render_query

_LINE = 16 << 20


class RecorderSilent(CalicoError):
    """There is no recorder, or it does not answer."""

    hint = "flows are recorded where FELIX_FLOWS is Enabled or Denied, and only root may read them"


class QueryFailed(CalicoError):
    """The recorder refuses the question; the text is the recorder's."""


def ask(path: str, query: FlowQuery, deadline: Deadline) -> Iterator[dict[str, Any]]:
    """The documents that answer; the last one has ``end``, but for a query that follows: that never ends by itself.
    ``deadline``: for each piece of the answer, except while following. Raises RecorderSilent, QueryFailed,
    DeadlineExceeded.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(max(0.1, deadline.remaining_s()))
            connection.connect(path)
            connection.sendall(render_query(query))
            connection.settimeout(None if query.follow else max(0.1, deadline.remaining_s()))
            with connection.makefile("rb") as lines:
                while line := lines.readline(_LINE):
                    yield _parse(line)
        except OSError as e:
            raise RecorderSilent(f"cannot read flows from {path}: {e.strerror or e}") from e


def _parse(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise RecorderSilent("cannot read flows: the recorder's answer was cut off")
    if "error" in found:
        raise QueryFailed(f"cannot read flows: {found['error']}")
    return found
