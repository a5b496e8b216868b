"""A request to one of AWS' services, signed. Source: AWS' documentation of Signature Version 4.

Rule: nothing of a secret is in what comes out but its signature.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """``session``: of temporary ones."""

    key: str
    secret: str = field(repr=False)
    session: str = field(default="", repr=False)


def render_form(parameters: Mapping[str, str]) -> str:
    """The body of a POST, sorted."""
    pairs = sorted(parameters.items())
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)


def sign_post(
    url: str, body: str, credentials: AwsCredentials, *, region: str, service: str, timestamp: str
) -> dict[str, str]:
    """The headers of a POST. ``timestamp``: UTC, as 20260101T000000Z."""
    parts = urlsplit(url)
    headers = {
        "content-type": "application/x-www-form-urlencoded",
        "host": parts.netloc,
        "x-amz-date": timestamp,
    }
    if credentials.session:
        headers["x-amz-security-token"] = credentials.session
    names = ";".join(sorted(headers))
    canonical = "\n".join(
        [
            "POST",
            quote(parts.path or "/", safe="/-_.~"),
            parts.query,
            *(f"{name}:{headers[name].strip()}" for name in sorted(headers)),
            "",
            names,
            _digest(body),
        ]
    )
    scope = f"{timestamp[:8]}/{region}/{service}/aws4_request"
    to_sign = "\n".join([_ALGORITHM, timestamp, scope, _digest(canonical)])
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, to_sign.encode(), "sha256").hex()
    authorization = f"{_ALGORITHM} Credential={credentials.key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**headers, "authorization": authorization}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
