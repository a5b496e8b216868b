"""``get -o jsonpath=`` answers what kubectl answers: the judge is kubectl itself, on objects of a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cni_calico.ctl.output.jsonpath import render_jsonpath
from tests.e2e.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes import NAMESPACE
from tests.unit.ctl.output.jsonpaths import CASES, LIST

pytestmark = [pytest.mark.kubernetes, pytest.mark.takes(15)]
OF_OURS = ("get", "configmaps", "-n", NAMESPACE, "-l", "app", "-o")


@pytest.fixture
def maps(kube: Cluster) -> Iterator[Cluster]:
    items = [{**item, "metadata": {**item["metadata"], "namespace": NAMESPACE}} for item in LIST["items"]]
    text = json.dumps({**LIST, "items": items})
    kube.kubectl("apply", "-f", "-", stdin=text)
    yield kube
    kube.kubectl("delete", "-f", "-", stdin=text)


def test_every_template(maps: Cluster) -> None:
    document = json.loads(maps.kubectl(*OF_OURS, "json"))
    theirs = {template: maps.kubectl(*OF_OURS, f"jsonpath={template}") for template, _ in CASES}
    assert {template: render_jsonpath(template, document) for template in theirs} == theirs
