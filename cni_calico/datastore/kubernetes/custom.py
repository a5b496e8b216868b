"""Records that are custom resources of one of Calico's groups: one object each, compare-and-swap by resourceVersion.

Rule: a block, affinity or handle is first marked ``deleted`` and then deleted, both only if unchanged (UID and
resourceVersion). A marked object counts as gone: every reader treats it as absent and finishes its deletion. So no call
has to wait until a handle is deleted, of which every pod has one. Where the status is a subresource (not in clusters
whose definitions are older), a write of the record leaves it as it was, and a second write, only if needed, sets it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.encoding import corrupt_record
from cni_calico.datastore.interface import CommitConflict, Document, Failed, Revision, Versioned
from cni_calico.datastore.kubernetes.answers import ApiReply, missing_type, require_known_type
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import collection_path, marks_deleted, object_path
from cni_calico.datastore.kubernetes.revision import render_revision, resource_version
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    DatastoreError,
    DeadlineExceeded,
    OutcomeUnknown,
    TryAgain,
)
from cni_calico.model.documents.codec import describe
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import HandleKey, Key, ResourceKey
from cni_calico.model.kubernetes.groups import ApiGroup

Later = Callable[[Callable[[], object]], object]

_ATTEMPTS = 5
FINISHED_PER_LIST = 50
LATER_S = 10.0


def conflict(key: Key, current: Versioned | None) -> CommitConflict:
    return CommitConflict([Failed(0, key, current)])


def is_marked(obj: JSON) -> bool:
    """Whether an object is marked as deleted; affinities are marked with a text."""
    return (obj.get("spec") or {}).get("deleted") in (True, "true")


class CustomRecords:
    """The part of a KubernetesStore that keeps custom resources, those of ``group``; ``later`` finishes the deletion of
    handles.
    """

    def __init__(self, api: KubernetesAPI, group: ApiGroup, later: Later | None = None) -> None:
        self.group = group
        self._api = api
        self._later = later

    def read(self, key: Key, deadline: Deadline) -> Versioned | None:
        return self._present(key, self._read_object(key, deadline, f"read {describe(key)}"))

    def create(self, key: Key, value: Document, deadline: Deadline) -> Versioned:
        """Raises CommitConflict, DatastoreError."""
        doing, path = f"create {describe(key)}", collection_path(self.group, key)
        for _ in range(_ATTEMPTS):
            wanted = self.group.object_of(key, value)
            reply = self._api.send(ApiRequest("POST", path, doing, body=wanted, expect=(404, 409)), deadline)
            if reply.status < 400:
                return self._versioned(key, self._set_status(key, wanted, reply.document, deadline, doing))
            if reply.status == 404:
                raise _no_parent(reply, path, doing)
            current = self._read_object(key, deadline, doing)
            if current is not None:
                raise self._contradiction(reply, key, self._versioned(key, current), doing)
        raise TryAgain(f"cannot {doing}: it is created and deleted again and again")

    def rehearse_create(self, key: Key, value: Document, deadline: Deadline) -> None:
        """Have the API server check a record that is to be created. Raises DatastoreError."""
        doing, path = f"create {describe(key)}", collection_path(self.group, key)
        wanted = self.group.object_of(key, value)
        request = ApiRequest("POST", f"{path}?dryRun=All", doing, body=wanted, expect=(404, 409))
        reply = self._api.send(request, deadline)
        if reply.status == 404:
            raise _no_parent(reply, path, doing)

    def update(self, key: Key, value: Document, revision: Revision | None, uid: str, deadline: Deadline) -> Versioned:
        """Raises CommitConflict, DatastoreError."""
        doing = f"write {describe(key)}"
        known: dict[str, Any] = {"resourceVersion": resource_version(revision)}
        if uid:
            known["uid"] = uid
        old: Mapping[str, Any] = {"metadata": known}
        if isinstance(key, ResourceKey):
            # others' finalizers and owners must survive; IPAM's records have none, and are written often
            stored = self._read_object(key, deadline, doing)
            if stored is None:
                raise conflict(key, None)
            if any(stored["metadata"].get(name) != value for name, value in known.items()):
                raise conflict(key, self._versioned(key, stored))
            old = stored
        wanted = self.group.object_of(key, value, old)
        written = self._replace(key, wanted, deadline, doing)
        return self._versioned(key, self._set_status(key, wanted, written, deadline, doing))

    def delete(
        self, key: Key, revision: Revision | None, uid: str, was: Document | None, deadline: Deadline
    ) -> Revision:
        """The revision that was deleted. Raises CommitConflict, DatastoreError."""
        doing = f"delete {describe(key)}"
        version = resource_version(revision)
        if not marks_deleted(key):
            reply = self._delete(key, uid, version, deadline, doing)
            if reply.status >= 400:
                current = self._read_object(key, deadline, doing)
                raise self._contradiction(reply, key, self._present(key, current), doing)
            return version
        if not was:
            stored = self._read_object(key, deadline, doing)
            if stored is None or stored["metadata"].get("resourceVersion") != version:
                raise conflict(key, self._present(key, stored))
            was = self._versioned(key, stored).value
        known = {"resourceVersion": version, "uid": uid} if uid else {"resourceVersion": version}
        marked = self.group.object_of(key, {**was, "deleted": True}, {"metadata": known})
        obj = self._replace(key, marked, deadline, doing)
        if self._later is not None and isinstance(key, HandleKey):
            self._later(lambda: self.finish(key, obj, Deadline.after(LATER_S)))
        else:
            self.finish(key, obj, deadline)
        return render_revision(obj, "")

    def finish(self, key: Key, obj: JSON, deadline: Deadline) -> bool:
        """Try to delete an object that is marked; returns whether it could be tried.

        A failure does no harm: the object counts as gone already, and the next reader tries again.
        """
        metadata = obj["metadata"]
        try:
            uid, version = str(metadata.get("uid") or ""), str(metadata["resourceVersion"])
            self._delete(key, uid, version, deadline, f"delete {describe(key)}")
        except (DatastoreError, DeadlineExceeded):
            return False
        return True

    # -- requests -----------------------------------------------------------------------------------------------------

    def _versioned(self, key: Key, obj: JSON) -> Versioned:
        """The record in an object. Raises CorruptRecord, also if it is another record stored under this name."""
        found, document = self.group.read_object(obj)
        if found != key and not isinstance(key, ResourceKey):
            raise corrupt_record(key, f"the object of its name is {describe(found)}")
        return Versioned(key, document, render_revision(obj, ""), str(obj["metadata"].get("uid") or ""))

    def _present(self, key: Key, obj: JSON | None) -> Versioned | None:
        return None if obj is None else self._versioned(key, obj)

    def _read_object(self, key: Key, deadline: Deadline, doing: str) -> Mapping[str, Any] | None:
        obj = self._api.get(object_path(self.group, key), deadline, doing)
        if obj is not None and is_marked(obj):
            self.finish(key, obj, deadline)
            return None
        return obj

    def _replace(self, key: Key, obj: JSON, deadline: Deadline, doing: str, subresource: str = "") -> Mapping[str, Any]:
        path = object_path(self.group, key) + subresource
        reply = self._api.send(ApiRequest("PUT", path, doing, body=obj, expect=(404, 409)), deadline)
        if reply.status == 404:
            require_known_type(reply, path, doing)
            raise self._contradiction(reply, key, None, doing)
        if reply.status == 409:
            current = self._read_object(key, deadline, doing)
            raise self._contradiction(reply, key, self._present(key, current), doing)
        return reply.document

    def _set_status(
        self, key: Key, wanted: JSON, written: Mapping[str, Any], deadline: Deadline, doing: str
    ) -> Mapping[str, Any]:
        status = wanted.get("status")
        if not status or written.get("status") == status:
            return written
        return self._replace(key, {**written, "status": status}, deadline, doing, "/status")

    def _delete(self, key: Key, uid: str, version: str, deadline: Deadline, doing: str) -> ApiReply:
        preconditions = {name: value for name, value in (("uid", uid), ("resourceVersion", version)) if value}
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
        path = object_path(self.group, key)
        return self._api.send(ApiRequest("DELETE", path, doing, body=body, expect=(404, 409)), deadline)

    def _contradiction(self, reply: ApiReply, key: Key, current: Versioned | None, doing: str) -> DatastoreError:
        """The error for a failed comparison: after a repeated request the stored record may be our own write."""
        if reply.repeated:
            return OutcomeUnknown(f"cannot {doing}: an earlier attempt failed and may have been applied")
        return conflict(key, current)


def _no_parent(reply: ApiReply, path: str, doing: str) -> DatastoreError:
    if reply.reason == "NotFound" and (reply.document.get("details") or {}).get("kind") == "namespaces":
        return DatastoreError(f"cannot {doing}: {reply.message}")
    return missing_type(path, doing)
