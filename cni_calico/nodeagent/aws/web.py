"""The door to AWS: one request over HTTP, and its answer.

Rule: an answer has a size and a time, whoever gives it. Redirects are not followed: they would lead a secret elsewhere.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from cni_calico.datastore.http import Connection, Server
from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain

ANSWER_BYTES = 4 << 20
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class AwsAnswer:
    """``date``: the server's clock, as its header has it."""

    status: int
    text: str
    date: str = ""


def ask(
    method: str, url: str, deadline: Deadline, headers: Mapping[str, str] | None = None, body: str = ""
) -> AwsAnswer:
    """Raises TryAgain if there is no answer."""
    parts = urlsplit(url)
    authority = parts.netloc.rpartition("@")[2]
    where = f"{parts.scheme}://{authority}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = [f"{method} {path} HTTP/1.1", f"Host: {authority}", "Connection: close"]
    if method != "GET":
        head.append(f"Content-Length: {len(body.encode())}")
    for name, value in (headers or {}).items():
        if not value.isascii() or not value.isprintable():  # the value is a secret
            raise TryAgain(f"cannot ask {where}: what is to be its header {name} has characters that none can have")
        if name.lower() != "host":  # the same, of a signed request
            head.append(f"{name}: {value}")
    try:
        port = parts.port or _PORTS.get(parts.scheme)
        if port is None or not parts.hostname or not path.isascii() or " " in path or not path.isprintable():
            raise TryAgain(f"cannot ask {where}: it is no address of HTTP")
        deadline.require("ask AWS")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        with closing(Connection(Server(parts.hostname, port, tls=tls), deadline)) as connection:
            connection.send("\r\n".join([*head, "", ""]).encode(), body.encode(), deadline)
            status, given = connection.read_head(deadline)
            data = connection.read_body(status, given, deadline, ANSWER_BYTES)
    except (OSError, ValueError) as e:
        raise TryAgain(f"cannot ask {where}: {e or type(e).__name__}") from e
    return AwsAnswer(status, data.decode("utf-8", "replace"), given.get("date", ""))
