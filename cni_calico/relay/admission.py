"""Who may use a relay: holders of a certificate with the right name, or of a token of the right service account.

Rule: nobody else gets an answer. The API server reviews a token (TokenReview): a token for the relays' audience is
reviewed for that, any other one as a token for the API server. An answer counts for a while, and for up to an hour
while the API server does not answer. Tokens that were accepted before are reviewed first; the others take turns by
peer, so strangers delay nobody. Source: the API server itself remembers a token that it accepted for 10 s.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cni_calico.daemon.threads import SideThreads
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.relay.answers import Answers
from cni_calico.relay.fair_queue import FairQueue
from cni_calico.relay.tokens import Accepted, is_token, parse_audiences, peer_of

REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
REFUSED_S, UNANSWERED_S = 10.0, 1.0
STANDS_IN_S = 3600.0
REVIEW_S = 5.0
RETRY_S = 2.0
THREADS = 8
PEER_AT_ONCE = 2  # reviews of one peer's unknown tokens that are under way together
PEER_WAITING, MOST_WAITING = 64, 6000


@dataclass(frozen=True, slots=True)
class _Asked:
    digest: bytes
    token: str = field(repr=False)
    audiences: tuple[str, ...] = ()  # "()": the API server's own


class TokenReviews:
    """``wake`` is called when an answer has come, ``clock`` gives seconds. Thread-safe."""

    def __init__(
        self,
        api: KubernetesAPI,
        accepted: Accepted,
        wake: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        threads: int = THREADS,
    ) -> None:
        self.failed = ""  # why the API server did not answer the last review, "" if it did
        self._api = api
        self._accepted = accepted
        self._wake = wake
        self._clock = clock
        self._most_at_work = threads
        self._threads = SideThreads(threads, "relay-reviews")
        self._guard = threading.Lock()
        self._answers = Answers()
        self._asking: set[bytes] = set()
        self._known: deque[_Asked] = deque()  # accepted before
        self._strangers: FairQueue[_Asked] = FairQueue(PEER_WAITING, MOST_WAITING)
        self._reviewed_now: Counter[str] = Counter()  # by peer: of strangers
        self._rests: dict[bytes, float] = {}  # until when a token is not reviewed again, for want of answers
        self._at_work = 0
        self.reviews = 0  # asked so far
        self._closed = False

    def why_not(self, token: str, address: str, *, fresh_s: float) -> str | None:
        """Why a token is not accepted, "" if it is; None: it is being reviewed. ``fresh_s``: how old an answer of the
        API server may be, ``address``: where the token came from.
        """
        if not token:
            return "no token, and no certificate that this relay accepts"
        if not is_token(token):
            return "this is no token"
        digest = hashlib.sha256(token.encode()).digest()
        with self._guard:
            now = self._clock()
            at = self._answers.allowed_at(digest)
            if at is not None and now - at < fresh_s:
                return ""
            if why := self._answers.refused(digest, now):
                return why
            stands_in = at is not None and bool(self.failed) and now - at < STANDS_IN_S
            if digest not in self._asking and now >= self._rests.get(digest, 0.0):
                why = self._ask(digest, token, address, known=at is not None)
                if why:
                    return why
            return "" if stands_in else None

    # -- asking -------------------------------------------------------------------------------------------------------

    def _ask(self, digest: bytes, token: str, address: str, *, known: bool) -> str:
        """Have a token reviewed; returns why it is not, "" if it is. Under the guard."""
        audiences = self._audiences_for(token)
        if audiences is None:
            return f"this token is for others: this relay takes tokens for {self._accepted.audience} only"
        asked = _Asked(digest, token, audiences)
        if known:
            self._known.append(asked)
        else:
            crowded_out = self._strangers.put(peer_of(address), asked)
            if crowded_out is asked:
                return "too many tokens are waiting to be reviewed"
            if crowded_out is not None:  # its client asks again, and is told so then
                self._asking.discard(crowded_out.digest)
        self._asking.add(digest)
        if self._at_work < self._most_at_work and not self._closed:
            self._at_work += 1
            self._threads.submit(self._work)
        return ""

    def _audiences_for(self, token: str) -> tuple[str, ...] | None:
        """For whom a token is to be reviewed; None: it is not accepted, whatever the review says."""
        accepted, said = self._accepted, parse_audiences(token)
        is_own = bool(accepted.audience) and accepted.audience in (said or ())
        if accepted.audience and (is_own or (said is None and not accepted.api_tokens)):
            return (accepted.audience,)
        return () if accepted.api_tokens else None

    def _next(self) -> tuple[str, _Asked] | None:
        with self._guard:
            if self._known:
                return "", self._known.popleft()
            found = self._strangers.pop(lambda peer: self._reviewed_now[peer] < PEER_AT_ONCE)
            if found is None:
                self._at_work -= 1
            else:
                self._reviewed_now[found[0]] += 1
            return found

    def _work(self) -> None:
        while (found := self._next()) is not None:
            peer, asked = found
            begun, why, failed = self._clock(), "the API server does not answer", True
            try:
                why, failed = self._review(asked), False
            except CalicoError as e:
                why = str(e)
            finally:
                self._note(peer, asked.digest, begun, why, failed=failed)
                self._wake()

    def _note(self, peer: str, digest: bytes, begun: float, why: str, *, failed: bool) -> None:
        with self._guard:
            now = self._clock()
            self.reviews += 1
            self._asking.discard(digest)
            if peer:
                self._reviewed_now[peer] -= 1
                if not self._reviewed_now[peer]:
                    del self._reviewed_now[peer]
            if not failed:
                self.failed = ""
                self._rests.clear()
                if why:
                    self._answers.refuse(digest, now + REFUSED_S, why)
                else:
                    self._answers.allow(digest, begun, STANDS_IN_S)
                return
            self.failed = why
            at = self._answers.allowed_at(digest)
            if at is not None and now - at < STANDS_IN_S:
                self._rests[digest] = now + RETRY_S
            else:
                self._answers.refuse(digest, now + UNANSWERED_S, why)

    def _review(self, asked: _Asked) -> str:
        """Why the API server's answer is no. Raises CalicoError if there is none."""
        spec = {"token": asked.token, **({"audiences": list(asked.audiences)} if asked.audiences else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec}
        reply = self._api.send(
            ApiRequest("POST", REVIEWS, "review a client's token", body=body), Deadline.after(REVIEW_S)
        )
        status = reply.document.get("status") or {}
        user = str((status.get("user") or {}).get("username") or "")
        if not status.get("authenticated"):
            return "the API server does not accept this token"
        # an API server that does not know audiences names none: the token is for itself
        is_own = set(asked.audiences) & set(status.get("audiences") or ())
        if asked.audiences and not is_own and not self._accepted.api_tokens:
            return f"the API server does not say that this token is for {', '.join(asked.audiences)}"
        if user not in self._accepted.users:
            return f"{user} may not use this relay, only {', '.join(sorted(self._accepted.users))}"
        return ""

    def close(self) -> None:
        self._closed = True
        self._threads.close()
