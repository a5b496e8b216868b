"""What callers of upstream's plugins rely on: arguments for other IPAM plugins, calico-ipam by itself, not ready."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.keys import ResourceKey, etcd_path
from tests.conftest import LAB_CACHE
from tests.e2e import not_ready
from tests.e2e.host import EtcdNode, Node, added
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

POD = "K8S_POD_NAMESPACE=space;K8S_POD_NAME=web-0"
CLUSTER = etcd_path(ResourceKey("ClusterInformation", "default"))


@pytest.mark.cnitool
@pytest.mark.parametrize("arguments", ["", POD, f"IgnoreUnknown=1;{POD}"])
def test_host_local_takes_what_it_does_not_know(node: Node, pod_ns: Namespace, tmp_path: Path, arguments: str) -> None:
    """Plugins of the reference libraries refuse unknown CNI_ARGS unless they are told to ignore them."""
    node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    section = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "dataDir": str(tmp_path / "leases")}
    reply = added(node, "c1", pod_ns, args=arguments, ipam=section)
    options: dict[str, Any] = {"args": arguments, "ipam": section}
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=reply.document, **options).ok
    assert node.call("DEL", "c1", pod_ns.path, **options).ok
    assert not node.leftovers()


def test_a_delegate_keeps_the_callers_word(node: Node, pod_ns: Namespace, tmp_path: Path) -> None:
    program = tmp_path / "scripted-ipam"
    program.write_text(
        f'#!/bin/sh\necho "$CNI_COMMAND $CNI_ARGS" >>{tmp_path}/asked\n'
        '[ $CNI_COMMAND = ADD ] && echo \'{"cniVersion":"1.0.0","ips":[{"address":"10.88.0.5/24"}]}\'\nexit 0\n'
    )
    program.chmod(0o755)
    node.environ["CNI_PATH"] = str(tmp_path)
    node.overrides["ipam"] = {"type": "scripted-ipam"}
    added(node, "c1", pod_ns, args="IgnoreUnknown=0;A=b")
    assert node.call("DEL", "c1", pod_ns.path, args="A=b").ok
    for command in ("STATUS", "GC"):
        assert node.call(command, "", "", **{"cni.dev/valid-attachments": []}).ok
    expected = ["ADD IgnoreUnknown=0;A=b", "DEL IgnoreUnknown=1;A=b", "STATUS IgnoreUnknown=1", "GC IgnoreUnknown=1"]
    assert (tmp_path / "asked").read_text().split("\n")[:-1] == expected


def test_calico_ipam_by_itself_needs_no_node_that_is_set_up(any_node: Node, pod_ns: Namespace) -> None:
    """nodename > the file if it is there > hostname > the host's own name; calico waits for the file."""
    node, file = any_node, any_node.root / "nodename"
    alone: dict[str, Any] = {"plugin": "calico-ipam", "nodename": None, "nodename_file": str(file)}
    os_name = socket.gethostname().strip().lower()
    for container, expected, changes in (
        ("c1", os_name, alone),
        ("c2", "deprecated", {**alone, "hostname": "deprecated"}),
        ("c3", "given", {**alone, "nodename": "given"}),
    ):
        added(node, container, pod_ns, **changes)
        assert expected in {path.split("/")[5] for path in node.affinities()}
        assert node.call("DEL", container, pod_ns.path, **changes).ok
    file.write_text("written\n")
    added(node, "c4", pod_ns, **alone)
    assert "written" in {path.split("/")[5] for path in node.affinities()}
    file.unlink()
    assert node.call("CHECK", "c4", pod_ns.path, prevResult={"ips": []}, **alone).ok
    assert node.call("STATUS", "", "", **alone).ok
    valid = {"cni.dev/valid-attachments": [{"containerID": "c4", "ifname": "eth0"}]}
    assert node.call("GC", "", "", **alone, **valid).ok and len(node.taken()) == 1
    assert node.call("DEL", "c4", "", **alone).ok and not node.taken()
    refused = node.call("STATUS", "", "", nodename=None, nodename_file=str(file))
    assert refused.document["code"] == 50 and f"stat {file}" in refused.document["msg"]


@pytest.mark.parametrize("name", ["main", "ipam.main"])
@pytest.mark.parametrize("arguments", [["once"], ["once", "-v"], ["--", "-v"]])
def test_arguments_that_are_no_flags(plain_node: Node, name: str, arguments: list[str]) -> None:
    """Ignored in a call; outside of one they are a mistake."""
    command = [sys.executable, "-m", f"cni_calico.plugin.{name}", *arguments]
    environ = {**plain_node.env("STATUS", "", "", "", ""), "CNI_NETNS": ""}
    options: dict[str, Any] = {"input": json.dumps(plain_node.conf()).encode(), "capture_output": True, "timeout": 60}
    done = subprocess.run(command, env=environ, **options)
    assert (done.returncode, done.stdout) == (0, b""), done
    version = subprocess.run(command, env={**environ, "CNI_COMMAND": "VERSION"}, **options)
    assert version.returncode == 0 and b"supportedVersions" in version.stdout
    alone = subprocess.run(command, env={**environ, "CNI_COMMAND": ""}, **options)
    assert alone.returncode == 2 and b"unknown arguments" in alone.stderr


@pytest.mark.etcd
def test_a_cluster_without_cluster_information(on_etcd: EtcdNode, make_pod_ns: MakeNamespace) -> None:
    """For calico it is not ready; calico-ipam by itself does not ask for the record."""
    not_ready.try_without_cluster_information(on_etcd, make_pod_ns)


def test_the_embedded_store_is_a_cluster_by_itself(node: Node, pod_ns: Namespace) -> None:
    node.put({CLUSTER: None})
    added(node, "c1", pod_ns)
    assert node.call("STATUS", "", "").ok
    assert node.call("DEL", "c1", "").ok and not node.leftovers()


@pytest.mark.etcd
def test_an_endpoint_whose_write_may_still_come_is_owed(etcd_node: EtcdNode, make_pod_ns: MakeNamespace) -> None:
    """Its answer is lost and it cannot be read: whatever the undo finds, the write may be carried out later."""
    node, pod, trace = etcd_node, make_pod_ns(), etcd_node.root / "trace"
    added(node, "c0", make_pod_ns())  # the records of the network are there
    trace.touch()
    node.environ["CALICO_FAULT_TRACE"] = str(trace)
    added(node, "c1", pod)
    del node.environ["CALICO_FAULT_TRACE"]
    node.call("DEL", "c1", pod.path)
    steps = trace.read_text().split()
    last = len(steps) - 1 - steps[::-1].index("etcd.commit:after")
    commits, reads = steps[: last + 1].count("etcd.commit:after"), steps[:last].count("etcd.read:before")
    fault = f"etcd.commit:after:{commits}:fail,etcd.read:before:{reads + 1}:fail"
    failed = node.call("ADD", "c1", make_pod_ns().path, fault=fault)
    assert not failed.ok, failed
    assert len(node.intents()) == 1 and len(node.endpoints()) == 1
    assert node.call("DEL", "c0").ok
    assert not node.leftovers()
