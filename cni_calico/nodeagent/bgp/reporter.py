"""``-status-reporter``: fills the CalicoNodeStatus resources that name this node, each in its own period.

Rule: BIRD is not asked and nothing is written while no resource asks for it; one that cannot be written now is tried
again in its next period. A BIRD that does not answer is reported as not ready, not left out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.daemon.fresh import Fresh
from cni_calico.daemon.said import Said
from cni_calico.datastore.cache import Cache
from cni_calico.datastore.ensure import ensure_record
from cni_calico.datastore.remembered import Kept, decoding
from cni_calico.deadline import Deadline
from cni_calico.directories import BIRD_SOCKET
from cni_calico.errors import CalicoError
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.keys import Key, ResourceList
from cni_calico.model.resources import Resource
from cni_calico.nodeagent.bgp.bird.control import BirdControl
from cni_calico.nodeagent.bgp.bird.routes import BirdRoute, parse_routes
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, parse_peers, parse_status
from cni_calico.nodeagent.bgp.report import parse_period_s, render_report, wants_routes
from cni_calico.nodeagent.context.agent import Context

BIRD_S = 5.0
_LOOK_S = 0.5


_FRESH = Fresh()


class Reporter:
    """``clock`` is monotonic, ``stamp`` returns the time of day in RFC 3339."""

    def __init__(
        self,
        context: Context,
        node: str,
        clock: Callable[[], float] = time.monotonic,
        stamp: Callable[[], str] = _FRESH.timestamp,
    ) -> None:
        self.context, self.node, self.clock, self.stamp = context, node, clock, stamp
        self._due: dict[Key, float] = {}
        self._said = Said(context.log)

    def run(self, stopping: threading.Event) -> None:
        cache = Cache(
            self.context.store, Kept(ResourceList("CalicoNodeStatus"), decoding(decode_resource), keep_documents=False)
        )
        try:
            while not stopping.wait(_LOOK_S):
                why = [f"cannot look for CalicoNodeStatus resources: {cache.error}"] if cache.error else []
                self._said.say("", why, "error")
                self._look(cache.records())
        finally:
            cache.stop()

    def _look(self, records: Mapping[Key, Resource]) -> None:
        mine = {key: record for key, record in records.items() if record.spec.get("node") == self.node}
        self._due = {key: due for key, due in self._due.items() if key in mine}
        now = self.clock()
        for key, record in mine.items():
            period_s = parse_period_s(record.spec)
            last = self._due.get(key)
            if period_s and (last is None or now >= last + period_s):
                self._due[key] = now
                self._fill(key, record.spec)

    def _fill(self, key: Key, spec: Mapping[str, Any]) -> None:
        bird, routes = self._ask(spec)
        report = render_report(spec, bird, routes, self.stamp())
        try:
            ensure_record(
                self.context.store,
                key,
                lambda old: None if old is None else {**old, "status": report},
                self.context.deadline(),
            )
        except CalicoError as e:
            self._said.say(str(key), [f"cannot fill {key}: {e}"], "error")
        else:
            self._said.say(str(key), [])

    def _ask(self, spec: Mapping[str, Any]) -> tuple[BirdStatus | None, tuple[BirdRoute, ...]]:
        """BIRD's status; None if it does not answer."""
        deadline = Deadline.after(BIRD_S)
        try:
            with BirdControl(f"{self.context.settings.run_dir}/{BIRD_SOCKET}", deadline) as control:
                bird = parse_status(control.tell("show status", deadline).lines)
                peers = parse_peers(control.tell("show protocols all", deadline).lines)
                routes = parse_routes(control.tell("show route", deadline).lines) if wants_routes(spec) else ()
        except CalicoError:
            return None, ()
        return replace(bird, peers=peers), routes
