"""Tells the owners of pods that name one interface about it, by Events of Kubernetes.

Rule: the engine's thread never waits for the API server: a thread of its own writes the Events, each once, and ends
when there is nothing to write. While the API server does not answer it tries again; without the right to create Events
it gives up, and says so at most each ten minutes for each cause, because status and log say the same. ``kubectl
describe`` finds an Event by the pod's UID, which is read if the role allows it: beside etcd ours does not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from cni_calico.backoff import Backoff
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreDenied
from cni_calico.log import Log
from cni_calico.model.kubernetes.events import warning_event
from cni_calico.model.timestamps import rfc3339
from cni_calico.policy.endpoints import Dispute

REASON, COMPONENT = "CalicoInterfaceDisputed", "calico-node"
_CALL_S, _FIRST_S, _LAST_S = 10.0, 1.0, 60.0
_WARN_S, _CAUSES = 600.0, 100  # at most so many causes are remembered

PodNotice = tuple[str, str, str]  # a pod's namespace and name, and the text


class DisputeEvents:
    """``store`` None: outside Kubernetes, where nobody is told."""

    def __init__(self, store: KubernetesStore | None, log: Log, now: Callable[[], float] = time.monotonic) -> None:
        self._store, self._now = store, now
        self._warned: dict[str, float] = {}  # when, by the cause
        self._log = log
        self._lock = threading.Lock()
        self._wanted: set[PodNotice] = set()
        self._told: set[PodNotice] = set()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def tell(self, disputes: Iterable[Dispute]) -> None:
        """Call it with all disputes that there are; those that are over are forgotten."""
        if self._store is None:
            return
        wanted = {(*pod, str(dispute)) for dispute in disputes for pod in dispute.pods}
        if wanted == self._wanted:
            return
        with self._lock:
            self._wanted = wanted
            self._told &= wanted
            if self._thread is None and wanted - self._told:
                self._thread = threading.Thread(target=self._run, name="dispute-events", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        pause = Backoff(_FIRST_S, _LAST_S)
        while not self._stopped.is_set():
            with self._lock:
                left = sorted(self._wanted - self._told)
                if not left:
                    self._thread = None
                    return
            try:
                self._write(left[0])
            except DatastoreDenied as e:
                self._warn(str(e))
                self._note(*left)
            except CalicoError:
                self._stopped.wait(pause.next())
            else:
                self._note(left[0])
                pause.reset()

    def _warn(self, why: str) -> None:
        now = self._now()
        self._warned = {cause: at for cause, at in self._warned.items() if now - at < _WARN_S}
        if why not in self._warned and len(self._warned) < _CAUSES:
            self._warned[why] = now
            self._log.warning(f"cannot tell pods' owners that an interface is disputed: {why}")

    def _note(self, *told: PodNotice) -> None:
        with self._lock:
            self._told.update(told)

    def _write(self, told: PodNotice) -> None:
        """Raises DatastoreError, DeadlineExceeded."""
        from cni_calico.datastore.kubernetes.attempt import ApiRequest
        from cni_calico.datastore.kubernetes.layout import CORE_ROOT, quote

        namespace, name, text = told
        assert self._store is not None
        api, deadline, doing = self._store.api, Deadline.after(_CALL_S), f"tell pod {namespace}/{name}: {text}"
        root = f"{CORE_ROOT}/namespaces/{quote(namespace)}"
        uid = ""
        try:
            pod = api.get(f"{root}/pods/{quote(name)}", deadline, f"read pod {namespace}/{name}")
            if pod is None:
                return
            uid = str((pod.get("metadata") or {}).get("uid") or "")
        except DatastoreDenied:
            pass  # it is an Event all the same
        subject = {"kind": "Pod", "namespace": namespace, "name": name, "uid": uid}
        body = warning_event(subject, REASON, text, rfc3339(time.time()), COMPONENT)
        api.send(ApiRequest("POST", f"{root}/events", doing, body=body, expect=(404, 409)), deadline)
