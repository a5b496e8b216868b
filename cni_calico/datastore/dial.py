"""From a host's name to a connected socket, with every wait limited.

Rule: the C library's resolver takes no timeout and can hang for minutes, so a name is looked up in its own thread, one
thread per name however many callers wait for it; a literal address needs none. A slow answer is remembered for a while;
otherwise a call that has less time than the resolver needs would never get one. A host's addresses are tried in the
resolver's order, each with a fair share of the remaining time.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from cni_calico.deadline import Deadline

Resolved = list[tuple[Any, ...]]  # in getaddrinfo's format
Resolve = Callable[[str, int], Resolved]
Question = tuple[int, str, int]

LOOKUP_TIMEOUT_S = 15.0  # if a name server is down, the resolver waits 5 s before it asks the next one
SLOW_S = 1.0
KEEP_S = 60.0


def resolve(host: str, port: int) -> Resolved:
    """The system's answer, however long it takes. Raises OSError (gaierror), UnicodeError."""
    return socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM)


def _plain(host: str) -> str | bytes:
    """As bytes if it is ASCII: for a text Python loads the tables of international names, a megabyte."""
    return host.encode() if host.isascii() else host


class _Lookup:
    """One lookup under way; all callers that ask for the same name meanwhile wait for its answer."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.found: Resolved = []
        self.error: Exception | None = None


_pending: dict[Question, _Lookup] = {}
_slow: dict[Question, tuple[float, Resolved]] = {}
_guard = threading.Lock()


def lookup(host: str, port: int, deadline: Deadline, *, resolver: Resolve = resolve) -> Resolved:
    """The addresses of a host. Raises TimeoutError at the deadline, OSError for a name that is unknown."""
    literal = _literal(host, port)
    if literal:
        return literal
    question = (os.getpid(), host, port)  # a fork's threads belong to its parent: the fork must not wait for them
    with _guard:
        kept_until, kept = _slow.get(question, (0.0, []))
        if time.monotonic() < kept_until:
            return kept
        under_way = _pending.get(question)
        if under_way is None:
            under_way = _Lookup()
            try:
                # it cannot end before it is in _pending: its end needs the guard, too
                threading.Thread(target=_run, args=(question, under_way, resolver), daemon=True).start()
            except RuntimeError as e:
                raise OSError(f"cannot resolve {host}: {e}") from e
            _pending[question] = under_way
    if not under_way.done.wait(deadline.remaining_s()):
        raise TimeoutError(f"the name {host} was not resolved in time")
    if isinstance(under_way.error, UnicodeError):
        raise OSError(f"{host!r} is not a host name")
    if under_way.error is not None:
        raise OSError(f"cannot resolve {host}: {getattr(under_way.error, 'strerror', None) or under_way.error}")
    return under_way.found


def _literal(host: str, port: int) -> Resolved:
    """The answer for a host that is an address already, which needs no lookup."""
    try:
        return socket.getaddrinfo(_plain(host), port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return []


def _run(question: Question, own: _Lookup, resolver: Resolve) -> None:
    begun = time.monotonic()
    try:
        own.found = resolver(question[1], question[2])
        if time.monotonic() - begun > SLOW_S:
            _slow[question] = (time.monotonic() + KEEP_S, own.found)
    except Exception as e:  # it is raised where the answer is awaited
        own.error = e
    finally:
        with _guard:
            _pending.pop(question, None)
        own.done.set()


def connect(
    host: str, port: int, deadline: Deadline, *, timeout_s: float, resolver: Resolve = resolve
) -> socket.socket:
    """A connected TCP socket; ``timeout_s`` is for the connection, once the name is known.

    Raises TimeoutError, or the OSError of the last address tried.
    """
    failure: OSError = OSError(f"{host} has no address")
    found = lookup(host, port, deadline.sooner(LOOKUP_TIMEOUT_S), resolver=resolver)
    deadline = deadline.sooner(timeout_s)
    for i, (family, kind, protocol, _, address) in enumerate(found):
        left = deadline.remaining_s()
        if left <= 0:
            break
        candidate = socket.socket(family, kind, protocol)
        try:
            candidate.settimeout(left / (len(found) - i))
            candidate.connect(address)
            return candidate
        except OSError as e:
            candidate.close()
            failure = e
    _slow.pop((os.getpid(), host, port), None)
    raise failure


def connect_unix(path: str, deadline: Deadline) -> socket.socket:
    """A socket that is connected to a local one. Raises OSError."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        made.settimeout(max(0.001, deadline.remaining_s()))
        made.connect(path)
    except OSError:
        made.close()
        raise
    return made
