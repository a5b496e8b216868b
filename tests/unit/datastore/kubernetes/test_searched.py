"""Pods and nodes with the right to get them, and with the right to list them only."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cni_calico.datastore.kubernetes.searched import SearchedObjects
from cni_calico.errors import DatastoreDenied
from tests.deadlines import SOON

PODS, NODES = "/api/v1/namespaces/space/pods", "/api/v1/nodes"
STORED = {PODS: ["web", "web-0"], NODES: ["n1"]}


class Api:
    """An API server that has STORED and allows ``verbs``."""

    def __init__(self, *verbs: str) -> None:
        self._verbs = verbs
        self.asked: list[str] = []

    def get(self, path, deadline, doing):
        self.asked.append(path)
        if "get" not in self._verbs:
            raise DatastoreDenied(f"cannot {doing}: may not get")
        collection, _, name = path.rpartition("/")
        return {"metadata": {"name": name}} if name in STORED[collection] else None

    def send(self, request, deadline):
        self.asked.append(request.path)
        if "list" not in self._verbs:
            raise DatastoreDenied(f"cannot {request.doing}: may not list")
        collection, _, wanted = request.path.partition("?fieldSelector=metadata.name%3D")
        items = [{"metadata": {"name": name}} for name in STORED[collection] if name == wanted]
        return SimpleNamespace(document={"items": items})


@pytest.mark.parametrize("verbs", [("get",), ("get", "list"), ("list",)])
def test_either_right_suffices(verbs):
    objects = SearchedObjects(Api(*verbs))
    assert objects.pod("space", "web", "", SOON)["metadata"]["name"] == "web"
    assert objects.node("n1", SOON)["metadata"]["name"] == "n1"
    assert objects.pod("space", "gone", "", SOON) is None and objects.node("n2", SOON) is None


def test_nothing_is_listed_that_can_be_got():
    api = Api("get", "list")
    SearchedObjects(api).node("n1", SOON)
    assert api.asked == [f"{NODES}/n1"]


def test_without_any_right_the_one_to_get_is_named():
    with pytest.raises(DatastoreDenied, match="may not get"):
        SearchedObjects(Api()).node("n1", SOON)
