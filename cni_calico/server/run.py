"""The resident CNI server: the same ``serve(call)`` as in the one-shot process, with open connections and filled
caches.

Rule: one thread accepts, and a limited number of workers serve calls in the order of arrival; when the server stops, it
finishes the calls that have begun. Paths and variables in a request are the caller's: its network namespace, its root,
its environment. A worker survives every error of a call, and the caller gets an answer, never a trace.
"""

from __future__ import annotations

import gc
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from cni_calico.cni.answer import Answer, answer_error
from cni_calico.cni.environment import parse_call
from cni_calico.cni.versions import CURRENT
from cni_calico.daemon.notify import READY, STOPPING, tell_systemd
from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import CalicoError, InternalError, ProtocolMismatch, TryAgain
from cni_calico.faults import install_from_environment
from cni_calico.log import Log, wants_json
from cni_calico.plugin.call import protocol
from cni_calico.plugin.call.outcome import describe_success, log_failure, log_success
from cni_calico.plugin.call.serve import Declined
from cni_calico.plugin.call.shim import socket_path
from cni_calico.plugin.commands import import_handlers
from cni_calico.plugin.commands import serve as serve_plugin
from cni_calico.plugin.identity.labels import read_container_name
from cni_calico.plugin.ipam.commands import serve as serve_ipam
from cni_calico.server.connections import CallRequest, Refused, read_request, send_answer
from cni_calico.server.exhaustion import Exhaustion
from cni_calico.server.listener import listen
from cni_calico.server.metrics import CniMetrics
from cni_calico.server.resident import Resident
from cni_calico.shortage import shortage_of

WORKERS = 32
SPARED = 2  # workers that are ended again if not all of them can be started
QUEUE = 512
START_S = 60.0  # a thread that has no memory for its first step makes the thread that starts it wait for ever
DRAIN_S = 4.0
CLOSE_MIN_S = 0.2
END_S = 10.0  # more than the above: from the decision to end to the end of the process, at the latest
SHORT_S = 0.1  # from one attempt to accept to the next while there are no descriptors
SERVES: dict[str, Callable[..., Answer]] = {"calico": serve_plugin, "calico-ipam": serve_ipam}
CLOSE_IDLE_S = 60.0  # from one search for unused datastores to the next
METRICS = "metrics"  # the pseudo-executable name that asks for the server's metrics


class CniServer:
    """``start`` returns once the server is listening; ``stop`` once the calls that have begun are answered, or after
    DRAIN_S.
    """

    def __init__(self, path: str, log: Log, *, workers: int = WORKERS) -> None:
        self.path = path
        self.log = log
        self.metrics = CniMetrics()
        self.exhaustion = Exhaustion()
        self.resident = Resident(log, self.metrics, self.exhaustion, workers)
        self._waiting: queue.SimpleQueue[tuple[socket.socket, float] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, name=f"cni-{i}", daemon=True) for i in range(workers)]
        self._acceptor = threading.Thread(target=self._accept, name="cni-accept", daemon=True)
        self._closer = threading.Thread(target=self._close_idle, name="cni-close-idle", daemon=True)
        self._listener: socket.socket | None = None
        self._listening = threading.Event()  # or it is known that it will not
        self._stopping = threading.Event()

    def start(self) -> None:
        """Raises OSError if the socket cannot be made, RuntimeError if there cannot be threads.

        A caller that finds the socket waits for an answer, so the threads are started before the socket is made: first
        the one that accepts, then the workers, of which some are enough.
        """
        self._acceptor.start()
        try:
            self._closer.start()
            self._start_workers()
            self._listener = listen(self.path)
        finally:
            self._listening.set()
        self.log.info(f"serving CNI calls on {self.path}")

    def _start_workers(self) -> None:
        started: list[threading.Thread] = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError:
                if not started:
                    raise
                spared = min(SPARED, len(started) - 1)
                for _ in range(spared):
                    self._waiting.put(None)  # there must be room for the threads that calls need
                self.log.warning(f"serving with {len(started) - spared} workers: there cannot be more threads")
                break
            started.append(thread)
        self._threads = started

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop accepting, finish what was accepted; calls that only wait are undone and left to their callers."""
        limit = time.monotonic() + drain_s
        self._stopping.set()
        self.resident.waits.end()
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
            self._listener.close()
        for _ in self._threads:
            self._waiting.put(None)
        for thread in list(self._threads):
            thread.join(max(0.0, limit - time.monotonic()))
        if not any(thread.is_alive() for thread in self._threads):
            # the end of the process closes what is still in use or cannot be closed
            closing = threading.Thread(target=self.resident.close, name="cni-close", daemon=True)
            closing.start()
            closing.join(max(CLOSE_MIN_S, limit - time.monotonic()))

    def _accept(self) -> None:
        self._listening.wait()
        if self._listener is not None:
            self._accept_from(self._listener)

    def _accept_from(self, listener: socket.socket) -> None:
        spare = _open_spare()
        while not self._stopping.is_set():
            try:
                connection, _ = listener.accept()
            except OSError as e:
                if self._stopping.is_set():
                    return
                self.log.error(f"cannot accept: {e.strerror}")
                if shortage_of(e):
                    self.resident.backends.close_idle(all_of_them=True)
                    spare = _turn_away(listener, spare if spare >= 0 else _open_spare())
                    if spare < 0:
                        self._stopping.wait(SHORT_S)
                else:
                    time.sleep(0.1)
                continue
            waiting = self._waiting.qsize()
            self.metrics.queued(waiting)
            if waiting < QUEUE:
                self._waiting.put((connection, time.monotonic()))
            else:
                busy = answer_error(TryAgain(f"cannot serve: {QUEUE} calls are waiting already"), CURRENT)
                send_answer(connection, protocol.VERSION, busy.exit_code, busy.stdout.encode())
                connection.close()

    def _close_idle(self) -> None:
        while not self._stopping.wait(CLOSE_IDLE_S):
            self.resident.backends.close_idle()

    def _work(self) -> None:
        while True:
            entry = self._waiting.get()
            if entry is None:
                break
            try:
                self._serve_connection(*entry)
            except SystemExit:  # the thread is in a network namespace that it cannot leave
                self.log.error("a worker was lost and is replaced")
                self._replace_worker()
                break
            except Exception as e:
                self.exhaustion.note(e)
                self.log.error(f"unexpected failure of a connection: {type(e).__name__}: {e}")
        self.resident.end_worker()

    def _replace_worker(self) -> None:
        replacement = threading.Thread(target=self._work, name=threading.current_thread().name, daemon=True)
        try:
            replacement.start()
        except RuntimeError as e:
            self.log.error(f"a worker cannot be replaced: {e}")
            others = [thread for thread in self._threads if thread is not threading.current_thread()]
            if self._listener is not None and not any(thread.is_alive() for thread in others):
                self._listener.close()  # nobody would answer: callers then serve themselves
            return
        self._threads.append(replacement)

    def _serve_connection(self, connection: socket.socket, since: float) -> None:
        with connection:
            try:
                request = read_request(connection)
            except MemoryError as e:
                self.exhaustion.note(e)
                self.metrics.declined()
                return  # nothing has been done: the caller serves itself
            except (Refused, OSError) as e:
                self.metrics.refused()
                self.log.warning(f"refused a connection: {e}")
                return
            try:
                answer, tell = self._answer(request, since)
            except Declined as e:
                self.exhaustion.note(e)
                self.metrics.declined()
                self.log.info(f"left to the caller: {e}")
                return
            except BaseException as e:
                lost = self._failure(e, "the call", "its worker was lost")
                send_answer(connection, request.version, lost.exit_code, lost.stdout.encode())
                raise
            finally:
                request.close()
            version = request.version if request.version in protocol.ACCEPTED else protocol.VERSION
            send_answer(connection, version, answer.exit_code, answer.stdout.encode())
        tell()

    def _answer(self, request: CallRequest, since: float) -> tuple[Answer, Callable[[], None]]:
        """Returns the answer, and a function to call once the caller has it. Raises Declined."""
        if request.executable == METRICS:
            return Answer(0, self.metrics.render(self.resident.add_metrics, self._waiting.qsize())), _nothing
        command = request.environ.get("CNI_COMMAND", "")
        self.metrics.begun(1)
        tell: Callable[[float], None] = _nothing
        try:
            answer, tell = self._run(request)
        except Declined:
            raise
        except CalicoError as e:
            answer = answer_error(e, CURRENT)
            tell = partial(self._tell_refused, answer)
        except Exception as e:  # a worker must survive every error
            answer = self._failure(e, command, f"unexpected {type(e).__name__}")
        finally:
            self.metrics.begun(-1)
        seconds = time.monotonic() - since
        self.metrics.served(command, answer, seconds)
        return answer, lambda: tell(seconds)

    def _failure(self, error: BaseException, doing: str, why: str) -> Answer:
        """The answer to a call that ``error`` ended: a shortage is nobody's mistake, anything else is ours."""
        if lacking := self.exhaustion.note(error):
            return answer_error(TryAgain(f"cannot finish {doing}: this host is short of {lacking}"), CURRENT)
        self.log.failure("unexpected failure", error)
        return answer_error(InternalError(f"cannot finish {doing}: {why}"), CURRENT)

    def _run(self, request: CallRequest) -> tuple[Answer, Callable[[float], None]]:
        if request.version not in protocol.ACCEPTED:
            raise ProtocolMismatch(
                f"cannot serve: the plugin speaks protocol {request.version}, the server {protocol.VERSION}"
            )
        serve = SERVES.get(request.executable)
        if serve is None:
            raise ProtocolMismatch(f"cannot serve: unknown executable {request.executable!r}")
        call = parse_call(request.environ, request.stdin)
        with ExitStack() as held:
            try:
                services = held.enter_context(self.resident.services(request))
            except Exception as e:
                if lacking := shortage_of(e):
                    raise Declined(f"the server is short of {lacking}") from e
                raise
            answer, log, files = serve(call, services), services.log, services.files

        def tell(seconds: float) -> None:
            name = read_container_name(call, files) if files.root_fd is None else ""  # the caller's root is closed
            log_success(describe_success(call, answer, seconds, name), log, self.log)
            log_failure(call, answer, self.log, name)

        return answer, tell

    def _tell_refused(self, answer: Answer, _: float) -> None:
        log_failure(None, answer, self.log)


def _nothing(_: float = 0.0) -> None:
    pass


def _open_spare() -> int:
    """A descriptor to give up when there are no others; -1 if none can be had now."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def _turn_away(listener: socket.socket, spare: int) -> int:
    """Close the next connection, using the descriptor kept for it: its caller then does the work itself.

    Returns the new spare descriptor, or -1. Perhaps no connection is waiting: accept() looks for a descriptor first.
    """
    try:
        if spare >= 0:
            os.close(spare)
        listener.settimeout(SHORT_S)
        listener.accept()[0].close()
    except OSError:
        pass
    finally:
        listener.settimeout(None)
    return _open_spare()


def _warm_up() -> None:
    """Import what the first call would otherwise wait for. The objects that exist then are excluded from garbage
    collection, because its pauses of up to 8 ms occurred in one call out of sixty.
    """
    import_handlers()
    gc.collect()
    gc.freeze()


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises RuntimeError in a body that takes longer. In the main thread only."""

    def give_up(*_: object) -> None:
        raise RuntimeError("a thread does not start: probably it is short of memory")

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _end_within(seconds: float) -> None:
    """Have the kernel end this process if it has not ended by itself.

    One that is short of memory may wait for ever, for a thread that died before its first step or in gRPC.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def run_server(environ: dict[str, str] | os._Environ[str]) -> int:
    """``calico-node -cni-server``: serve until SIGTERM, SIGINT or a lack of memory; the exit status."""
    install_from_environment(environ)
    level = environ.get("CALICO_CNI_SERVER_LOG_LEVEL", "info").lower()
    log = Log(level, context="cni-server: ", as_json=wants_json(environ))
    ended = Stopping()
    ended.on_signals(signal.SIGTERM, signal.SIGINT)
    path = socket_path(environ)
    try:
        server = CniServer(path, log)
        server.exhaustion.watch_threads()
        with _at_most(START_S):
            server.start()
    except (OSError, RuntimeError, MemoryError, ImportError) as e:
        log.error(f"cannot serve on {path}: {getattr(e, 'strerror', None) or e or type(e).__name__}")
        return 1
    try:
        _warm_up()
    except (OSError, MemoryError, ImportError) as e:
        log.warning(f"not all modules are loaded yet; the first call will load the rest: {e or type(e).__name__}")
    tell_systemd(READY, environ)
    server.exhaustion.wait(ended)
    if server.exhaustion.noted:
        log.error("ending: this process was refused memory, and must be started again before it can be relied on")
    tell_systemd(STOPPING, environ)
    _end_within(END_S)
    server.stop()
    return 1 if server.exhaustion.noted else 0
