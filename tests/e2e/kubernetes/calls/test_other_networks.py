"""GC of one network leaves another network's addresses alone, also those that say nothing but a name."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceList
from tests.e2e.attachments import VALID
from tests.e2e.cnitool import Cnitool
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, node_on
from tests.e2e.oldest import grow_old
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.bundle, pytest.mark.cnitool]


@pytest.fixture
def bundled(kube: Cluster, host_ns: Namespace, tmp_path: Path, bundle: Path) -> Iterator[KubeNode]:
    with node_on("local", kube, host_ns, tmp_path) as made:
        made.bin_dir = bundle
        yield made


def add(node: KubeNode, network: str, pod: Namespace) -> tuple[str, Path]:
    """A container as the oldest releases left it, without its endpoint: its ID, and the file that libcni remembers it
    by.
    """
    tool = Cnitool(node, changes={"name": network}, network=network)
    results = node.root / "cache" / "results"
    before = set(results.glob("*"))
    tool.ok("add", pod)
    [remembered] = set(results.glob("*")) - before
    container = json.loads(remembered.read_text())["containerId"]
    node.put(dict.fromkeys(node.records(ResourceList("WorkloadEndpoint"))))
    grow_old(node, container, f"{network}.{container}", network=network)
    return container, remembered


def collect(node: KubeNode, network: str, plugin: str) -> None:
    """A GC that names no attachment as valid."""
    argv = [*Cnitool(node).in_host, str(node.bin_dir / plugin)]
    environ = {name: value for name, value in node.env("GC", "", "", "", "").items() if value}
    conf = json.dumps(node.conf(name=network, **{VALID: []}))
    done = subprocess.run(argv, input=conf, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("plugin", ["calico", "calico-ipam"])
def test_bare_handles_of_two_networks(bundled: KubeNode, make_pod_ns: MakeNamespace, plugin: str) -> None:
    """``<network>.<container ID>`` may as well be a pod of a namespace: as one that does not exist it would be
    released, if libcni did not remember the container in the other network.
    """
    ours, ours_remembered = add(bundled, "calnet", make_pod_ns())
    theirs, theirs_remembered = add(bundled, "othernet", make_pod_ns())
    both = {f"calnet.{ours}", f"othernet.{theirs}"}
    assert set(bundled.taken().values()) == both
    ours_remembered.unlink()
    collect(bundled, "calnet", plugin)
    assert set(bundled.taken().values()) == {f"othernet.{theirs}"} and len(bundled.handles()) == 1
    theirs_remembered.unlink()
    collect(bundled, "calnet", plugin)
    assert not bundled.taken() and not bundled.handles()
