"""``calicoctl flows --web``: the page of flows on this host's loopback addresses, as long as the command runs.

Rule: the server has no file and no state but who may read; each page that is open asks the recorder itself. Nobody is
waited for: a page that does not take what it is sent is cut off.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from cni_calico.ctl.command_line.flow_arguments import page_words
from cni_calico.ctl.flows.page.access import Access, PageRefused, PageRequest, parse_request
from cni_calico.ctl.flows.page.document import content_policy, render_page
from cni_calico.ctl.flows.page.judgement import judge_now
from cni_calico.ctl.flows.page.stream import follow_flows, parse_page_query
from cni_calico.ctl.flows.places import FlowPlace, open_place
from cni_calico.daemon.http_server import TEXT, RequestServer
from cni_calico.errors import CalicoError

STREAMS = 4  # pages that are told what is new
_OTHERS, _PATIENCE_S = 4, 10.0
_JSON = "application/json; charset=utf-8"
_HTML, _EVENTS = "text/html; charset=utf-8", "text/event-stream; charset=utf-8"
_REASONS = {200: "OK", 303: "See Other", 400: "Bad Request", 403: "Forbidden", 404: "Not Found"}
_REASONS |= {405: "Method Not Allowed", 500: "Internal Server Error"}


class PageTaken(CalicoError):
    """The page cannot be served at this port."""

    hint = "name another port, --web PORT, or none: then a free one is taken"


def serve(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Until interrupted. Raises InvalidConfig, RecorderSilent, QueryFailed, PageTaken."""
    parse_page_query(arguments, None, datetime.now(UTC))
    place = open_place(arguments, environ)
    place.lost_so_far(arguments.timeout)  # is there a recorder, and may we ask
    words = page_words(arguments)

    def judge(asked: Mapping[str, str]) -> dict[str, Any]:
        return judge_now(arguments, environ, asked)

    with FlowPage(place, words, judge, port=arguments.web, timeout_s=arguments.timeout) as page:
        arguments.say(f"{page.access.address}\n")
        arguments.note("Open this address in a browser on this host; the page ends with this command (Ctrl-C).")
        threading.Event().wait()
    return ""


class FlowPage:
    """A context manager that serves the page while it is open. ``words``: the filters that it begins with; ``judge``:
    what would be decided now, from the ends, protocol and port.
    """

    def __init__(
        self,
        place: FlowPlace,
        words: str,
        judge: Callable[[Mapping[str, str]], Mapping[str, Any]],
        *,
        port: int = 0,
        timeout_s: float = 60.0,
    ) -> None:
        """Raises PageTaken."""
        self._place, self._words, self._judge, self._timeout_s = place, words, judge, timeout_s
        self._lock, self._judging = threading.Lock(), threading.Lock()
        self._streams: set[socket.socket] = set()
        try:
            self._server = RequestServer("localhost", port, self._answer, STREAMS + _OTHERS)
        except OSError as e:
            raise PageTaken(f"cannot serve the page at 127.0.0.1:{port}: {e.strerror or e}") from e
        self.access = Access(self._server.port, os.urandom(8).hex(), os.urandom(16).hex())

    def __enter__(self) -> FlowPage:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        for connection in list(self._streams):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _answer(self, connection: socket.socket, data: bytes) -> None:
        try:
            request = parse_request(data)
            self._send(connection, request, self.access.admit(request))
        except PageRefused as e:
            connection.sendall(_render(e.status, TEXT, f"{e}\n"))
        except OSError:
            pass  # the reader has gone, or does not take what he asked for
        except Exception as e:  # the page goes on for others, and the reader gets the reason
            connection.sendall(_render(500, TEXT, f"{type(e).__name__}: {e}\n"))

    def _send(self, connection: socket.socket, request: PageRequest, wanted: str) -> None:
        match wanted:
            case "enter":
                headers = (f"Location: {self.access.path}", f"Set-Cookie: {self.access.cookie}")
                connection.sendall(_render(303, TEXT, "", headers))
            case "":
                data = {"live": True, "filter": self._words, "made": datetime.now(UTC).isoformat(timespec="seconds")}
                connection.sendall(_render(200, _HTML, render_page({**data, "flows": [], "said": [], "more": False})))
            case "flows":
                self._stream(connection, request)
            case "decision":
                connection.settimeout(_PATIENCE_S)
                with self._judging:
                    found = self._judge(request.query)
                connection.sendall(_render(200, _JSON, json.dumps(found)))
            case _:
                raise PageRefused(404, "there is nothing here")

    def _stream(self, connection: socket.socket, request: PageRequest) -> None:
        since = _parse_since(request.query.get("since", ""))
        connection.settimeout(_PATIENCE_S)
        connection.sendall(_head(200, _EVENTS))
        with self._lock:
            is_full = len(self._streams) >= STREAMS
            if not is_full:
                self._streams.add(connection)
        if is_full:
            connection.sendall(_event("gone", {"error": f"{STREAMS} pages are open already: close one of them"}))
            return
        try:
            words = request.query.get("filter", "")
            told = follow_flows(self._place, words, since, connection, timeout_s=self._timeout_s, clock=time.monotonic)
            for event in told:
                connection.sendall(_event(*event))
        except OSError:
            pass  # the reader has gone, or does not take what he asked for
        except Exception as e:  # such as a flow without ends: the page is told, and asks again
            connection.sendall(_event("gone", {"error": f"{type(e).__name__}: {e}"}))
        finally:
            self._streams.discard(connection)


def _parse_since(text: str) -> float | None:
    try:
        since = float(text) if text else None
    except ValueError:
        since = math.nan
    if since is not None and not math.isfinite(since):
        raise PageRefused(400, "since is in seconds since 1970")
    return since


def _event(name: str, document: Mapping[str, object]) -> bytes:
    if name == "pulse":
        return b":\n\n"
    return f"event: {name}\ndata: {json.dumps(document, separators=(',', ':'))}\n\n".encode()


def _head(status: int, kind: str, headers: Iterable[str] = ()) -> bytes:
    lines = (
        f"HTTP/1.1 {status} {_REASONS[status]}",
        f"Content-Type: {kind}",
        f"Content-Security-Policy: {content_policy(live=True)}; frame-ancestors 'none'",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cross-Origin-Resource-Policy: same-origin",
        "Cross-Origin-Opener-Policy: same-origin",
        "Cache-Control: no-store",
        "Connection: close",
        *headers,
    )
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1")


def _render(status: int, kind: str, text: str, headers: Iterable[str] = ()) -> bytes:
    body = text.encode()
    return _head(status, kind, (f"Content-Length: {len(body)}", *headers)) + body
