"""Asks the recorders of nodes through the API server, each in a thread of its own.

Rule: what a node says goes to ``receive`` in that thread, and a node's failure to ``failed``; leaving ends all threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from cni_calico.ctl.flows.nodes.agents import NodeAgent
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.exec.command import RunningCommand
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.flows.client import parse_answer
from cni_calico.flows.query import FlowQuery, render_query

_EVER_S = 1e9
ReceiveFrom = Callable[[NodeAgent, dict[str, Any]], object]
FailureOf = Callable[[NodeAgent, str], object]


class AskedNodes:
    """A context manager: threads run inside it. ``at_once``: how many are asked at a time."""

    def __init__(
        self,
        api: KubernetesAPI,
        agents: Sequence[NodeAgent],
        query: FlowQuery,
        timeout_s: float,
        at_once: int,
        receive: ReceiveFrom,
        failed: FailureOf,
    ) -> None:
        self._api, self._query, self._timeout_s = api, query, timeout_s
        self._receive, self._failed = receive, failed
        self._left = iter(agents)
        self._lock = threading.Lock()
        self._running: dict[int, RunningCommand] = {}
        self._stopping = False
        count = min(at_once, len(agents))
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]

    def __enter__(self) -> AskedNodes:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._stopping = True
            running = list(self._running.values())
        for one in running:
            one.interrupt()
        for thread in self._threads:
            thread.join()

    def wait(self) -> None:
        """Until all have answered, or failed."""
        for thread in self._threads:
            thread.join()

    def _next(self) -> NodeAgent | None:
        with self._lock:
            return None if self._stopping else next(self._left, None)

    def _work(self) -> None:
        while (agent := self._next()) is not None:
            try:
                if agent.trouble:
                    raise CalicoError(agent.trouble)
                for document in self._documents(agent):
                    self._receive(agent, document)
            except CalicoError as e:
                self._failed(agent, e.message)
            except ValueError as e:
                self._failed(agent, str(e))

    def _documents(self, agent: NodeAgent) -> Iterator[dict[str, Any]]:
        """Empty ones are signs of life only."""
        answers = False

        def deadline() -> Deadline:
            return Deadline.after(_EVER_S if answers and self._query.follow else self._timeout_s)

        with RunningCommand(self._api, agent.command, deadline) as running:
            with self._lock:
                if self._stopping:
                    return
                self._running[id(running)] = running
            try:
                running.write(render_query(self._query))
                answers = True
                document: dict[str, Any] = {}
                for line in running.lines():
                    if document := parse_answer(line):
                        yield document
                if not self._query.status and "end" not in document:
                    raise CalicoError("its recorder ended before its answer did")
            finally:
                with suppress(KeyError), self._lock:
                    del self._running[id(running)]
