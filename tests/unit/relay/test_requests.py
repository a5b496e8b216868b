"""What a client may ask for."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.relayed.served import BLOCKS, READY_PATH, WATCH_PATH, affinity_query
from cni_calico.relay.requests import AskedList, AskedReady, AskedWatch, RequestRefused, parse_request, render_status
from cni_calico.relay.topics import Topic


def ask(target: str, *headers: str, method: str = "GET", version: str = "HTTP/1.1") -> object:
    return parse_request("\r\n".join([f"{method} {target} {version}", "Host: x", *headers]).encode()).wanted


def test_lists_and_watches_are_as_the_api_server_has_them() -> None:
    assert ask("/api/v1/nodes?limit=500") == AskedList(Topic("/api/v1/nodes"))
    assert ask("/api/v1/pods?resourceVersion=17", "Accept-Encoding: gzip") == AskedList(Topic("/api/v1/pods"), 17, True)
    assert ask("/api/v1/nodes?watch=1&resourceVersion=5&allowWatchBookmarks=true&timeoutSeconds=30") == AskedWatch(
        {Topic("/api/v1/nodes"): 5}, False, 30.0, True
    )
    assert ask(f"{BLOCKS}?{affinity_query('host:n-1')}") == AskedList(Topic(BLOCKS, "host:n-1"))
    assert ask(f"{BLOCKS}?holders=1") == AskedList(Topic(BLOCKS, holders=True))
    assert ask(READY_PATH) == AskedReady()


def test_one_watch_follows_several_collections() -> None:
    own = Topic(BLOCKS, "host:n1")
    target = f"{WATCH_PATH}?from=/api/v1/nodes@5&from={quote(own.name + '@7', safe='')}&from=/api/v1/pods@"
    assert ask(target) == AskedWatch({Topic("/api/v1/nodes"): 5, own: 7, Topic("/api/v1/pods"): 0}, True)


@given(
    st.lists(
        st.sampled_from(["/api/v1/nodes@5", "/api/v1/pods@", "/api/v1/secrets@1", "x", f"{BLOCKS}?fieldSelector=a@2"]),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)
def test_however_a_watch_is_written_it_means_the_same(places: list[str], quoted: bool) -> None:
    """What agents write is read without the general parser, which an option at the end brings back."""
    written = "&".join("from=" + (quote(place, safe="") if quoted else place) for place in places)

    def outcome(target: str) -> object:
        try:
            return ask(target)
        except RequestRefused as e:
            return e.status, str(e)

    assert outcome(f"{WATCH_PATH}?{written}") == outcome(f"{WATCH_PATH}?{written}&timeoutSeconds=0")


def test_a_token_is_read_and_the_connection_stays_open() -> None:
    head = b"GET /api/v1/nodes HTTP/1.1\r\nauthorization: bearer abc"
    found = parse_request(head)
    assert (found.token, found.keeps_open) == ("abc", True)
    assert "abc" not in repr(found)
    assert not parse_request(head + b"\r\nConnection: close").keeps_open


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/api/v1/secrets", 404, "does not have /api/v1/secrets"),
        ("/api/v1/nodes/n1", 404, "it has /api/v1/nodes"),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", 400, "selects nothing but"),
        ("/api/v1/pods?labelSelector=a%3Db", 400, "ask the API server"),
        ("/api/v1/nodes?resourceVersion=five", 400, "'five' is not a number"),
        ("/api/v1/nodes?resourceVersion=5&resourceVersionMatch=Exact", 400, "present state only"),
        (WATCH_PATH, 400, "needs one or several from="),
        (f"{WATCH_PATH}?from=/api/v1/nodes", 400, "has no @RESOURCEVERSION"),
        ("nodes", 400, "not an HTTP request"),
    ],
)
def test_what_is_not_there_is_refused(target: str, status: int, text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        ask(target)
    assert refused.value.status == status
    assert text in str(refused.value)


def test_writes_and_bodies_are_refused() -> None:
    with pytest.raises(RequestRefused, match="only has GET, not POST"):
        ask("/api/v1/nodes", method="POST")
    with pytest.raises(RequestRefused, match="body"):
        ask("/api/v1/nodes", "Content-Length: 5")
    with pytest.raises(RequestRefused, match="body"):
        ask("/api/v1/nodes", "Transfer-Encoding: chunked")
    with pytest.raises(RequestRefused, match="header"):
        ask("/api/v1/nodes", " folded: x")


@given(st.binary(max_size=300))
def test_garbage_is_refused_and_nothing_else(head: bytes) -> None:
    try:
        parse_request(head)
    except RequestRefused as e:
        assert e.status in (400, 404, 405)


@given(st.text(max_size=60), st.text(max_size=60))
def test_garbage_after_the_path_is_refused_and_nothing_else(path: str, query: str) -> None:
    target = f"/{path}?{query}".replace(" ", "").replace("\r", "").replace("\n", "")
    try:
        parse_request(f"GET {target} HTTP/1.1".encode())
    except RequestRefused as e:
        assert e.status in (400, 404, 405)


def test_a_refusal_is_a_status_of_kubernetes() -> None:
    head, _, body = render_status(410, "too old", gone=("/api/v1/nodes",)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 410 Gone\r\n")
    document = json.loads(body)
    assert (document["kind"], document["reason"], document["code"]) == ("Status", "Expired", 410)
    assert document["details"]["causes"] == [{"reason": "Expired", "field": "/api/v1/nodes"}]
