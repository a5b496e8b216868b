"""The door to a Kubernetes API server: authenticated requests, repeated when that is safe, with errors of our tree.

Rule: an answer of the server is either returned or raised as one of cni_calico.errors, with the server's own sentence
(which names user, verb and resource). Credentials are read once for all threads, and again when they have changed;
attempt.py says what is repeated.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.http import Connection, HttpAnswer
from cni_calico.datastore.interface import RoundTrips
from cni_calico.datastore.kubernetes.answers import ApiReply, decode_answer, require_known_type
from cni_calico.datastore.kubernetes.attempt import READ, WATCH, ApiRequest, ApiSession, Attempt
from cni_calico.datastore.kubernetes.login import Login, Read, read_file, read_login
from cni_calico.datastore.kubernetes.throttle import Throttle
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded
from cni_calico.model.access import KubernetesAccess
from cni_calico.redaction import shown_url

_INHERITED: list[object] = []
# Lists side by side. A TLS handshake takes more of the processor than a short list, and the next one can have the
# connection of one that has ended; whoever has waited so long for that opens one more.
_LISTS = 8
_TURN_S = 0.1


class KubernetesAPI:
    """An API server as reached through ``access``. Thread-safe. ``read`` opens credential files; ``login`` reads the
    credentials, if not from where ``access`` says.
    """

    def __init__(
        self, access: KubernetesAccess, *, read: Read = read_file, login: Callable[[Deadline], Login] | None = None
    ) -> None:
        self.access = access
        self._login = login
        self.round_trips = RoundTrips()
        self.read = read
        self._throttle = Throttle(access.qps, access.burst)
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._lists = threading.Semaphore(_LISTS)
        self._session: ApiSession | None = None
        self._pid = os.getpid()

    @property
    def identity(self) -> str:
        """A name of the server for logs, known without a request."""
        return self.access.kubeconfig or shown_url(self.access.api_root) or "in the cluster"

    # -- whole answers ------------------------------------------------------------------------------------------------

    def get(self, path: str, deadline: Deadline, doing: str) -> Mapping[str, Any] | None:
        """An object; None if it does not exist. Raises DatastoreError, DeadlineExceeded."""
        reply = self.send(ApiRequest("GET", path, doing, expect=(404,)), deadline)
        if reply.status == 404:
            require_known_type(reply, path, doing)
            return None
        return reply.document

    def send(self, request: ApiRequest, deadline: Deadline) -> ApiReply:
        """The answer to one request. Raises DatastoreError, DeadlineExceeded."""
        attempt = Attempt(self, request, deadline)
        answer = _settled(attempt)
        return ApiReply(answer.status, decode_answer(answer, request.doing), attempt.maybe_applied)

    def text(self, path: str, deadline: Deadline, doing: str) -> str:
        """An answer that is not JSON, such as a log. Raises DatastoreError, DeadlineExceeded."""
        return _settled(Attempt(self, ApiRequest("GET", path, doing), deadline)).body.decode("utf-8", "replace")

    def items(self, request: ApiRequest, deadline: Deadline, receive: Callable[[Any], object]) -> Mapping[str, Any]:
        """Read a list, calling ``receive`` for each item as it arrives; returns the rest of its document. The call may
        fail after some items. Raises DatastoreError, DeadlineExceeded.
        """
        turns = self._lists
        has_turn = turns.acquire(timeout=min(_TURN_S, deadline.remaining_s()))
        try:
            attempt = Attempt(self, request, deadline)
            while True:
                answer = attempt.open(READ)
                if isinstance(answer, HttpAnswer) and answer.status >= 400:
                    attempt.settle(answer)
                    continue
                return attempt.parse_items(answer, receive)
        finally:
            if has_turn:
                turns.release()

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self, path: str, deadline: Deadline, doing: str, *, accept: str = "") -> Connection:
        """A connection whose chunked answer is a stream of events. Raises DatastoreError, DeadlineExceeded."""
        attempt = Attempt(self, ApiRequest("GET", path, doing, accept=accept), deadline)
        while True:
            connection = attempt.open(WATCH)
            if isinstance(connection, Connection):
                return connection
            attempt.settle(connection)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def session(self, deadline: Deadline) -> ApiSession:
        """The credentials, read once for all threads; each waits for them no longer than its own deadline.

        Raises DatastoreDenied, DeadlineExceeded.
        """
        if (found := self._known()) is not None:
            return found
        doing = "log in to the Kubernetes API server"
        if not self._opening.acquire(timeout=deadline.require(doing)):
            raise DeadlineExceeded(f"cannot {doing}: the credentials did not come in time")
        try:
            found = self._known()
            if found is None:
                found = ApiSession(self.login(deadline))
                with self._lock:
                    self._session = found
            return found
        finally:
            self._opening.release()

    def login(self, deadline: Deadline) -> Login:
        """The server and credentials as they are now. Raises DatastoreDenied, DeadlineExceeded."""
        return self._login(deadline) if self._login else read_login(self.access, deadline, read=self.read)

    def _known(self) -> ApiSession | None:
        with self._lock:
            if self._pid != os.getpid():  # a fork's connections belong to its parent: forgotten, not closed
                _INHERITED.append(self._session)
                self._pid, self._session = os.getpid(), None
                self._opening, self._lists = threading.Lock(), threading.Semaphore(_LISTS)
            return self._session

    def renew(self, used: ApiSession) -> None:
        """Read the credentials again, unless another thread has done so since ``used`` was taken."""
        with self._lock:
            if self._session is used:
                self._session = None
                used.pool.close()

    def throttle(self, deadline: Deadline, doing: str) -> None:
        self._throttle.wait(deadline, doing)

    def close(self) -> None:
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.pool.close()


def _settled(attempt: Attempt) -> HttpAnswer:
    """The final answer."""
    while (answer := attempt.run()) is None or (answer.status >= 400 and answer.status not in attempt.request.expect):
        if answer is not None:
            attempt.settle(answer)
    return answer
