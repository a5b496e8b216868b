"""A recorder's socket, served by the recorder's own server, with flows that a test names.

Rule: the server is the product's; only where its flows come from is not.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.conditions import meets
from cni_calico.flows.given_names import GivenNames
from cni_calico.flows.query import FlowQuery
from cni_calico.flows.serving import FlowServer

WHEN = "2026-11-26T14:02:11.400+00:00"


def pod(namespace: str, name: str, ip: str, port: int | None = None) -> dict[str, Any]:
    return {"kind": "pod", "namespace": namespace, "name": name, "ip": ip, **({} if port is None else {"port": port})}


def address(ip: str, port: int | None = None) -> dict[str, Any]:
    return {"kind": "address", "ip": ip, **({} if port is None else {"port": port})}


def rule(direction: str, namespace: str, name: str, number: int, action: str = "Allow") -> dict[str, Any]:
    said = f"{direction}: {namespace}/{name} rule {number}"
    found = {"direction": direction, "action": action, "tier": "default", "kind": "NetworkPolicy"}
    return {**found, "namespace": namespace, "name": name, "rule": number, "said": said}


def end_of_tier(direction: str, namespace: str, name: str) -> dict[str, Any]:
    trigger = {"kind": "NetworkPolicy", "namespace": namespace, "name": name}
    said = f"{direction}: end of tier default (policies: {namespace}/{name})"
    found = {"direction": direction, "action": "Deny", "tier": "default", "endOfTier": True}
    return {**found, "trigger": trigger, "said": said}


def flow(source: dict[str, Any], destination: dict[str, Any], *decided: dict[str, Any], **other: Any) -> dict[str, Any]:
    """A document as the recorder makes it."""
    denied = any(one["action"] == "Deny" for one in decided)
    counts = {"packets": {"in": 1, "out": 0} if denied else None, "bytes": None, "ended": denied, "how": "kernel"}
    found = {"start": WHEN, "last": WHEN, "node": "worker-1", "verdict": "denied" if denied else "allowed"}
    ingress = any(one.get("direction") == "ingress" for one in decided)
    found |= {"reporter": "dst" if ingress else "src", "connections": 1, "source": source}
    found |= {"destination": {**destination, "asked": None}, "protocol": "tcp", "decided": list(decided)}
    return {**found, **counts, **other}


def nothing_stored(asked: Mapping[str, str]) -> dict[str, Any]:
    """For a page that needs no datastore."""
    return {"error": f"there is no datastore to ask about {asked.get('from')}"}


class ScriptedRecorder:
    """``flows``: the oldest first. ``close`` and ``open`` are its end and its start."""

    def __init__(self, run_dir: str) -> None:
        self.path = f"{run_dir}/{FLOW_SOCKET}"
        self.flows: list[dict[str, Any]] = []
        self.lost = {"nflog-allowed": 0, "nflog-denied": 0, "destroy": 0}
        self.losses: list[dict[str, Any]] = []
        self.services = 0
        self.only_denied = False
        self._new: list[dict[str, Any]] = []
        self.open()

    def open(self) -> None:
        self._stopping = threading.Event()
        self.server = FlowServer(self.path, self, time.monotonic)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def tell(self, *flows: dict[str, Any]) -> None:
        """They are new."""
        self.flows += flows
        self._new += flows

    @property
    def told(self) -> bool:
        """Whether the readers have been told, or have missed, all that is new."""
        return not self._new

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self.server.wait(0.02)
                while self._new:
                    self.server.tell(self._new[0])
                    del self._new[0]
        finally:
            self.server.close()

    def refusal(self, request: FlowQuery) -> str:
        return ""

    def documents(self, request: FlowQuery) -> Iterator[dict[str, Any]]:
        if request.follow and request.last is None and request.since is None:
            return
        given = GivenNames(request.names)
        named = [given.name(document) if given else document for document in self.flows]
        found = [document for document in named if meets(document, request.conditions)]
        found = found if request.first is None else found[: request.first]
        yield from map(dict, found if request.last is None else found[max(0, len(found) - request.last) :])

    def status(self) -> dict[str, Any]:
        return {"lost": dict(self.lost), "pid": os.getpid(), "services": self.services}

    def ending(self, since: float | None, until: float | None) -> dict[str, Any]:
        del since, until
        only_denied = {"only_denied": ["worker-1"]} if self.only_denied else {}
        return {"end": True, "node": "worker-1", "lost": list(self.losses), **only_denied}
