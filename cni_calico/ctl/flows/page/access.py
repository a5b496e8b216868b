"""Who may read the page of flows: whoever has the address that was printed. Nothing here has an effect.

Rule: only GET, only by one of this host's own names (against DNS rebinding), only below a path that nobody can guess.
The address has a token, which becomes a cookie of that path: what is shown of the address bar lets nobody in, and no
other server of this host gets the cookie.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

_COOKIE, _MOST_FIELDS = "calico-flows", 8


class PageRefused(Exception):
    """``status`` is HTTP's; the text says what is wrong."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class PageRequest:
    method: str
    path: str
    query: Mapping[str, str]
    host: str
    cookies: Mapping[str, str]


def parse_request(data: bytes) -> PageRequest:
    """``data``: up to the empty line that ends the head. Raises PageRefused."""
    first, *lines = re.split(r"\r?\n", data.decode("latin-1"))
    words = first.split(" ")
    if len(words) != 3 or not words[1].startswith("/") or not re.fullmatch(r"HTTP/1\.[01]", words[2]):
        raise PageRefused(400, "this is no request of HTTP/1.1")
    path, _, query = words[1].partition("?")
    try:
        fields = dict(parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError as e:
        raise PageRefused(400, f"this is no request: {e}") from e
    hosts, cookies = list[str](), dict[str, str]()
    for line in lines:
        name, _, value = line.partition(":")
        match name.lower():
            case "host":
                hosts.append(value.strip().lower())
            case "cookie":
                parts = (part.strip().partition("=") for part in value.split(";"))
                cookies.update({key: text for key, _, text in parts})
    if len(hosts) != 1:
        raise PageRefused(400, "a request names one host")
    return PageRequest(words[0], path, fields, hosts[0], cookies)


@dataclass(frozen=True, slots=True)
class Access:
    """``room``: the part of the path that nobody else's server knows; ``token``: the secret. Both are hex digits."""

    port: int
    room: str
    token: str

    @property
    def path(self) -> str:
        return f"/{self.room}/"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}?token={self.token}"

    @property
    def cookie(self) -> str:
        """The header's value that lets in whoever had the address."""
        return f"{_COOKIE}={self.token}; Path={self.path}; HttpOnly; SameSite=Strict"

    def admit(self, request: PageRequest) -> str:
        """What is wanted: "enter" with the token in the address, or a name below the path, "" for the page. Raises
        PageRefused.
        """
        if request.method != "GET":
            raise PageRefused(405, "only GET is answered")
        if request.host not in {f"{name}:{self.port}" for name in ("127.0.0.1", "[::1]", "localhost")}:
            raise PageRefused(
                403, f"this page is only at 127.0.0.1:{self.port}: forward the same port to see it elsewhere"
            )
        if not request.path.startswith(self.path):
            raise PageRefused(404, "there is nothing here: open the address that calicoctl printed")
        wanted = request.path.removeprefix(self.path)
        enters = not wanted and "token" in request.query
        given = request.query["token"] if enters else request.cookies.get(_COOKIE, "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self.token.encode()):
            raise PageRefused(403, "open the address that calicoctl printed")
        return "enter" if enters else wanted
