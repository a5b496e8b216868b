"""Whether the cluster keeps its records as projectcalico.org/v3 resources, which these controllers do not see, or is
moving them there. Rule: only the API server is asked. Upstream's own API server also serves projectcalico.org/v3, but
from the records that we read; only custom resources of that group, or a DatastoreMigration, are a reason to refuse.
"""

from __future__ import annotations

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.model.access import API_GROUP

MIGRATIONS = "/apis/migration.projectcalico.org/v1beta1/datastoremigrations"
V3_GROUP = "projectcalico.org"
V3_SERVICE = f"/apis/apiregistration.k8s.io/v1/apiservices/v3.{V3_GROUP}"


def read_why_refused(api: KubernetesAPI, deadline: Deadline) -> str:
    """Why the controllers must not run; "" if they may. Raises CalicoError."""
    reply = api.send(ApiRequest("GET", MIGRATIONS, "look for a migration", expect=(403, 404)), deadline)
    names = [str((item.get("metadata") or {}).get("name")) for item in reply.document.get("items") or ()]
    if names:
        return (
            f"DatastoreMigration {', '.join(names)}: moving the records to {V3_GROUP}/v3 resources is not supported; "
            f"these controllers, and all nodes, keep them in {API_GROUP}. Delete it to go on"
        )
    listed = api.send(ApiRequest("GET", "/apis", "list the API groups"), deadline)
    groups = {str(group.get("name")) for group in listed.document.get("groups") or ()}
    if V3_GROUP not in groups or not _are_custom_resources(api, groups, deadline):
        return ""
    return (
        f"custom resource definitions of {V3_GROUP}/v3: records that are stored as such resources are not read; these "
        f"controllers, and all nodes, keep them in {API_GROUP}. To go on, remove the definitions, or have that API "
        "served by Calico's API server"
    )


def _are_custom_resources(api: KubernetesAPI, groups: set[str], deadline: Deadline) -> bool:
    """Whether the group consists of custom resources: an API that another server answers has a Service. Without the
    right to read that, assume what upstream assumes.
    """
    reply = api.send(ApiRequest("GET", V3_SERVICE, f"read the API service of {V3_GROUP}", expect=(403, 404)), deadline)
    if reply.status == 403:
        return API_GROUP.partition("/")[0] not in groups
    return reply.status == 200 and not (reply.document.get("spec") or {}).get("service")
