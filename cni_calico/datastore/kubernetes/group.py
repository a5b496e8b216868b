"""Which of its two API groups a cluster keeps Calico's records in, decided once in a process.

Rule: what a configuration names is used, and nothing else; otherwise ``projectcalico.org`` if the cluster serves it and
does not serve ``crd.projectcalico.org`` (an API server of Calico's serves both). The second question is asked only when
``crd.projectcalico.org`` does not answer as it should, so it costs nothing where that group is in use. A group that is
not served is an error, never an empty datastore; so is a cluster that has both groups, and its records in the one that
would not be used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cni_calico.datastore.kubernetes.answers import not_served
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreError, DatastoreForbidden, DatastoreUnsupported
from cni_calico.model.access import API_GROUP, NATIVE_GROUP, KubernetesAccess
from cni_calico.model.kubernetes.custom import turned
from cni_calico.model.kubernetes.groups import CUSTOM, ApiGroup, group_named

Done = TypeVar("Done")
PIN = "name the group with calico_api_group, CALICO_API_GROUP or calicoAPIGroup: "

_decided: dict[tuple[str, str, str], ApiGroup] = {}  # of this process


def _cluster(access: KubernetesAccess) -> tuple[str, str, str]:
    return access.api_root, access.kubeconfig, access.context


class GroupChoice:
    """The group of one store. Thread-safe: threads that ask at the same time get the same answer."""

    def __init__(self, api: KubernetesAPI) -> None:
        self._api = api
        self.named = api.access.api_group
        self._group = group_named(self.named) if self.named else None
        self._is_served = False

    @property
    def known(self) -> ApiGroup | None:
        if self._group is None:
            self._group = _decided.get(_cluster(self._api.access))
        return self._group

    @property
    def why(self) -> str:
        """Why it is this group, in words."""
        return "named by the configuration" if self.named else "found in the cluster"

    @property
    def is_native(self) -> bool:
        """Whether records are known to be resources of NATIVE_GROUP."""
        return self.known is not None and self.known.name == NATIVE_GROUP

    def carry_out(self, act: Callable[[ApiGroup], Done], deadline: Deadline) -> Done:
        """``act`` with the group. A request that fails because its type is unknown has changed nothing, so it is done
        again with the other group, once. Raises what ``act`` raises, DatastoreUnsupported.
        """
        known = self.known
        group = known or CUSTOM
        try:
            done = act(group)
        except (DatastoreUnsupported, DatastoreForbidden) as e:
            if known is not None:
                self._require_served(group, e, deadline)
                raise
            if self._choose_after(e, deadline) is group:  # another thread may have chosen meanwhile
                raise
        else:
            if known is None:
                self._decide(group)
            return done
        return act(self.choose(deadline))

    def _choose_after(self, failed: DatastoreError, deadline: Deadline) -> ApiGroup:
        """Raises ``failed`` if the server knows nothing of groups either: that is what was asked for."""
        try:
            return self.choose(deadline)
        except DatastoreUnsupported as e:
            raise failed from e

    def choose(self, deadline: Deadline) -> ApiGroup:
        """Raises DatastoreError, DeadlineExceeded."""
        known = self.known
        if known is not None:
            return known
        groups = self._read_groups(deadline)
        is_native = _served(NATIVE_GROUP) in groups and _served(API_GROUP) not in groups
        return self._decide(group_named(NATIVE_GROUP if is_native else API_GROUP))

    def require_records(self, deadline: Deadline) -> None:
        """For a cluster that has no ClusterInformation in the group that was found: raises DatastoreUnsupported if the
        other one has it, so that nobody takes the records for lost.
        """
        if self.named or self.known is not CUSTOM or _served(NATIVE_GROUP) not in self._read_groups(deadline):
            return
        if self._read_cluster(NATIVE_GROUP, deadline):
            raise DatastoreUnsupported(
                f"cannot tell which records are in use: the cluster has custom resource definitions of {API_GROUP} and "
                f"of {NATIVE_GROUP}, and records in the latter only",
                details=f"{PIN}{NATIVE_GROUP}; or remove the definitions of {API_GROUP.partition('/')[0]}",
            )

    def read_unlocked_other(self, deadline: Deadline) -> str:
        """The other group if it has records of its own that are unlocked, so that nodes which use it give out the same
        addresses; else "". (An API server of Calico's shows the records of API_GROUP in the other one.)
        """
        group = self.choose(deadline)
        other = API_GROUP if group.name == NATIVE_GROUP else NATIVE_GROUP
        theirs = self._read_cluster(other, deadline)
        if (theirs.get("spec") or {}).get("datastoreReady") is not True:
            return ""
        mine, uid = (
            str((each.get("metadata") or {}).get("uid")) for each in (self._read_cluster(group.name, deadline), theirs)
        )
        return "" if uid in (mine, turned(mine)) else other

    def _read_cluster(self, group: str, deadline: Deadline) -> Mapping[str, Any]:
        path = f"/apis/{group}/clusterinformations/default"
        request = ApiRequest("GET", path, f"look for records of {group}", expect=(403, 404))
        reply = self._api.send(request, deadline)
        return reply.document if reply.status == 200 else {}

    def _decide(self, group: ApiGroup) -> ApiGroup:
        self._group = _decided.setdefault(_cluster(self._api.access), group)
        return self._group

    def _require_served(self, group: ApiGroup, e: DatastoreError, deadline: Deadline) -> None:
        if self._is_served or not isinstance(e, DatastoreUnsupported):
            return
        groups = self._read_groups(deadline)
        self._is_served = _served(group.name) in groups
        if not self._is_served:
            others = [each for each in (API_GROUP, NATIVE_GROUP) if _served(each) in groups]
            raise not_served(str(e), group.name, others) from e

    def _read_groups(self, deadline: Deadline) -> set[str]:
        doing = "list the API groups of the cluster"
        try:
            reply = self._api.send(ApiRequest("GET", "/apis", doing), deadline)
        except DatastoreDenied as e:
            e.details = f"{PIN}{API_GROUP} or {NATIVE_GROUP}"
            raise
        return {str(group.get("name")) for group in reply.document.get("groups") or ()}


def _served(name: str) -> str:
    """The group's name in the API server's list, which has the versions apart."""
    return name.partition("/")[0]
