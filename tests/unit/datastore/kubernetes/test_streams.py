"""Opening a watch meets the same troubles as a request: credentials that expired, a server that has no time."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.datastore.kubernetes import watch as watch_module
from cni_calico.datastore.kubernetes.layout import KUBERNETES_CLUSTER_POLICY
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.model.access import KubernetesAccess
from cni_calico.model.keys import AffinityList, HandleList, ResourceKey, ResourceList
from tests.fakes.scripted_http import Scripted, scripted
from tests.unit.datastore.kubernetes.scripted_api import NOW
from tests.unit.datastore.kubernetes.test_api import bookmark, changed, kubeconfig

UNAUTHORIZED = (401, {"message": "Unauthorized"})


def store_of(server: Scripted, file: Path, token: str = "old") -> KubernetesStore:
    return KubernetesStore(KubernetesAccess(kubeconfig=kubeconfig(file, server.url, token)))


def test_a_watch_goes_on_with_new_credentials(tmp_path: Path) -> None:
    """The stream ends, the token has been replaced meanwhile, and nothing is missed."""
    file = tmp_path / "kubeconfig"
    script = ([changed("ADDED", "6"), bookmark("9")], UNAUTHORIZED, [changed("MODIFIED", "12"), "hang"])
    with scripted(*script) as server, store_of(server, file).watch(HandleList(), "5") as watch:
        assert [event.revision for event in watch.next(5)] == ["6"]
        kubeconfig(file, server.url, "new")
        assert [event.revision for event in watch.next(5)] == ["12"]
        tokens = [headers["authorization"] for _, _, headers, _ in server.requests]
        assert tokens == ["Bearer old", "Bearer old", "Bearer new"]
        assert "resourceVersion=9" in server.requests[-1][1]


def test_credentials_that_stay_wrong_are_told(tmp_path: Path) -> None:
    with scripted(UNAUTHORIZED, UNAUTHORIZED) as server, store_of(server, tmp_path / "k").watch(HandleList(), "5") as w:
        with pytest.raises(DatastoreDenied, match=r"cannot watch .*ipamhandles: Unauthorized"):
            w.next(5)
        assert len(server.requests) == 2


def test_a_server_without_time_is_asked_again(tmp_path: Path) -> None:
    busy = (429, {"message": "slow down"}, NOW)
    with scripted(busy, busy, [changed("ADDED", "6"), "hang"]) as server:
        with store_of(server, tmp_path / "k").watch(HandleList(), "5") as watch:
            assert [event.revision for event in watch.next(5)] == ["6"]
        assert len(server.requests) == 3


def test_a_server_that_fails_for_long_is_told(tmp_path: Path) -> None:
    failing = (503, {"message": "no quorum"}, NOW)
    with scripted(always=failing) as server, store_of(server, tmp_path / "k").watch(HandleList(), "5") as watch:
        with pytest.raises(DatastoreUnavailable, match="no quorum"):
            watch.next(5)
        assert len(server.requests) == 5


def test_a_type_that_is_defined_later_is_followed_from_then_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "TYPE_RETRY_S", 0.1)
    missing = (404, {"message": "the server could not find the requested resource"})
    policy = {"metadata": {"name": "p", "uid": "u", "resourceVersion": "6"}, "spec": {"tier": "Admin"}}
    listing = ResourceList(KUBERNETES_CLUSTER_POLICY)
    with scripted(missing, missing, missing, [{"type": "ADDED", "object": policy}, "hang"]) as server:
        store = store_of(server, tmp_path / "k")
        found = store.list(listing, Deadline.after(5))
        assert not found.items
        with store.watch(listing, found.revision) as watch:
            assert not watch.next(0.01)
            assert [event.key.name for event in watch.next(5) if isinstance(event.key, ResourceKey)] == ["p"]
        assert "resourceVersion" not in server.requests[-1][1]


def test_what_a_storm_holds_is_bounded_in_bytes(tmp_path: Path) -> None:
    """Of two collections events are put in order as far as they come together: no more of them than that."""
    count, text = 200, "x" * 100_000

    def namespace(number: int) -> dict[str, object]:
        metadata = {"name": f"n{number}", "resourceVersion": str(number + 10), "annotations": {"large": text}}
        return {"type": "ADDED", "object": {"metadata": metadata}}

    storm = [*map(namespace, range(count)), "hang"]
    listing, start = ResourceList("Profile"), "5"
    with scripted(storm, ["hang"]) as server, store_of(server, tmp_path / "k").watch(listing, start) as watch:
        seen, held = [], 0
        while len(seen) < count:
            seen += [event.key.name for event in watch.next(20) if isinstance(event.key, ResourceKey)]
            held = max(held, len(watch._ready))
    assert seen == [f"kns.n{number}" for number in range(count)]
    assert 0 < held <= watch_module.BACKLOG_BYTES // len(text) + 1


def test_what_watches_ask_for(tmp_path: Path) -> None:
    """Bookmarks always; of affinities only the node's, of endpoints only the node's pods; ends spread over a minute."""
    listings = {
        HandleList(): "/ipamhandles?",
        AffinityList("n1"): "labelSelector=projectcalico.org%2Faffinity-type%3Dhost",
        ResourceList("WorkloadEndpoint", "", "n1-"): "fieldSelector=spec.nodeName%3Dn1",
    }
    ends = set()
    for listing, part in listings.items():
        for _ in range(4):
            with scripted(["hang"]) as server, store_of(server, tmp_path / "k").watch(listing, "5") as watch:
                assert not watch.next(0.05)
                [(_, path, _, _)] = server.requests
                assert part in path and "allowWatchBookmarks=true" in path and "watch=1" in path
                ends.add(int(path.partition("timeoutSeconds=")[2].partition("&")[0]))
    assert len(ends) > 1 and min(ends) >= 300 and max(ends) < 600
