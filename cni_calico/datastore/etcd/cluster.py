"""Treats the members of an etcd cluster as one server: chooses a member that answers, authenticates, gives up in time.
Rule: one member serves all calls until it fails. The search for another one asks the members in the configured order,
the next one if there is no answer for STAGGER_S; so a dead member costs that time once, and for MEMORY_S it is asked
last. If none answers within CONNECT_S, the call fails and names all of them. Threads share one search: those that were
waiting when it began fail with it instead of starting their own. Do not use it in a forked child: gRPC's threads do not
exist there.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import Any

from cni_calico import faults
from cni_calico.datastore.etcd.config import EtcdConfig, EtcdEndpoint, cluster_name, parse_endpoints
from cni_calico.datastore.etcd.credentials import Credentials, Reach, as_it_is, files_stamp, read_credentials
from cni_calico.datastore.etcd.errors import ELSEWHERE, LOGIN, LOST, error_for
from cni_calico.datastore.etcd.link import (
    NO_LEADER,
    REQUIRE_LEADER,
    CallFailed,
    CallMetadata,
    EtcdLink,
)
from cni_calico.datastore.etcd.messages import load_grpc, pb
from cni_calico.datastore.interface import RoundTrips
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreError, DatastoreUnavailable, DeadlineExceeded, OutcomeUnknown

CONNECT_S = 1.0  # time to connect and answer, per member
STAGGER_S = 0.25  # before the next member is asked too
MEMORY_S = 30.0  # how long a failed member is asked last
ELECTION_S = 3.0  # how long to wait for members that answer but have no leader
READ_S = 2.0  # for one member's answer to a read
WRITE_S = 3.0  # for the answer to a write, which cannot be sent again
TOTAL_S = 4.5  # for all attempts of one call
RETIRE_S = 10.0  # others may still have calls on a link on which a call failed
FILES_S = 1.0  # between checks of the TLS files


class Search:
    """One search: the answers of the members that it asks."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.asked: list[EtcdLink] = []
        self.answers: dict[EtcdLink, str] = {}  # "": usable; else why not

    def ask(self, link: EtcdLink, timeout_s: float) -> None:
        with self.changed:
            self.asked.append(link)
        link.probe(timeout_s, self._done)

    def _done(self, link: EtcdLink, why_not: str) -> None:
        with self.changed:
            self.answers[link] = why_not
            self.changed.notify_all()

    def found(self) -> EtcdLink | None:
        return next((link for link in self.asked if self.answers.get(link) == ""), None)

    def wait(self, timeout_s: float) -> EtcdLink | None:
        """The first usable link; None if all asked so far failed, or after ``timeout_s``."""
        with self.changed:
            self.changed.wait_for(lambda: self.found() or len(self.answers) == len(self.asked), timeout_s)
            return self.found()

    def reasons(self) -> str:
        with self.changed:
            return ", ".join(f"{link.endpoint} ({self.answers.get(link) or 'no answer'})" for link in self.asked)


class EtcdCluster:
    """Calls on any member that answers. Safe with threads. ``reach`` turns a path of the TLS files into one to open."""

    def __init__(self, config: EtcdConfig, reach: Reach = as_it_is) -> None:
        # gRPC's own lines on stderr would end up in the runtime's log; the important parts are in our errors.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        self._config = config
        self._reach = reach
        self._written = parse_endpoints(config)
        self.name = cluster_name(config, self._written)
        self.round_trips = RoundTrips()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._link: EtcdLink | None = None
        self._credentials: Credentials | None = None
        self._looked_at_files = 0.0
        self._token: str | None = None  # "": the cluster requires none
        self._bad: dict[EtcdEndpoint, float] = {}
        self._retired: list[tuple[float, EtcdLink]] = []
        self._last_failure: tuple[float, str] = (0.0, "")
        self._closed = False

    # -- calls ----------------------------------------------------------------------------------------------------

    def read(self, name: str, request: Any, doing: str, deadline: Deadline, *, attempt_s: float = READ_S) -> Any:
        """The answer to a call that may be repeated. Raises DatastoreError, DeadlineExceeded."""
        until = deadline.sooner(max(TOTAL_S, attempt_s))
        return self._repeat(name, request, doing, deadline, until, attempt_s, write=False)

    def write(self, name: str, request: Any, doing: str, deadline: Deadline) -> Any:
        """The answer to a call that is sent only once.

        Raises OutcomeUnknown if the answer was lost; other DatastoreErrors and DeadlineExceeded if it was not applied.
        """
        return self._repeat(name, request, doing, deadline, deadline.sooner(TOTAL_S), WRITE_S, write=True)

    def transact(self, request: Any, doing: str, deadline: Deadline, point: str) -> Any:
        """``write`` of a transaction, at the fault point ``point``."""
        try:
            faults.before(point)
        except OSError as e:
            raise DatastoreUnavailable(f"cannot {doing}: {e}") from e
        answer = self.write("Txn", request, doing, deadline)
        try:
            faults.after(point)
        except OSError as e:
            raise OutcomeUnknown(f"cannot {doing}: {e}") from e
        return answer

    def _repeat(
        self, name: str, request: Any, doing: str, deadline: Deadline, until: Deadline, attempt_s: float, *, write: bool
    ) -> Any:
        logins = 0
        while True:
            link = self.link(doing, until)
            timeout_s = min(attempt_s, deadline.require(doing))
            try:
                return self._call(link, name, request, timeout_s, write=write)
            except CallFailed as e:
                if e.meaning == LOST and write:
                    self.fail(link, e.why)
                    raise OutcomeUnknown(f"cannot {doing}: the answer of {link.endpoint} was lost: {e.why}") from e
                logins += e.meaning == LOGIN
                self._forgive_or_raise(link, e, doing, logins)
                if until.expired():
                    raise self._too_late(deadline, doing, f"{link.endpoint}: {e.why}") from e

    def _call(self, link: EtcdLink, name: str, request: Any, timeout_s: float, *, write: bool) -> Any:
        metadata = self.metadata(link, timeout_s)
        self.round_trips.count(name, write=write)
        try:
            return link.call(name, request, timeout_s, metadata)
        except CallFailed:
            self.round_trips.errors += 1
            raise

    def _forgive_or_raise(self, link: EtcdLink, failed: CallFailed, doing: str, logins: int) -> None:
        """Return if a further attempt makes sense."""
        if failed.meaning in (LOST, ELSEWHERE):
            self.fail(link, failed.why)
        elif failed.meaning == LOGIN and self._config.username and logins < 3:
            self.forget_login()
        else:
            raise error_for(failed.meaning, doing, f"{link.endpoint}: {failed.why}")

    def _too_late(self, deadline: Deadline, doing: str, why: str) -> DatastoreError | DeadlineExceeded:
        if deadline.expired():
            return DeadlineExceeded(f"cannot {doing}: the deadline of this call has passed; {why}")
        return DatastoreUnavailable(f"cannot {doing}: {why}")

    def metadata(self, link: EtcdLink, timeout_s: float) -> CallMetadata:
        """The metadata sent with every call: the token of our login. Raises CallFailed."""
        if not self._config.username:
            return REQUIRE_LEADER
        token = self._token
        if token is None:
            token = self._token = self._authenticate(link, timeout_s)
        return (*REQUIRE_LEADER, ("token", token)) if token else REQUIRE_LEADER

    def forget_login(self) -> None:
        """Log in again at the next call: the token has expired, or the member that issued it was restarted."""
        self._token = None

    def _authenticate(self, link: EtcdLink, timeout_s: float) -> str:
        request = pb.AuthenticateRequest(name=self._config.username, password=self._config.password)
        self.round_trips.count("Authenticate")
        try:
            token: str = link.call("Authenticate", request, timeout_s, REQUIRE_LEADER).token
        except CallFailed as e:
            if "authentication is not enabled" in e.why:
                return ""
            # Only the login was sent: whatever made it fail, our call was not applied.
            raise CallFailed(ELSEWHERE if e.meaning == LOST else e.meaning, e.why) from e
        return token

    # -- members --------------------------------------------------------------------------------------------------

    def connect_soon(self) -> None:
        """Begin to connect, in a thread of its own, so that the first call waits less; if it fails, that one says why.
        To be called before there are other threads: then gRPC is imported without what it does not need (slim_grpc.py).
        """
        load_grpc()
        with suppress(RuntimeError):  # there is no thread to be had; the first call does without
            threading.Thread(target=self._connect, name="etcd-connect", daemon=True).start()

    def _connect(self) -> None:
        with suppress(CalicoError):
            self.link("connect", Deadline.after(TOTAL_S))

    def link(self, doing: str, deadline: Deadline) -> EtcdLink:
        """A link to a member that answers. Raises DatastoreUnavailable (nothing was sent), DeadlineExceeded."""
        if os.getpid() != self._pid:
            raise DatastoreUnavailable(f"cannot {doing}: this etcd connection belongs to the parent process")
        came = time.monotonic()
        link = self._link
        if link is not None and not link.broken and came - self._looked_at_files < FILES_S:
            return link
        if not self._lock.acquire(timeout=deadline.require(doing)):
            raise DatastoreUnavailable(f"cannot {doing}: no etcd endpoint answers: {self.name}")
        try:
            if self._closed:
                raise DatastoreUnavailable(f"cannot {doing}: the etcd connection has been closed")
            self._settle()
            if self._link is not None and time.monotonic() - self._looked_at_files >= FILES_S:
                self._renew(doing, deadline)
            if self._link is None:
                began, reasons = self._last_failure
                if began > came:
                    raise DatastoreUnavailable(f"cannot {doing}: no etcd endpoint answers: {reasons}")
                self._link = self._search(doing, deadline)
            return self._link
        finally:
            self._lock.release()

    def _settle(self) -> None:
        """Drop a broken link, and those that were retired long enough ago."""
        now = time.monotonic()
        if self._link is not None and self._link.broken:
            self._retire(self._link)
        if self._link is None:  # perhaps because the old files were wrong
            self._looked_at_files = now
            if self._is_outdated():
                self._credentials = None
        while self._retired and now - self._retired[0][0] > RETIRE_S:
            self._retired.pop(0)[1].close()

    def _renew(self, doing: str, deadline: Deadline) -> None:
        """A link with the present content of the TLS files; while they do not match each other yet, the old one is
        used.
        """
        self._looked_at_files = time.monotonic()
        if not self._is_outdated():
            return
        old, self._credentials = self._credentials, None
        try:
            found = self._search(doing, deadline.sooner(CONNECT_S))
        except (DatastoreError, DeadlineExceeded):
            self._credentials = old
        else:
            self._retire(self._link)
            self._link = found

    def _is_outdated(self) -> bool:
        known = self._credentials
        return known is not None and files_stamp(self._config, self._reach) != known.stamp

    def _retire(self, link: EtcdLink | None) -> None:
        if link is not None:
            self._retired.append((time.monotonic(), link))
        self._link = None

    def fail(self, link: EtcdLink, why: str) -> None:
        """A call or watch on this link failed: search for another member, and ask this one last for a while."""
        link.broken = link.broken or why or "failed"
        self._bad[link.endpoint] = time.monotonic()
        link.end_watches()

    def _candidates(self, deadline: Deadline) -> list[EtcdEndpoint]:
        endpoints = list(self._written)
        if self._config.discovery_srv:
            from cni_calico.datastore.etcd.dns import discover_endpoints

            try:
                endpoints += discover_endpoints(self._config.discovery_srv, deadline.sooner(2 * CONNECT_S))
            except DatastoreError:
                if not endpoints:
                    raise
        now = time.monotonic()
        return sorted(dict.fromkeys(endpoints), key=lambda e: now - self._bad.get(e, -MEMORY_S) < MEMORY_S)

    def _search(self, doing: str, deadline: Deadline) -> EtcdLink:
        if self._credentials is None:
            self._credentials = read_credentials(self._config, self._reach)
        began, waiting, reasons = time.monotonic(), deadline.sooner(ELECTION_S), self.name
        while not deadline.expired():
            search = Search()
            found = self._ask_members(search, self._candidates(deadline), deadline)
            reasons = search.reasons()  # before closing adds its own errors
            for link in search.asked:
                if link is not found:
                    self._bad[link.endpoint] = time.monotonic()
                    link.close()
            if found is not None:
                self._bad.pop(found.endpoint, None)
                return found
            if waiting.expired() or NO_LEADER not in search.answers.values():
                break
            threading.Event().wait(min(0.1, waiting.remaining_s()))
        self._last_failure = (began, reasons)
        raise DatastoreUnavailable(f"cannot {doing}: no etcd endpoint answers: {reasons}")

    def _ask_members(self, search: Search, candidates: list[EtcdEndpoint], deadline: Deadline) -> EtcdLink | None:
        assert self._credentials is not None
        for endpoint in candidates:
            left_s = min(CONNECT_S, deadline.remaining_s())
            if left_s <= 0:
                break
            search.ask(EtcdLink(endpoint, self._credentials), left_s)
            found = search.wait(min(STAGGER_S, left_s))
            if found is not None:
                return found
        return search.wait(min(CONNECT_S, deadline.remaining_s()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            links = [link for _, link in self._retired] + ([self._link] if self._link else [])
            self._link, self._retired = None, []
        if os.getpid() == self._pid:
            for link in links:
                link.close()
