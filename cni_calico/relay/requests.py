"""PURE: what a client asks for, from the head of an HTTP request; and the bytes of answers.

Rule: only GET, without a body; everything else is refused with a Status that says what a relay serves. Source: RFC 9112
and Kubernetes' API conventions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import parse_qsl, unquote, unquote_plus

from cni_calico.datastore.kubernetes.relayed.served import (
    AFFINITY_FIELD,
    BLOCK_PATHS,
    CUT_OFF_PATH,
    HOLDERS_QUERY,
    READY_PATH,
    SERVED,
    WATCH_PATH,
    order_of_version,
)
from cni_calico.relay.topics import Topic

HEAD_BYTES = 32 * 1024
MOST_FIELDS = 200
KNOWN_CHARACTERS = 300
JSON_TYPE = "application/json"
NOT_HTTP = "this is not an HTTP request; upstream Typha's own protocol is not supported"
FOREIGN = (
    "does not speak HTTP. Upstream's Felix needs upstream's Typha; with FELIX_TYPHAK8SSERVICENAME none it reads the "
    "API server itself"
)
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    410: "Gone",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
_STATUS_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    410: "Expired",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
    504: "Timeout",
}


_TOPICS = {path: Topic(path) for path in SERVED}  # one object for everybody who follows it
_HOLDERS, _HOLDERS_NAMES = {path: Topic(path, holders=True) for path in BLOCK_PATHS}, HOLDERS_QUERY.partition("=")


class RequestRefused(Exception):
    """A request that is not carried out, with its HTTP status. ``gone``: the topics whose older changes are."""

    def __init__(self, status: int, text: str, gone: tuple[str, ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.gone = gone


@dataclass(frozen=True, slots=True)
class AskedList:
    """``at_least``: the version that the answer must have reached; 0: any."""

    topic: Topic
    at_least: int = 0
    gzip: bool = False


@dataclass(frozen=True, slots=True)
class AskedWatch:
    """``places``: the topics to follow, each with the version from which on; ``timeout_s`` 0: the relay chooses."""

    places: Mapping[Topic, int]
    several: bool = False
    timeout_s: float = 0.0
    bookmarks: bool = True


@dataclass(frozen=True, slots=True)
class AskedReady:
    """The question whether this relay has read everything."""


@dataclass(frozen=True, slots=True)
class RelayRequest:
    wanted: AskedList | AskedWatch | AskedReady
    token: str = field(default="", repr=False)
    keeps_open: bool = True


def parse_request(head: bytes) -> RelayRequest:
    """The request in the bytes before the empty line. Raises RequestRefused."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        raise RequestRefused(400, NOT_HTTP)
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise RequestRefused(400, "a header cannot be read")
        headers[name.lower()] = value.strip()
    if words[0] != "GET":
        raise RequestRefused(405, f"a relay only has GET, not {words[0][:20]}")
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise RequestRefused(400, "a request with a body is refused")
    authorization = headers.get("authorization", "")
    token = authorization[7:].strip() if authorization[:7].lower() == "bearer " else ""
    keeps_open = words[2] != "HTTP/1.0" and headers.get("connection", "").lower() != "close"
    gzip = "gzip" in headers.get("accept-encoding", "")
    return RelayRequest(_parse_target(words[1], gzip=gzip), token, keeps_open)


def _parse_target(target: str, *, gzip: bool) -> AskedList | AskedWatch | AskedReady:
    path, _, text = target.partition("?")
    if path == WATCH_PATH and text.startswith("from=") and (places := _parse_places(text)):
        return _watch_several(places, 0.0)
    path = unquote(path)
    try:
        query = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS, strict_parsing=bool(text))
    except ValueError as e:
        raise RequestRefused(400, f"the query cannot be read: {e}") from e
    found = dict(query)
    if path == READY_PATH:
        return AskedReady()
    timeout_s = float(order_of_version(found.get("timeoutSeconds")))
    if path == WATCH_PATH:
        return _watch_several([_parse_place(value) for name, value in query if name == "from"], timeout_s)
    topic = _parse_topic(path, found)
    version = _parse_version(found.get("resourceVersion", ""))
    if found.get("watch", "").lower() in ("1", "true"):
        bookmarks = found.get("allowWatchBookmarks", "").lower() in ("1", "true")
        return AskedWatch({topic: version}, timeout_s=timeout_s, bookmarks=bookmarks)
    if found.get("resourceVersionMatch") == "Exact" or found.get("continue"):
        raise RequestRefused(400, "a relay has the present state only; ask the API server for an older one")
    return AskedList(topic, version, gzip)


def _watch_several(found: Sequence[tuple[Topic, int]], timeout_s: float) -> AskedWatch:
    places = dict(found)
    if not places:
        raise RequestRefused(400, f"{WATCH_PATH} needs one or several from=PATH@RESOURCEVERSION")
    if sum(bool(topic.owner) for topic in places) > 1:
        raise RequestRefused(400, "the blocks of one owner can be followed, not of several")
    return AskedWatch(places, several=True, timeout_s=timeout_s)


def _parse_places(text: str) -> list[tuple[Topic, int]]:
    """The places in a query as agents write it; [] if it contains anything else."""
    parts = text.split("&")
    if len(parts) > MOST_FIELDS or not all(part.startswith("from=") and len(part) > len("from=") for part in parts):
        return []
    return [_parse_known_place(part) if len(part) <= KNOWN_CHARACTERS else _parse_quoted_place(part) for part in parts]


def _parse_quoted_place(part: str) -> tuple[Topic, int]:
    return _parse_place(unquote_plus(part.removeprefix("from=")))


# when a thousand agents resume, they name the same places
_parse_known_place = lru_cache(maxsize=4096)(_parse_quoted_place)


def _parse_place(text: str) -> tuple[Topic, int]:
    name, at, version = text.rpartition("@")
    path, _, query = name.partition("?")
    if not at:
        raise RequestRefused(400, f"from={text[:100]} has no @RESOURCEVERSION")
    return _parse_topic(path, dict(parse_qsl(query))), _parse_version(version)


def _parse_topic(path: str, query: Mapping[str, str]) -> Topic:
    if path not in SERVED:
        raise RequestRefused(404, f"a relay does not have {path[:200]}: it has {', '.join(SERVED)}")
    field_name, _, value = query.get("fieldSelector", "").partition("=")
    value = value.removeprefix("=")
    if query.get("labelSelector") or (field_name and not (path in BLOCK_PATHS and field_name == AFFINITY_FIELD)):
        raise RequestRefused(400, f"a relay selects nothing but ipamblocks by {AFFINITY_FIELD}; ask the API server")
    if field_name:
        return Topic(path, value)
    with_pods = path in BLOCK_PATHS and query.get(_HOLDERS_NAMES[0]) == _HOLDERS_NAMES[2]
    return (_HOLDERS if with_pods else _TOPICS)[path]


def _parse_version(text: str) -> int:
    if text in ("", "0"):
        return 0
    version = order_of_version(text)
    if not version:
        raise RequestRefused(400, f"resourceVersion {text[:40]!r} is not a number")
    return version


# -- answers ----------------------------------------------------------------------------------------------------------


def render_head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}", *(f"{n}: {v}" for n, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def render_status(status: int, text: str, *, gone: Sequence[str] = (), reason: str = "") -> bytes:
    """A whole answer that refuses; ``gone``: the names of the topics whose old changes are not kept any more. The
    connection is closed afterwards.
    """
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": text,
        "reason": reason or _STATUS_REASONS.get(status, "InternalError"),
        "code": status,
    }
    if gone:
        document["details"] = {"causes": [{"reason": "Expired", "field": name} for name in gone]}
    body = json.dumps(document).encode() + b"\n"
    headers = {"Content-Type": JSON_TYPE, "Content-Length": str(len(body)), "Connection": "close"}
    return render_head(status, headers) + body


def render_text(text: str) -> bytes:
    body = text.encode()
    return render_head(200, {"Content-Type": "text/plain; charset=utf-8", "Content-Length": str(len(body))}) + body


def render_cut_off(why: str) -> bytes:
    """An event of a watch of several collections."""
    event = {"path": CUT_OFF_PATH, "type": "STATUS", "object": {"kind": "Status", "message": why}}
    return json.dumps(event).encode() + b"\n"


STREAM_HEAD = render_head(200, {"Content-Type": JSON_TYPE, "Transfer-Encoding": "chunked", "Cache-Control": "no-cache"})
LIST_HEAD = STREAM_HEAD
GZIP_HEAD = render_head(
    200,
    {"Content-Type": JSON_TYPE, "Content-Encoding": "gzip", "Transfer-Encoding": "chunked", "Vary": "Accept-Encoding"},
)
LAST_CHUNK = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
