"""Tokens for a service account (TokenRequest), and the kubeconfig that contains one. The plugin reads that file.

Rule: a token is kept in memory and in that one file (mode 0600), nowhere else; no message contains it. Where the
default account is missing, or its tokens are forbidden to us, as with manifests older than that account, the token of
the pod we run in stands in; for an account that was chosen nothing does.
"""

from __future__ import annotations

import json
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass, field

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import service_account_path
from cni_calico.datastore.kubernetes.login import read_file
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreError, DatastoreForbidden, DatastoreUnsupported
from cni_calico.model.access import CNI_ACCOUNT

LIFETIME_S = 24 * 3600
STAND_IN_LOOK_S = 300.0  # how often another token is looked for while the pod's own stands in


@dataclass(frozen=True, slots=True)
class Token:
    """``lifetime_s``: how long it is valid from its issue, according to the server. ``stands_in``: why it is the pod's
    own; "" if it is the account's.
    """

    text: str = field(repr=False)
    lifetime_s: float
    stands_in: str = ""


def request_token(
    api: KubernetesAPI, namespace: str, account: str, deadline: Deadline, *, lifetime_s: int = LIFETIME_S
) -> Token:
    """A new token of a service account. Raises DatastoreError, DeadlineExceeded.

    The server may give it a shorter or longer lifetime than requested.
    """
    doing = f"get a token of service account {namespace}/{account}"
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": lifetime_s},
    }
    path = f"{service_account_path(namespace, account)}/token"
    try:
        reply = api.send(ApiRequest("POST", path, doing, body=body), deadline)
    except DatastoreUnsupported as e:  # 404
        raise DatastoreUnsupported(
            e.message, details="create that service account, or name another one in CALICO_CNI_SERVICE_ACCOUNT"
        ) from e
    status = reply.document.get("status") or {}
    text = status.get("token")
    if not isinstance(text, str) or not text:
        raise DatastoreError(f"cannot {doing}: the answer has none")
    return Token(text, parse_lifetime_s(text, default_s=lifetime_s))


def find_token(
    api: KubernetesAPI,
    namespace: str,
    account: str,
    deadline: Deadline,
    *,
    own: str,
    lifetime_s: int = LIFETIME_S,
) -> Token:
    """A new token of the account, or in its stead the one in the file ``own`` ("": there is none), the pod's.

    Raises DatastoreError, DeadlineExceeded.
    """
    try:
        return request_token(api, namespace, account, deadline, lifetime_s=lifetime_s)
    except (DatastoreForbidden, DatastoreUnsupported) as e:
        text = read_pod_token(own) if own and account == CNI_ACCOUNT else ""
        if not text:
            raise
        return Token(text, parse_lifetime_s(text, default_s=lifetime_s), stands_in=e.message)


def read_pod_token(path: str) -> str:
    """The token in a file of a pod's service account; "" if there is none."""
    try:
        return read_file(path).decode("ascii", "replace").strip()
    except OSError:
        return ""


def stand_in_warning(token: Token) -> str:
    """What to tell about the pod's own token."""
    return (
        f"{token.stands_in}. The plugin uses the token of this pod instead, with the rights of this pod's account and "
        f"only for as long as the pod exists. Better: create the service account {CNI_ACCOUNT} with its role, and "
        "allow this pod's account to create its tokens (serviceaccounts/token), as this version's manifests do"
    )


def parse_lifetime_s(token: str, *, default_s: float) -> float:
    """The time from ``iat`` to ``exp`` of a JWT: both come from the server's clock, because this host's may
    be wrong.
    """
    try:
        payload = token.split(".")[1].replace("-", "+").replace("_", "/")
        claims = json.loads(a2b_base64(payload + "=" * (-len(payload) % 4)))
        return max(0.0, float(claims["exp"]) - float(claims["iat"]))
    except (ValueError, KeyError, IndexError, TypeError):
        return default_s


def render_kubeconfig(server: str, token: str, ca: bytes | None) -> bytes:
    """A kubeconfig as JSON, which is YAML too: the plugin reads it without a YAML parser. ``ca`` None: not verified."""
    trust = (
        {"insecure-skip-tls-verify": True}
        if ca is None
        else {"certificate-authority-data": b2a_base64(ca, newline=False).decode()}
    )
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "local", "cluster": {"server": server, **trust}}],
        "users": [{"name": "calico", "user": {"token": token}}],
        "contexts": [{"name": "calico-context", "context": {"cluster": "local", "user": "calico"}}],
        "current-context": "calico-context",
    }
    return json.dumps(document, indent=2).encode() + b"\n"


def refresh_pause_s(token: Token, *, random: float) -> float:
    """When to get the next token: after a half to three quarters of its lifetime; ``random`` is from 0 to 1.

    The kubelet renews a pod's own token after four fifths of its lifetime: that one is looked at more often.
    """
    if token.stands_in:
        return min(STAND_IN_LOOK_S, token.lifetime_s / 10)
    return token.lifetime_s * (0.5 + 0.25 * random)
