"""Who may use a relay: holders of a certificate with the right name, or of a token of the right service account.

Rule: nobody else gets an answer. The API server reviews a token (TokenReview), and its answer is remembered for a while
under the token's digest; while the API server does not answer, only remembered tokens are accepted.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable

from cni_calico.daemon.threads import SideThreads
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ALLOWED_S, REFUSED_S = 300.0, 10.0
REVIEW_S = 5.0
THREADS = 4
MOST_WAITING = 2000
MOST_REMEMBERED = 50_000


class TokenReviews:
    """``users``: the users whose tokens are accepted. ``wake`` is called when an answer has come."""

    def __init__(self, api: KubernetesAPI, users: frozenset[str], wake: Callable[[], None]) -> None:
        self.failed = ""
        self._api = api
        self._users = users
        self._wake = wake
        self._threads = SideThreads(THREADS, "relay-reviews")
        self._guard = threading.Lock()
        self._known: dict[bytes, tuple[float, str]] = {}  # until when (time.monotonic), and why not ("": allowed)
        self._asking: set[bytes] = set()

    def why_not(self, token: str) -> str | None:
        """Why a token is not accepted, "" if it is; None: it is being reviewed."""
        if not token:
            return "no token, and no certificate that this relay accepts"
        digest = hashlib.sha256(token.encode("latin-1", "replace")).digest()
        now = time.monotonic()
        with self._guard:
            until, why = self._known.get(digest, (0.0, ""))
            if now < until:
                return why
            if digest in self._asking:
                return None
            if len(self._asking) >= MOST_WAITING:
                return "too many tokens are waiting to be reviewed"
            self._asking.add(digest)
        self._threads.submit(lambda: self._ask(digest, token))
        return None

    def _ask(self, digest: bytes, token: str) -> None:
        until_s, why = REFUSED_S / 10, "the API server does not answer"
        try:
            until_s, why = self._review(token)
        except CalicoError as e:
            why = self.failed = str(e)
        finally:
            with self._guard:
                self._asking.discard(digest)
                if len(self._known) >= MOST_REMEMBERED:
                    self._forget()
                self._known[digest] = (time.monotonic() + until_s, why)
            self._wake()

    def _review(self, token: str) -> tuple[float, str]:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        reply = self._api.request("POST", REVIEWS, Deadline.after(REVIEW_S), "review a client's token", body=body)
        self.failed = ""
        status = reply.document.get("status") or {}
        user = str((status.get("user") or {}).get("username") or "")
        if not status.get("authenticated"):
            return REFUSED_S, "the API server does not accept this token"
        if user not in self._users:
            return REFUSED_S, f"{user} may not use this relay, only {', '.join(sorted(self._users))}"
        return ALLOWED_S, ""

    def _forget(self) -> None:
        """Make room: drop expired answers; if there are none, drop all."""
        now = time.monotonic()
        self._known = {digest: kept for digest, kept in self._known.items() if kept[0] > now}
        if len(self._known) >= MOST_REMEMBERED:
            self._known = {}

    def close(self) -> None:
        self._threads.close()
