"""Which API group is used: what is asked, how often, and what a cluster with the wrong one gets instead of nothing."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from cni_calico.datastore.kubernetes.layout import Collection, select_collections
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable, DatastoreUnsupported
from cni_calico.model.access import API_GROUP, NATIVE_GROUP, KubernetesAccess
from cni_calico.model.keys import EverythingList, IPAMConfigKey, ListKey, ResourceKey, ResourceList
from cni_calico.model.kubernetes.custom import turned
from cni_calico.model.kubernetes.groups import CUSTOM, ApiGroup
from tests.deadlines import soon
from tests.fakes.scripted_http import Scripted, scripted

CLUSTER = ResourceKey("ClusterInformation", "default")
POOL = ResourceKey("IPPool", "p")
UNKNOWN = (404, "404 page not found\n")
FORBIDDEN = (403, {"kind": "Status", "reason": "Forbidden", "message": "forbidden told"})
_contexts = itertools.count()


def groups(*names: str) -> tuple[int, object]:
    return 200, {"kind": "APIGroupList", "groups": [{"name": name.partition("/")[0]} for name in ("apps/v1", *names)]}


def pool(group: str) -> tuple[int, object]:
    metadata = {"name": "p", "uid": "u", "resourceVersion": "5"}
    return 200, {"apiVersion": group, "kind": "IPPool", "metadata": metadata, "spec": {"cidr": "10.65.0.0/16"}}


def absent(name: str) -> tuple[int, object]:
    return 404, {"kind": "Status", "reason": "NotFound", "message": "not found told", "details": {"name": name}}


def store_of(server: Scripted, group: str = "") -> KubernetesStore:
    """Of another cluster than any before, as far as this process knows."""
    context = f"{next(_contexts)}"
    return KubernetesStore(KubernetesAccess(api_root=server.url, token="t", context=context, api_group=group))


def paths(server: Scripted) -> list[str]:
    return [path.removeprefix("/apis") for _, path, _, _ in server.requests]


def test_nothing_is_asked_where_the_older_group_answers() -> None:
    with scripted(*[pool(API_GROUP), pool(API_GROUP), absent("p")]) as server:
        store = store_of(server)
        assert store.get(POOL, soon()) and store.get(POOL, soon()) and store.get(POOL, soon()) is None
        assert paths(server) == [f"/{API_GROUP}/ippools/p"] * 3


@pytest.mark.parametrize("first", [UNKNOWN, FORBIDDEN], ids=["unknown", "forbidden"])
def test_the_newer_group_is_found_once_in_a_process(first: object) -> None:
    with scripted(*[first, groups(NATIVE_GROUP), pool(NATIVE_GROUP), pool(NATIVE_GROUP), pool(NATIVE_GROUP)]) as server:
        store = store_of(server)
        assert store.get(POOL, soon()) and store.get(POOL, soon())
        assert KubernetesStore(store.api.access).get(POOL, soon())
        asked = [f"/{API_GROUP}/ippools/p", "", *[f"/{NATIVE_GROUP}/ippools/p"] * 3]
        assert paths(server) == asked


def test_a_thread_that_asked_when_another_one_found_the_group_asks_again_too() -> None:
    """The server's threads begin at the same time; this one is told that it asked for an unknown type last."""
    with scripted(always=groups(NATIVE_GROUP)) as server:
        choice, asked, found = store_of(server).group, threading.Event(), threading.Event()

        def late(group: ApiGroup) -> str:
            if group is CUSTOM:
                asked.set()
                assert found.wait(30)
                raise DatastoreUnsupported("unknown")
            return group.name

        with ThreadPoolExecutor(1) as other:
            outcome = other.submit(choice.carry_out, late, soon())
            assert asked.wait(30)
            assert choice.choose(soon()).name == NATIVE_GROUP
            found.set()
            assert outcome.result(30) == NATIVE_GROUP


def test_both_groups_are_the_older_one() -> None:
    with scripted(*[FORBIDDEN, groups(NATIVE_GROUP, API_GROUP), pool(API_GROUP)]) as server:
        store = store_of(server)
        with pytest.raises(DatastoreDenied, match="forbidden told"):
            store.get(POOL, soon())
        assert store.get(POOL, soon())
        assert paths(server) == [f"/{API_GROUP}/ippools/p", "", f"/{API_GROUP}/ippools/p"]


@pytest.mark.parametrize("listing", [ResourceList("IPPool"), EverythingList()], ids=["one kind", "everything"])
def test_a_cluster_without_any_definitions_is_not_an_empty_datastore(listing: ListKey) -> None:
    with scripted(*[UNKNOWN] * 40 + [groups()], always=groups()) as server:
        server.steps = [UNKNOWN] * len(_collections_of(listing)) + [groups()]
        with pytest.raises(DatastoreUnsupported, match="the API server does not know"):
            store_of(server).list(listing, soon())


def _collections_of(listing: ListKey) -> list[Collection]:
    found = []
    for collection in select_collections(CUSTOM, listing):
        found.append(collection)
        if not collection.optional:
            break
    return found


@pytest.mark.parametrize(
    ("named", "served"), [(NATIVE_GROUP, [API_GROUP]), (API_GROUP, [NATIVE_GROUP]), (NATIVE_GROUP, [])]
)
def test_a_named_group_that_is_not_served_is_refused(named: str, served: list[str]) -> None:
    with scripted(*[UNKNOWN, groups(*served)]) as server:
        with pytest.raises(DatastoreUnsupported, match=f"{named} is not served by this cluster") as caught:
            store_of(server, named).get(POOL, soon())
        said = caught.value.details
        assert (f"it serves {served[0]}" if served else "none of Calico's custom resource definitions") in said


def test_a_named_group_is_never_left() -> None:
    with scripted(*[UNKNOWN, groups(API_GROUP, NATIVE_GROUP), UNKNOWN]) as server:
        store = store_of(server, NATIVE_GROUP)
        for _ in range(2):
            with pytest.raises(DatastoreUnsupported, match="does not know /apis/projectcalico"):
                store.get(IPAMConfigKey(), soon())
        path = f"/{NATIVE_GROUP}/ipamconfigurations/default"
        assert paths(server) == [path, "", path], "that the group is served is asked once"


def test_records_in_the_other_group_are_not_taken_for_lost() -> None:
    with scripted(
        *[absent("default"), groups(API_GROUP, NATIVE_GROUP), (200, {"kind": "ClusterInformation"})]
    ) as server:
        with pytest.raises(DatastoreUnsupported, match="records in the latter only") as caught:
            store_of(server).get(CLUSTER, soon())
        assert NATIVE_GROUP in caught.value.details
    with scripted(*[absent("default"), groups(API_GROUP, NATIVE_GROUP), absent("default")]) as server:
        assert store_of(server).get(CLUSTER, soon()) is None, "a new cluster with an API server of Calico's"
    with scripted(*[absent("default")]) as server:
        assert store_of(server, API_GROUP).get(CLUSTER, soon()) is None, "somebody says which"


def test_the_question_may_fail_and_is_asked_again() -> None:
    with scripted(*[UNKNOWN, FORBIDDEN, UNKNOWN, groups(NATIVE_GROUP), pool(NATIVE_GROUP)]) as server:
        store = store_of(server)
        with pytest.raises(DatastoreDenied, match="cannot list the API groups") as caught:
            store.get(POOL, soon())
        assert "CALICO_API_GROUP" in caught.value.details
        assert store.get(POOL, soon())


def test_a_server_that_is_away_decides_nothing() -> None:
    with scripted(*[UNKNOWN], always="close") as server, pytest.raises(DatastoreUnavailable):
        store_of(server).get(POOL, Deadline.after(1.5))


def cluster(uid: str, *, ready: bool) -> tuple[int, object]:
    return 200, {"kind": "ClusterInformation", "metadata": {"uid": uid}, "spec": {"datastoreReady": ready}}


def test_records_of_the_other_group_that_are_unlocked_too_are_found() -> None:
    uid = "c775b595-dc59-4ea0-b81b-7ea52accdd39"
    other = "c775b595-dc59-4ea0-b81b-7ea52accdd38"
    for answers, found in (
        ((cluster(other, ready=True), cluster(uid, ready=False)), NATIVE_GROUP),
        ((cluster(turned(uid), ready=True), cluster(uid, ready=True)), ""),  # shown by an API server of Calico's
        ((cluster(other, ready=False),), ""),
        ((UNKNOWN,), ""),
        ((FORBIDDEN,), ""),
    ):
        with scripted(*answers) as server:
            assert store_of(server, API_GROUP).group.read_unlocked_other(soon()) == found
            assert not server.steps
