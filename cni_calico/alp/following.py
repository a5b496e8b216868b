"""Follows policy sync at the agent's socket, and answers by what was told last.

Rule: what was told holds while the agent is gone, for ever or as long as was asked for; a new stream replaces it as a
whole once that has told everything, never in parts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cni_calico.alp.asked import UNAVAILABLE, AskedRequest
from cni_calico.alp.synced import RequestAnswer, SyncedPolicies
from cni_calico.backoff import Backoff
from cni_calico.log import Log
from cni_calico.slim_grpc import load_grpc

_SYNC, _REPORT = "/felix.PolicySync/Sync", "/felix.PolicySync/Report"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_LONGEST_MESSAGE = 64 << 20
_ASKS_IN_HOLD = 3


class FollowedPolicies:
    """``run`` in a thread of its own. ``hold_s``: how long what was told holds without the agent; None: for ever."""

    def __init__(self, agent: str, hold_s: float | None, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        """``agent``: the path of the agent's socket."""
        self._agent, self._hold_s, self._log, self._clock = agent, hold_s, log, clock
        self._policies = SyncedPolicies()
        self._heard = clock()
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._stream: Any = None
        self._said = ""

    # -- for those who ask --------------------------------------------------------------------------------------------

    def judge(self, asked: AskedRequest) -> RequestAnswer:
        if self._is_too_old():
            return RequestAnswer(UNAVAILABLE, f"nothing was heard of the agent for more than {self._hold_s:g} s")
        return self._policies.judge(asked)

    def is_ready(self) -> bool:
        """Whether requests are judged by policies."""
        return self._policies.in_sync and not self._is_too_old()

    def _is_too_old(self) -> bool:
        return self._hold_s is not None and self._clock() - self._heard > self._hold_s

    # -- the thread ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until ``stop``."""
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        asking = None
        if self._hold_s is not None:
            asking = threading.Thread(target=self._ask, args=(self._hold_s / _ASKS_IN_HOLD,), daemon=True)
            asking.start()
        while not self._stopping.is_set():
            told = self._follow()
            if told:
                pauses.reset()
            self._stopping.wait(pauses.next())
        if asking is not None:
            asking.join()

    def stop(self) -> None:
        """``run`` returns soon."""
        self._stopping.set()
        with self._guard:
            if self._stream is not None:
                self._stream.cancel()

    def _follow(self) -> bool:
        """One stream until its end; whether it has told everything."""
        grpc = load_grpc()
        options = (("grpc.max_receive_message_length", _LONGEST_MESSAGE), ("grpc.enable_retries", 0))
        told = SyncedPolicies()
        with grpc.insecure_channel(f"unix:{self._agent}", options=options) as channel:
            try:
                stream = channel.unary_stream(_SYNC)(b"")
                with self._guard:
                    self._stream = stream
                    if self._stopping.is_set():
                        stream.cancel()
                for data in stream:
                    told.receive(data)
                    self._heard = self._clock()
                    if told.in_sync and self._policies is not told:
                        self._policies = told
                        self._say("", "policies are in force")
                self._say("the agent ended the connection")
            except grpc.RpcError as e:
                if not self._stopping.is_set():
                    self._say(f"the agent does not answer at {self._agent}: {e.details()}")
            except ValueError as e:
                stream.cancel()
                self._say(f"the agent says what cannot be read: {e}")
            finally:
                with self._guard:
                    self._stream = None
        return told.in_sync

    def _ask(self, pause_s: float) -> None:
        """Ask now and then whether the agent is there: a stream that says nothing does not say that."""
        grpc = load_grpc()
        with grpc.insecure_channel(f"unix:{self._agent}") as channel:
            report = channel.unary_unary(_REPORT)
            while not self._stopping.wait(pause_s):
                try:
                    report(b"", timeout=pause_s)
                    self._heard = self._clock()
                except grpc.RpcError:
                    pass  # the stream says so, or the time

    def _say(self, trouble: str, news: str = "") -> None:
        """Each once."""
        if trouble and trouble != self._said:
            holds = "what it said last holds" if self._policies.in_sync else "every request is refused"
            self._log.warning(f"{trouble}; {holds}")
        if news:
            self._log.info(news)
        self._said = trouble
