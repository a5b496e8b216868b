"""One request to a Kubernetes API server, and its repetitions.

Rule: a write is repeated only if the server cannot have applied it, or has asked to repeat it later; ``maybe_applied``
then says that an earlier attempt may have been applied after all. Credentials that were refused, or whose files have
changed, are read again once.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cni_calico import __version__, faults
from cni_calico.datastore.http import Connection, ConnectionPool, HttpAnswer, Lost, render_head
from cni_calico.datastore.interface import RoundTrips
from cni_calico.datastore.kubernetes.answers import failed_webhook, message_of, refusal
from cni_calico.datastore.kubernetes.login import Login, is_outdated, unreachable_hint
from cni_calico.datastore.kubernetes.trust import server_of
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    CalicoError,
    DatastoreUnavailable,
    DeadlineExceeded,
    OutcomeUnknown,
)
from cni_calico.model.access import KubernetesAccess


class Sessions(Protocol):
    """What an attempt needs of the API: credentials, connections made with them, and who counts."""

    access: KubernetesAccess
    round_trips: RoundTrips

    def session(self, deadline: Deadline) -> ApiSession: ...

    def login(self, deadline: Deadline) -> Login: ...

    def renew(self, used: ApiSession) -> None: ...

    def throttle(self, deadline: Deadline, doing: str) -> None: ...


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


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """``doing`` is what it is for, in words. ``expect`` are the error statuses that are returned, not raised.
    ``accept``: the form of the answer that is asked for ("": JSON), which may be compressed if ``packed``.
    """

    method: str
    path: str
    doing: str
    body: Any = None
    content_type: str = "application/json"
    expect: tuple[int, ...] = ()
    accept: str = ""
    packed: bool = False


class ApiSession:
    """One reading of the credentials, and connections made with it."""

    def __init__(self, login: Login) -> None:
        self.login = login
        self.pool = ConnectionPool(server_of(login))
        self.headers = {"User-Agent": USER_AGENT, "Accept": "application/json"}
        if login.authorization:
            self.headers["Authorization"] = login.authorization


class Attempt:
    """One request and its repetitions."""

    def __init__(self, api: Sessions, request: ApiRequest, deadline: Deadline) -> None:
        self.api = api
        self.request = request
        self.deadline = deadline
        self.writing = request.method != "GET"
        self.maybe_applied = False
        self._data = b"" if request.body is None else json.dumps(request.body, separators=(",", ":")).encode()
        self._count = 0
        self._renewed = False
        self._lost = False
        self._session: ApiSession | None = None

    def run(self) -> HttpAnswer | None:
        """The answer; None if it must run again. Raises DatastoreError, DeadlineExceeded."""
        session = self._begin(write=self.writing)
        headers = self._headers(session)
        if self._data:
            headers["Content-Type"] = self.request.content_type
        point = POINTS[self.request.method]
        try:
            faults.before(point)
            answer = session.pool.request(self.request.method, self.request.path, headers, self._data, self.deadline)
            faults.after(point)
            return answer
        except OSError as e:
            self._fail(e)
            return None

    def open(self, point: str) -> Connection | HttpAnswer:
        """A stream's connection, or an answer that is not a stream. ``point`` is the fault point of the request."""
        session = self._begin(write=False)
        pool = session.pool
        try:
            faults.before(point)
            used = pool.borrow_idle()
            try:
                return self._ask(session, used or Connection(pool.server, self.deadline), point)
            except Lost:
                if used is None or self.deadline.expired():
                    raise
                return self._ask(session, Connection(pool.server, self.deadline), point)
        except OSError as e:
            raise self._unavailable(e) from e

    def _ask(self, session: ApiSession, connection: Connection, point: str) -> Connection | HttpAnswer:
        """Raises Lost, NotSent, Injected."""
        pool = session.pool
        try:
            head = render_head(pool.server, "GET", self.request.path, self._headers(session), 0)
            connection.send(head, b"", self.deadline)
            status, headers = connection.read_head(self.deadline)
            if status == 200 and "chunked" in headers.get("transfer-encoding", ""):
                faults.after(point)
                return connection
            answer = HttpAnswer(status, headers, connection.read_body(status, headers, self.deadline))
        except BaseException:
            connection.close()
            raise
        pool.give_back(connection)
        return answer

    def parse_items(self, answer: Connection | HttpAnswer, receive: Callable[[Any], object]) -> Mapping[str, Any]:
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
                    receive(item)
            return parser.finish()
        except OSError as e:
            self.api.round_trips.errors += 1
            raise self._unavailable(e) from e
        except (ValueError, RecursionError) as e:
            raise DatastoreUnavailable(f"cannot {self.request.doing}: the answer is not a JSON list: {e}") from e
        finally:
            if isinstance(answer, Connection):
                self._give_back(answer)

    def _give_back(self, connection: Connection) -> None:
        """For the next request: the watch that follows a list, which then needs no handshake of its own."""
        assert self._session is not None  # it opened the connection
        self._session.pool.give_back(connection)

    def _headers(self, session: ApiSession) -> dict[str, str]:
        headers = dict(session.headers)
        if self.request.accept:
            headers["Accept"] = self.request.accept
        if self.request.packed:
            headers["Accept-Encoding"] = "gzip"
        return headers

    def _begin(self, *, write: bool) -> ApiSession:
        self.deadline.require(self.request.doing)
        self.api.throttle(self.deadline, self.request.doing)
        self._session = self.api.session(self.deadline)
        self.api.round_trips.count(self.request.method.lower(), write=write)
        return self._session

    def _fail(self, error: OSError) -> None:
        """Raises, or returns if the request may be made once more."""
        self.api.round_trips.errors += 1
        lost = isinstance(error, Lost) or (isinstance(error, faults.Injected) and error.when == "after")
        if lost and self.writing:
            raise OutcomeUnknown(
                f"cannot {self.request.doing}: {error}; it may have been done", details=DatastoreUnavailable.hint
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
        text = f"cannot {self.request.doing}: {error}"
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
        raise refusal(answer, self.request.doing)

    def _settle_overload(self, answer: HttpAnswer) -> None:
        if webhook := failed_webhook(message_of(answer)):
            raise DatastoreUnavailable(
                f"cannot {self.request.doing}: {message_of(answer)}",
                details=f"nothing was written: admission webhook {webhook} does not answer. Bring its pods back, or "
                "delete the ValidatingWebhookConfiguration or MutatingWebhookConfiguration that names it",
            )
        told = answer.headers.get("retry-after", "")
        self._count += 1
        if self.writing and answer.status != 429:
            self.maybe_applied = True
            if not told:
                raise OutcomeUnknown(f"cannot {self.request.doing}: {message_of(answer)}; it may have been done")
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
        return kind(f"cannot {self.request.doing}: {message_of(answer)}", details=details)


def backoff_s(attempt: int, *, random: Callable[[int], bytes] = os.urandom) -> float:
    """Doubles from 0.1 s to 5 s, less up to half of it at random, so that many clients do not come back at once."""
    full = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(attempt, 16))
    return full * (1 - random(1)[0] / 512)
