"""Who may read the page: by this host's names only, with the token only, and nothing but GET."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.flows.page.access import Access, PageRefused, parse_request

ACCESS = Access(8700, "0123456789abcdef", "f" * 32)
COOKIE = "Cookie: a=b; calico-flows=" + "f" * 32


def admit(first: str, *lines: str, host: str = "127.0.0.1:8700") -> str:
    hosts = [f"Host: {host}"] if host else []
    return ACCESS.admit(parse_request("\r\n".join([f"{first} HTTP/1.1", *hosts, *lines, "", ""]).encode()))


@pytest.mark.parametrize("host", ["127.0.0.1:8700", "[::1]:8700", "localhost:8700", "LOCALHOST:8700"])
def test_let_in(host: str) -> None:
    assert ACCESS.address == f"http://127.0.0.1:8700/0123456789abcdef/?token={'f' * 32}"
    assert admit(f"GET /0123456789abcdef/?token={'f' * 32}", host=host) == "enter"
    assert admit("GET /0123456789abcdef/", COOKIE, host=host) == ""
    assert admit("GET /0123456789abcdef/flows?filter=", COOKIE, host=host) == "flows"
    assert ACCESS.cookie == f"calico-flows={'f' * 32}; Path=/0123456789abcdef/; HttpOnly; SameSite=Strict"


@pytest.mark.parametrize(
    "host", ["evil.example:8700", "127.0.0.1", "127.0.0.1:8701", "127.0.0.1.evil.example:8700", ""]
)
def test_another_host(host: str) -> None:
    with pytest.raises(PageRefused) as refused:
        admit("GET /0123456789abcdef/", COOKIE, host=host)
    assert refused.value.status == (403 if host else 400)


@pytest.mark.parametrize(
    ("first", "lines", "status"),
    [
        ("POST /0123456789abcdef/", [COOKIE], 405),
        ("HEAD /0123456789abcdef/", [COOKIE], 405),
        ("OPTIONS /0123456789abcdef/flows", [COOKIE], 405),
        ("GET /", [COOKIE], 404),
        ("GET /favicon.ico", [COOKIE], 404),
        ("GET /0123456789abcdef", [COOKIE], 404),
        ("GET /0123456789abcdef/", [], 403),
        ("GET /0123456789abcdef/", ["Cookie: calico-flows="], 403),
        ("GET /0123456789abcdef/", ["Cookie: calico-flows=" + "f" * 31], 403),
        ("GET /0123456789abcdef/", ["Cookie: calico-flows=\u00e9"], 403),
        ("GET /0123456789abcdef/?token=", [COOKIE], 403),
        ("GET /0123456789abcdef/?token=%ff%00", [COOKIE], 403),
        ("GET /0123456789abcdef/flows?token=" + "f" * 32, [], 403),
        ("GET /0123456789abcdef/", [COOKIE, "Host: 127.0.0.1:8700"], 400),
        ("GET http://127.0.0.1:8700/0123456789abcdef/", [COOKIE], 400),
        ("GET /0123456789abcdef/?" + "a=b&" * 9, [COOKIE], 400),
        ("GET", [COOKIE], 400),
    ],
)
def test_refused(first: str, lines: list[str], status: int) -> None:
    with pytest.raises(PageRefused) as refused:
        admit(first, *lines)
    assert refused.value.status == status


@given(st.binary() | st.binary().map(lambda part: b"GET /0123456789abcdef/?" + part))
def test_whatever_comes_is_refused(data: bytes) -> None:
    with suppress(PageRefused):
        raise AssertionError(ACCESS.admit(parse_request(data)))
