"""The door to a Kubernetes API server: authenticated requests, repeated when that is safe, with errors of our tree.

Rule: an answer of the server is either returned or raised as one of cni_calico.errors, with the server's own sentence
(which names user, verb and resource). A write is repeated only if the server cannot have applied it, or has asked to
repeat it later; ``ApiReply.repeated`` then says that an earlier attempt may have been applied after all.
"""

from __future__ import annotations

import json
import os
import threading
import time

from cni_calico import __version__, faults
from cni_calico.datastore.http import Connection, ConnectionPool, HttpAnswer, Lost, render_head
from cni_calico.datastore.interface import RoundTrips
from cni_calico.datastore.kubernetes.answers import ApiReply, decode_answer, message_of, refusal, require_known_type
from cni_calico.datastore.kubernetes.login import Login, is_outdated, read_file, read_login, unreachable_hint
from cni_calico.datastore.kubernetes.throttle import Throttle
from cni_calico.datastore.kubernetes.trust import server_of
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    CalicoError,
    DatastoreUnavailable,
    DeadlineExceeded,
    OutcomeUnknown,
)
from cni_calico.model.access import KubernetesAccess
from cni_calico.redaction import shown_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from cni_calico.datastore.kubernetes.login import Read

READ = faults.declare("kubernetes.read")
CREATE = faults.declare("kubernetes.create")
UPDATE = faults.declare("kubernetes.update")
PATCH = faults.declare("kubernetes.patch")
DELETE = faults.declare("kubernetes.delete")
WATCH = faults.declare("kubernetes.watch")

POINTS = {"GET": READ, "POST": CREATE, "PUT": UPDATE, "PATCH": PATCH, "DELETE": DELETE}
USER_AGENT = f"cni-calico/{__version__}"
ATTEMPTS = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0


_INHERITED: list[object] = []


class _ApiSession:
    """One reading of the credentials, and connections made with it."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.pool = ConnectionPool(server_of(login))
        self.headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        if login.authorization:
            self.headers["Authorization"] = login.authorization


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
        self._session: _ApiSession | None = None
        self._pid = os.getpid()

    @property
    def identity(self) -> str:
        """A name of the server for logs, known without a request."""
        return self.access.kubeconfig or shown_url(self.access.api_root) or "in the cluster"

    # -- whole answers ------------------------------------------------------------------------------------------------

    def get(self, path: str, deadline: Deadline, doing: str) -> Mapping[str, Any] | None:
        """An object; None if it does not exist. Raises DatastoreError, DeadlineExceeded."""
        reply = self.request("GET", path, deadline, doing, expect=(404,))
        if reply.status == 404:
            require_known_type(reply, path, doing)
            return None
        return reply.document

    def request(
        self,
        method: str,
        path: str,
        deadline: Deadline,
        doing: str,
        *,
        body: Any = None,
        content_type: str = "application/json",
        expect: tuple[int, ...] = (),
        accept: str = "",
    ) -> ApiReply:
        """One request; ``expect`` are the error statuses to return, ``accept`` is the requested form of the answer ("":
        JSON).

        Raises DatastoreError, DeadlineExceeded.
        """
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        attempt = _Attempt(self, method, path, data, content_type, deadline, doing, accept)
        answer, maybe_applied = self._settled(attempt, expect)
        return ApiReply(answer.status, decode_answer(answer, doing), maybe_applied)

    def text(self, path: str, deadline: Deadline, doing: str) -> str:
        """An answer that is not JSON, such as a log. Raises DatastoreError, DeadlineExceeded."""
        answer, _ = self._settled(_Attempt(self, "GET", path, b"", "", deadline, doing), ())
        return answer.body.decode("utf-8", "replace")

    def _settled(self, attempt: _Attempt, expect: tuple[int, ...]) -> tuple[HttpAnswer, bool]:
        """The final answer, and whether an earlier attempt may have been applied."""
        while (answer := attempt.run()) is None or (answer.status >= 400 and answer.status not in expect):
            if answer is not None:
                attempt.settle(answer)
        return answer, attempt.maybe_applied

    def items(
        self,
        path: str,
        deadline: Deadline,
        doing: str,
        take: Callable[[Any], object],
        *,
        accept: str = "",
        packed: bool = False,
    ) -> Mapping[str, Any]:
        """Read a list, calling ``take`` for each item as it arrives; returns the rest of its document. ``packed``: the
        answer may be compressed. The call may fail after some items. Raises DatastoreError, DeadlineExceeded.
        """
        attempt = _Attempt(self, "GET", path, b"", "", deadline, doing, accept)
        attempt.packed = packed
        while True:
            answer = attempt.open(READ)
            if isinstance(answer, HttpAnswer) and answer.status >= 400:
                attempt.settle(answer)
                continue
            return attempt.parse_items(answer, take)

    # -- streams ------------------------------------------------------------------------------------------------------

    def stream(self, path: str, deadline: Deadline, doing: str, *, accept: str = "") -> Connection:
        """A connection whose chunked answer is a stream of events. Raises DatastoreError, DeadlineExceeded."""
        attempt = _Attempt(self, "GET", path, b"", "", deadline, doing, accept)
        while True:
            connection = attempt.open(WATCH)
            if isinstance(connection, Connection):
                return connection
            attempt.settle(connection)

    # -- sessions -----------------------------------------------------------------------------------------------------

    def session(self, deadline: Deadline) -> _ApiSession:
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
                found = _ApiSession(self.login(deadline))
                with self._lock:
                    self._session = found
            return found
        finally:
            self._opening.release()

    def login(self, deadline: Deadline) -> Login:
        """The server and credentials as they are now. Raises DatastoreDenied, DeadlineExceeded."""
        return self._login(deadline) if self._login else read_login(self.access, deadline, read=self.read)

    def _known(self) -> _ApiSession | None:
        with self._lock:
            if self._pid != os.getpid():  # a fork's connections belong to its parent: forgotten, not closed
                _INHERITED.append(self._session)
                self._pid, self._session = os.getpid(), None
                self._opening = threading.Lock()
            return self._session

    def renew(self, used: _ApiSession) -> None:
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


class _Attempt:
    """One request and its repetitions."""

    def __init__(
        self,
        api: KubernetesAPI,
        method: str,
        path: str,
        data: bytes,
        content_type: str,
        deadline: Deadline,
        doing: str,
        accept: str = "",
    ) -> None:
        self.api = api
        self.method = method
        self.path = path
        self.data = data
        self.content_type = content_type
        self.deadline = deadline
        self.doing = doing
        self.accept = accept
        self.writing = method != "GET"
        self.maybe_applied = False
        self.packed = False
        self._count = 0
        self._renewed = False
        self._lost = False
        self._session: _ApiSession | None = None

    def run(self) -> HttpAnswer | None:
        """The answer; None if it must run again. Raises DatastoreError, DeadlineExceeded."""
        session = self._begin(write=self.writing)
        headers = self._headers(session)
        if self.data:
            headers["Content-Type"] = self.content_type
        point = POINTS[self.method]
        try:
            faults.before(point)
            answer = session.pool.request(self.method, self.path, headers, self.data, self.deadline)
            faults.after(point)
            return answer
        except OSError as e:
            self._fail(e)
            return None

    def open(self, point: str) -> Connection | HttpAnswer:
        """A stream's connection, or an answer that is not a stream. ``point`` is the fault point of the request."""
        session = self._begin(write=False)
        server = session.pool.server
        connection: Connection | None = None
        try:
            faults.before(point)
            connection = Connection(server, self.deadline)
            connection.send(render_head(server, "GET", self.path, self._headers(session), 0), b"", self.deadline)
            status, headers = connection.read_head(self.deadline)
            if status == 200 and "chunked" in headers.get("transfer-encoding", ""):
                faults.after(point)
                return connection
            answer = HttpAnswer(status, headers, connection.read_body(status, headers, self.deadline))
        except OSError as e:
            if connection is not None:
                connection.close()
            raise self._unavailable(e) from e
        connection.close()
        return answer

    def parse_items(self, answer: Connection | HttpAnswer, take: Callable[[Any], object]) -> Mapping[str, Any]:
        """Raises DatastoreError, DeadlineExceeded."""
        from cni_calico.datastore.kubernetes.items import ItemParser, unpacked  # not on the path of a CNI call

        parser = ItemParser()
        try:
            pieces: Iterable[bytes]
            if isinstance(answer, HttpAnswer):
                pieces = (answer.body,)
            else:
                pieces = answer.chunks(lambda: self.deadline, None)
                pieces = unpacked(pieces) if answer.gzipped else pieces
            for piece in pieces:
                for item in parser.feed(piece):
                    take(item)
            return parser.finish()
        except OSError as e:
            self.api.round_trips.errors += 1
            raise self._unavailable(e) from e
        except (ValueError, RecursionError) as e:
            raise DatastoreUnavailable(f"cannot {self.doing}: the answer is not a JSON list: {e}") from e
        finally:
            if isinstance(answer, Connection):
                answer.close()

    def _headers(self, session: _ApiSession) -> dict[str, str]:
        headers = dict(session.headers)
        if self.accept:
            headers["Accept"] = self.accept
        if self.packed:
            headers["Accept-Encoding"] = "gzip"
        return headers

    def _begin(self, *, write: bool) -> _ApiSession:
        self.deadline.require(self.doing)
        self.api.throttle(self.deadline, self.doing)
        self._session = self.api.session(self.deadline)
        self.api.round_trips.count(self.method.lower(), write=write)
        return self._session

    def _fail(self, error: OSError) -> None:
        """Raises, or returns if the request may be made once more."""
        self.api.round_trips.errors += 1
        lost = isinstance(error, Lost) or (isinstance(error, faults.Injected) and error.when == "after")
        if lost and self.writing:
            raise OutcomeUnknown(
                f"cannot {self.doing}: {error}; it may have been done", details=DatastoreUnavailable.hint
            ) from error
        first, self._lost = not self._lost, self._lost or lost
        if (lost and first and not self.deadline.expired()) or self._has_renewed(error):
            return
        raise self._unavailable(error) from error

    def _has_renewed(self, error: OSError) -> bool:
        """Whether TLS failed, before anything was sent, because of files that have been replaced since they
        were read.
        """
        from ssl import SSLError  # loaded by then

        session, api = self._session, self.api
        if self._renewed or session is None or not isinstance(error.__cause__, SSLError):
            return False
        if not is_outdated(session.login, lambda: api.login(self.deadline)):
            return False
        self._renewed = True
        self.api.renew(session)
        return True

    def _unavailable(self, error: OSError) -> CalicoError:
        text = f"cannot {self.doing}: {error}"
        hint = unreachable_hint(self.api.access)
        if self.deadline.expired():
            return DeadlineExceeded(text, details=hint)
        return DatastoreUnavailable(text, details=hint)

    def settle(self, answer: HttpAnswer) -> None:
        """Raises the error that an answer means, or returns if the request is to be made once more."""
        self.api.round_trips.errors += 1
        if answer.status == 401 and not self._renewed:
            self._renewed = True
            assert self._session is not None
            self.api.renew(self._session)
            return
        if answer.status == 429 or answer.status >= 500:
            self._settle_overload(answer)
            return
        raise refusal(answer, self.doing)

    def _settle_overload(self, answer: HttpAnswer) -> None:
        told = answer.headers.get("retry-after", "")
        self._count += 1
        if self.writing and answer.status != 429:
            self.maybe_applied = True
            if not told:
                raise OutcomeUnknown(f"cannot {self.doing}: {message_of(answer)}; it may have been done")
        if self._count >= ATTEMPTS:
            raise self._overloaded(answer)
        pause_s = float(told) if told.isascii() and told.isdecimal() else backoff_s(self._count)
        if pause_s >= self.deadline.remaining_s():
            raise self._overloaded(answer)
        time.sleep(pause_s)

    def _overloaded(self, answer: HttpAnswer) -> CalicoError:
        kind = OutcomeUnknown if self.maybe_applied else DatastoreUnavailable
        state = "overloaded" if answer.status == 429 else "failing"
        details = f"the Kubernetes API server is {state}: it answers with status {answer.status}"
        return kind(f"cannot {self.doing}: {message_of(answer)}", details=details)


def backoff_s(attempt: int, *, random: Callable[[int], bytes] = os.urandom) -> float:
    """Doubles from 0.1 s to 5 s, less up to half of it at random, so that many clients do not come back at once."""
    full = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 16))
    return full * (1 - random(1)[0] / 512)
