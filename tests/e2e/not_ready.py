"""A cluster without ClusterInformation, or with one that says no: what the executables answer, on any datastore."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from cni_calico.model.keys import ResourceKey, etcd_path
from tests.e2e import front
from tests.e2e.host import Node, Reply, added
from tests.fixtures.namespaces import MakeNamespace

CLUSTER = etcd_path(ResourceKey("ClusterInformation", "default"))
TRY_AGAIN, NOT_AVAILABLE = 11, 50
CODES = {"ADD": TRY_AGAIN, "DEL": TRY_AGAIN, "GC": TRY_AGAIN, "STATUS": NOT_AVAILABLE}
TEXT = "Calico is currently not ready to process requests"
GC: dict[str, Any] = {"cni.dev/valid-attachments": []}


def try_datastore(node: Node, plugin: str = "calico") -> Reply:
    """``calico -t``."""
    command = ["nsenter", f"--net={node.host.path}", str(front.executables() / plugin), "-t"]
    environ = {name: value for name, value in node.env("", "", "", "", "").items() if value}
    done = subprocess.run(
        command, input=json.dumps(node.conf()).encode(), env=environ, capture_output=True, timeout=node.timeout_s
    )
    return Reply(done.returncode, json.loads(done.stdout) if done.stdout.strip() else None)


def refusals(node: Node, netns: str, plugin: str = "calico", container: str = "c1") -> dict[str, Reply]:
    """What every verb that asks answers; all of them refuse."""
    found = {command: node.call(command, container, netns, plugin=plugin, **GC) for command in CODES}
    if plugin == "calico":
        found["-t"] = try_datastore(node)
    for command, reply in found.items():
        assert reply.rc == 1 and reply.document["msg"].startswith(TEXT), (command, reply)
        assert reply.document["code"] == CODES.get(command, TRY_AGAIN), (command, reply)
    return found


def try_without_cluster_information(node: Node, make_pod_ns: MakeNamespace) -> None:
    """Nothing is taken nor given back meanwhile, and all goes on when the record is back."""
    pod, other = make_pod_ns(), make_pod_ns()
    added(node, "c1", pod)
    assert try_datastore(node).ok
    before = node.dump()
    node.put({CLUSTER: None})
    for container, netns in (("c1", pod.path), ("c2", other.path)):
        for reply in refusals(node, netns, container=container).values():
            assert "ClusterInformation 'default' does not exist" in reply.document["msg"]
            assert "while Calico is being installed" in reply.document["details"]
    after = node.dump()
    assert {**after, CLUSTER: before[CLUSTER]} == before and not node.intents()
    assert pod.link("eth0") is not None and other.link("eth0") is None
    # address management by itself asks only whether the record says no
    added(node, "c2", other, plugin="calico-ipam")
    assert node.call("STATUS", "", "", plugin="calico-ipam").ok
    assert node.call("DEL", "c2", "", plugin="calico-ipam").ok
    node.apply("ClusterInformation", "default", {"clusterGUID": "0" * 32, "datastoreReady": False})
    for plugin in ("calico", "calico-ipam"):
        for reply in refusals(node, pod.path, plugin).values():
            assert "datastoreReady: false" in reply.document["details"]
    node.apply_cluster()
    assert try_datastore(node).ok and node.call("STATUS", "", "").ok
    assert node.call("DEL", "c1", pod.path).ok and not node.leftovers()
