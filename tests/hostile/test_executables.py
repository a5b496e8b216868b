"""What breaks parsers, given to the executables: as configurations, environments, and records of each datastore.

Rule: a bounded number of examples. Whatever it is, a call answers with a result or with an error that is no defect, and
calicoctl with words; nobody dies of it, and what was stored stays.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.e2e.front import executables
from tests.e2e.host import Node
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import kube_node
from tests.hostile.targets import NETCONF
from tests.hostile.test_targets import NASTY
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

DEFECT = 199
VERBS = ("ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION")
CRDS = "/apis/crd.projectcalico.org/v1"
MERGE = "application/merge-patch+json"


@pytest.fixture(
    params=[
        pytest.param("one-shot", marks=pytest.mark.slow),
        "served",
        *(
            pytest.param(f"{way}, frozen", marks=[pytest.mark.bundle, pytest.mark.slow])
            for way in ("one-shot", "served")
        ),
    ]
)
def attacked_node(request: pytest.FixtureRequest, plain_node: Node) -> Iterator[Node]:
    with ExitStack() as held:
        if "frozen" in request.param:
            plain_node.bin_dir = request.getfixturevalue("bundle")
        if "served" in request.param:
            held.enter_context(plain_node.server())
        yield plain_node


def attack(node: Node, environ: dict[bytes, bytes], stdin: bytes) -> dict[str, Any]:
    """A call's answer; it must be one."""
    argv = ["nsenter", f"--net={node.host.path}", str((node.bin_dir or executables()) / "calico")]
    done = subprocess.run(argv, env=environ, input=stdin, capture_output=True, timeout=120)
    assert done.returncode in (0, 1) and b"Traceback" not in done.stderr, (stdin[:200], done)
    document: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    assert document.get("code") != DEFECT, (stdin[:200], document)
    assert done.returncode == 0 or document["msg"], document
    return document


def environment(node: Node, verb: str, pod: Namespace, **changes: bytes) -> dict[bytes, bytes]:
    netns = pod.path if verb in ("ADD", "DEL", "CHECK") else ""
    given = node.env(verb, "c1" if netns else "", netns, "eth0", "")
    plain = {name.encode(): value.encode() for name, value in given.items() if value}
    return {**plain, **{name.encode(): value for name, value in changes.items()}}


def test_configurations(attacked_node: Node, pod_ns: Namespace) -> None:
    """In the place of everything, of a key's value, and in the middle."""
    node = attacked_node
    good = json.dumps({**NETCONF, **node.conf()}).encode()
    for number, nasty in enumerate(NASTY):
        verb = VERBS[number % len(VERBS)]
        at = good.index(b'"ipam":') + len(b'"ipam":')
        for stdin in (nasty, good[:at] + nasty + b"}", good[: len(good) // 2] + nasty + good[len(good) // 2 :]):
            attack(node, environment(node, verb, pod_ns), stdin)
    assert node.call("DEL", "c1", pod_ns.path).ok
    assert pod_ns.link("eth0") is None and not node.leftovers()


def test_environments(attacked_node: Node, pod_ns: Namespace) -> None:
    node, stdin = attacked_node, json.dumps(attacked_node.conf()).encode()
    names = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH", "CNI_COMMAND")
    for number, nasty in enumerate(nasty for nasty in NASTY if b"\0" not in nasty):
        changes = {names[number % len(names)]: nasty}
        attack(node, environment(node, VERBS[number % 3], pod_ns, **changes), stdin)
        if pod_ns.link("eth0") is not None:
            environ = environment(node, "DEL", pod_ns, **{k: v for k, v in changes.items() if k != "CNI_COMMAND"})
            attack(node, environ, stdin)
    assert pod_ns.link("eth0") is None and not node.leftovers()


# -- documents at an API server ---------------------------------------------------------------------------------------


VALUES: tuple[Any, ...] = (
    *(None, True, -1, 2**53, 1.5, "", "\x00", "/", "..", "10.0.0.0/99", "::ffff:1.2.3.4", "fe80::1%eth0", "%s%n"),
    *([], {}, [None], [[]], {"": ""}, "9" * 5000, ["10.65.0.1"] * 50, {"a": {"b": {"c": []}}}),
)


@pytest.mark.kubernetes
@pytest.mark.takes(30)
@pytest.mark.parametrize("way", ["served", pytest.param("one-shot", marks=pytest.mark.slow)])
def test_documents_on_kubernetes(
    kube: Cluster, host_ns: Namespace, tmp_path: Path, pod_ns: Namespace, way: str
) -> None:
    """In a pool and in the annotations of a pod, as far as the API server takes them."""
    with kube_node(kube, host_ns, tmp_path) as node, ExitStack() as held:
        if way == "served":
            held.enter_context(node.server())
        kube.create_pod(node.namespace, "web-0", node.nodename)
        pod = f"/api/v1/namespaces/{node.namespace}/pods/web-0"
        stored = 0
        for value in VALUES:
            texts = {f"cni.projectcalico.org/{name}": json.dumps(value) for name in ("ipAddrs", "ipv4pools", "hwAddr")}
            try:
                kube.request("PATCH", pod, {"metadata": {"annotations": texts}}, content_type=MERGE)
                stored += 1
            except Exception as e:  # the API server refuses what is no text of an annotation
                assert "annotation" in str(e).lower() or "invalid" in str(e).lower(), e
                continue
            require_proper(node.pod_call("ADD", "web-0", "c1" * 32, pod_ns.path), value)
            assert node.pod_call("DEL", "web-0", "c1" * 32, pod_ns.path).ok
        assert stored > len(VALUES) / 2
        kube.request("PATCH", pod, {"metadata": {"annotations": dict.fromkeys(texts, None)}}, content_type=MERGE)
        reply = node.pod_call("ADD", "web-0", "c1" * 32, pod_ns.path)
        assert reply.ok, reply
        assert node.pod_call("DEL", "web-0", "c1" * 32, pod_ns.path).ok
        assert node.leftovers() == {}


def require_proper(reply: Any, value: Any) -> None:
    assert reply.ok or (reply.document["code"] != DEFECT and reply.document["msg"]), (value, reply)


# -- what calicoctl is given ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["sources", pytest.param("frozen", marks=[pytest.mark.bundle, pytest.mark.slow])])
def test_manifests(request: pytest.FixtureRequest, tmp_path: Path, program: str) -> None:
    """Several in one file cost one process; each alone would cost one each."""
    argv = [sys.executable, "-m", "cni_calico.ctl.main"]
    if program == "frozen":
        argv = [str(request.getfixturevalue("bundle") / "calicoctl")]
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "DATASTORE_TYPE": "local",
        "DATASTORE_PATH": str(tmp_path / "datastore.db"),
    }
    good = b"apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: p}\nspec: {cidr: 10.0.0.0/16, a: @}\n"
    for nasty in NASTY[::3]:
        path = tmp_path / "manifest.yaml"
        path.write_bytes(good.replace(b"@", nasty))
        done = subprocess.run([*argv, "apply", "-f", str(path)], env=environ, capture_output=True, timeout=100)
        assert done.returncode in (0, 1) and b"Traceback" not in done.stderr, (nasty, done)
        assert done.returncode == 0 or done.stderr.strip(), nasty
