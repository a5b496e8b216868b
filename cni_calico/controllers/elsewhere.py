"""Whether the cluster's records are being moved to the other API group, or have been, so that these controllers would
work on a copy that nobody reads any more. Rule: only the API server is asked. Where records are is decided once, by
datastore/kubernetes/group.py; a DatastoreMigration says that they are about to be elsewhere.
"""

from __future__ import annotations

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.model.access import API_GROUP, NATIVE_GROUP

MIGRATIONS = "/apis/migration.projectcalico.org/{}/datastoremigrations"
VERSIONS = ("v1beta1", "v1")  # of upstream 3.32, and of what follows it
# from the first of them on the records of NATIVE_GROUP are those in use
_MOVED = ("Converged", "Complete")


def read_why_refused(store: KubernetesStore, deadline: Deadline) -> str:
    """Why the controllers must not run; "" if they may. Raises CalicoError."""
    for version in VERSIONS:
        request = ApiRequest("GET", MIGRATIONS.format(version), "look for a migration", expect=(403, 404))
        reply = store.api.send(request, deadline)
        if reply.status != 404:
            break
    found = reply.document.get("items") or ()
    group = store.group.choose(deadline).name
    if group == NATIVE_GROUP:
        found = [item for item in found if (item.get("status") or {}).get("phase") not in _MOVED]
    names = [str((item.get("metadata") or {}).get("name")) for item in found]
    if not names:
        return ""
    return (
        f"DatastoreMigration {', '.join(names)}: these controllers, and all nodes, keep the records in {group}, and "
        f"have no part in moving them from {API_GROUP} to {NATIVE_GROUP}. Delete it to go on"
    )
