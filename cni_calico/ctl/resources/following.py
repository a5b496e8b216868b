"""``calicoctl get --watch``: shows what is there, and then every change, until it is interrupted.

Rule: an outage of the datastore is reported and does not end the command; changes during the outage are shown once it
is over.
"""

from __future__ import annotations

import json
import queue
from argparse import Namespace
from typing import Any

from cni_calico.ctl.output.render import columns_for, exported, render_names, require_format
from cni_calico.ctl.output.texts import render_yaml
from cni_calico.ctl.output.values import is_jsonpath
from cni_calico.ctl.resources import operations
from cni_calico.ctl.resources.commands import list_key, wanted_kinds
from cni_calico.ctl.session import Session
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import Key

LOOK_S = 1.0
WIDTHS = (9, 40, 20)  # of the table's first columns: later rows cannot widen earlier ones


class _FollowedKind:
    """The changes of one kind, as they are printed."""

    def __init__(self, session: Session, arguments: Namespace, kind: str, names: frozenset[str]) -> None:
        self.arguments = arguments
        self.kind = kind
        self.names = names
        self.known: dict[Key, dict[str, Any]] = {}
        self.changed: queue.SimpleQueue[frozenset[Key]] = queue.SimpleQueue()
        self.said = ""
        self.cache: Cache[dict[str, Any]] = Cache(
            session.store,
            Kept(list_key(kind, arguments), operations.shown_document),
            Listeners(on_change=self.changed.put, corrupt=lambda key, why: arguments.note(f"Left out: {why}")),
        )

    def show_changes(self, timeout_s: float) -> None:
        try:
            keys = self.changed.get(timeout=timeout_s)
        except queue.Empty:
            self._show_trouble()
            return
        for key in sorted(keys, key=str):
            self._show(key)

    def _show_trouble(self) -> None:
        """Report why the resources are not up to date: once, and again when the reason changes."""
        why = str(self.cache.error or "")
        if why and why != self.said:
            self.arguments.note(f"Not up to date: {why}")
        self.said = why

    def _show(self, key: Key) -> None:
        record = self.cache.record(key)
        before = self.known.get(key)
        if record is not None and (not self.names or record["metadata"]["name"] in self.names):
            self.known[key] = record
            self._say("MODIFIED" if before is not None else "ADDED", record)
        elif record is None and self.cache.get(key) is None and before is not None:
            del self.known[key]
            self._say("DELETED", before)

    def _say(self, event: str, document: dict[str, Any]) -> None:
        arguments = self.arguments
        shown = exported(document) if arguments.export else document
        if arguments.output == "json":
            arguments.say(json.dumps({"type": event, "object": shown}, ensure_ascii=False) + "\n")
        elif arguments.output in ("yaml", "yml"):
            arguments.say("---\n" + render_yaml({"type": event, "object": shown}))
        elif arguments.output == "name":
            arguments.say(f"{event.lower()} {render_names([shown])}")
        else:
            columns = columns_for(self.kind, arguments.output, namespaced=_namespaced(arguments))
            arguments.say(_line([event, *columns.row(shown)]))

    def say_headings(self) -> None:
        if self.arguments.output not in ("json", "yaml", "yml", "name"):
            columns = columns_for(self.kind, self.arguments.output, namespaced=_namespaced(self.arguments))
            self.arguments.say(_line(["EVENT", *columns.headings]))


def _namespaced(arguments: Namespace) -> bool:
    return bool(arguments.all_namespaces or arguments.namespace)


def _line(cells: list[str]) -> str:
    padded = [cell.ljust(WIDTHS[min(i, len(WIDTHS) - 1)]) for i, cell in enumerate(cells)]
    return "   ".join(padded).rstrip() + "\n"


def watch(session: Session, arguments: Namespace) -> str:
    """Runs until it is interrupted. Raises InvalidConfig, and DatastoreError if the first read fails."""
    require_format(arguments.output)
    if arguments.filename or ("template" in arguments.output or is_jsonpath(arguments.output)):
        raise InvalidConfig("cannot watch: name kinds or resources, and a format without a template or JSONPath")
    wanted = wanted_kinds(arguments)
    shown = [_FollowedKind(session, arguments, kind, names) for kind, names in wanted.items()]
    try:
        for one in shown:
            one.cache.wait_synced(Deadline.after(arguments.timeout))
            one.say_headings()
        while True:
            for one in shown:
                one.show_changes(LOOK_S / len(shown))
    except KeyboardInterrupt:
        arguments.end_now()  # nothing is left to tidy up, and a thread may be in a read that cannot be interrupted
        raise
    finally:
        stop_caches(one.cache for one in shown)
