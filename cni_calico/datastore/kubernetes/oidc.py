"""PURE: the token in a kubeconfig's ``auth-provider`` section.

Rule: of the providers only ``oidc`` is left, as in Kubernetes' own clients since 1.26. A token is used while it is
valid and never renewed here: an identity provider may accept a refresh token only once, and only kubectl, which owns
the file, can store the new one.
"""

from __future__ import annotations

import json
from binascii import Error, a2b_base64
from typing import Any

from cni_calico.errors import DatastoreDenied

MARGIN_S = 10  # as Kubernetes' clients
_USE_EXEC = "use a credential program (exec), a certificate or a token"
_RENEW = "run any kubectl command with that kubeconfig: it gets a new token and stores it there; or use exec"


def oidc_token(provider: Any, path: str, now_s: float) -> str:
    """The identity token of an ``auth-provider`` section. Raises DatastoreDenied."""
    name = provider.get("name") if isinstance(provider, dict) else None
    values = provider.get("config") if isinstance(provider, dict) else None
    if name != "oidc":
        raise DatastoreDenied(
            f"cannot use kubeconfig {path}: no auth-provider {name!r} exists any more", details=_USE_EXEC
        )
    token = values.get("id-token") if isinstance(values, dict) else None
    if not isinstance(token, str) or not token:
        raise DatastoreDenied(f"cannot use kubeconfig {path}: its auth-provider oidc has no id-token", details=_RENEW)
    if _expires_s(token, path) < now_s + MARGIN_S:
        raise DatastoreDenied(f"cannot use kubeconfig {path}: the id-token of its oidc has expired", details=_RENEW)
    return token


def _expires_s(token: str, path: str) -> float:
    """The claim ``exp`` (RFC 7519), seconds since 1970. The token's signature is for the API server to verify."""
    try:
        _, claims, _ = token.split(".")
        text = claims.replace("-", "+").replace("_", "/")
        parsed = json.loads(a2b_base64(text + "=" * (-len(text) % 4)))
        return float(parsed["exp"])
    except (ValueError, Error, TypeError, KeyError, RecursionError):
        raise DatastoreDenied(
            f"cannot use kubeconfig {path}: its id-token is not a JSON Web Token", details=_RENEW
        ) from None
