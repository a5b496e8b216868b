"""Whether a StatefulSet's pod may come again for its addresses."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.datastore.kubernetes.identities import why_over
from cni_calico.model.lasting import LastingKind
from cni_calico.model.names import IDENTITY, STICKY
from tests.deadlines import soon

SET, POD, SPACE = (
    "/apis/apps/v1/namespaces/ns/statefulsets/web",
    "/api/v1/namespaces/ns/pods/web-1",
    "/api/v1/namespaces/ns",
)


class Server:
    def __init__(self, **annotations: dict[str, str] | None) -> None:
        """``pod`` and ``space``: their annotations; no pod: there is none."""
        owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": True}
        self.objects: dict[str, Any] = {SET: {"spec": {"replicas": 2}}}
        self.objects[SPACE] = {"metadata": {"annotations": annotations.get("space")}}
        if "pod" in annotations:
            self.objects[POD] = {"metadata": {"annotations": annotations["pod"], "ownerReferences": [owner]}}

    def get(self, path: str, deadline: object, doing: str) -> Any:
        return self.objects.get(path)


def ask(server: Any, name: str = "web.1") -> str:
    return why_over(server, LastingKind.STATEFUL, "ns", name, soon())


@pytest.mark.parametrize(
    ("pod", "space", "wants"),
    [
        ({STICKY: "true"}, None, True),
        ({STICKY: "keep"}, {STICKY: "false"}, True),
        (None, {STICKY: "true"}, True),
        ({}, {STICKY: "keep"}, True),
        ({STICKY: ""}, {STICKY: "true"}, True),
        ({STICKY: "perhaps"}, None, True),  # its ADD is refused until somebody has mended it
        (None, None, False),
        ({}, {STICKY: "false"}, False),
        ({STICKY: "false"}, {STICKY: "true"}, False),
        ({IDENTITY: "main"}, {STICKY: "true"}, False),  # those of that name
        ({STICKY: "true", IDENTITY: "main"}, None, False),
    ],
)
def test_a_pod_that_is_there_may_not_want_them_any_more(
    pod: dict[str, str] | None, space: dict[str, str] | None, wants: bool
) -> None:
    said = ask(Server(pod=pod, space=space))
    assert said == ("" if wants else "pod ns/web-1 does not ask for it any more")


def test_in_doubt_it_may_come() -> None:
    assert ask(Server()) == ""
    strange = Server(pod={})
    strange.objects[POD]["metadata"]["ownerReferences"][0]["name"] = "other"
    assert ask(strange) == ""
    assert ask(Server(pod={}), "web.2") == "StatefulSet ns/web has no pod 2 any more"
    gone = Server(pod={STICKY: "true"})
    del gone.objects[SET]
    assert ask(gone) == "StatefulSet ns/web is gone"
