"""The door to AWS: one request over HTTP, and its answer.

Rule: an answer has a size and a time, whoever gives it. Redirects are not followed: they would lead a secret elsewhere.
"""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain

ANSWER_BYTES = 4 << 20


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
    where = f"{parts.scheme}://{parts.netloc}"
    try:
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise TryAgain(f"cannot ask {where}: it is no address of HTTP")
        timeout_s = deadline.require("ask AWS")
        connection = (
            http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=timeout_s, context=ssl.create_default_context()
            )
            if parts.scheme == "https"
            else http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
        )
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request(method, path, body.encode() if body else None, dict(headers or {}))
            response = connection.getresponse()
            data = response.read(ANSWER_BYTES + 1)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise TryAgain(f"cannot ask {where}: {e or type(e).__name__}") from e
    if len(data) > ANSWER_BYTES:
        raise TryAgain(f"cannot ask {where}: its answer has more than {ANSWER_BYTES} bytes")
    return AwsAnswer(response.status, data.decode("utf-8", "replace"), response.getheader("Date") or "")
