"""A call, or the server, that is short of memory, threads or descriptors.

Whatever the verb, the caller gets a result or an error that is no defect; what an ADD had begun is undone, or removed
by the DEL that follows.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.front import executables
from tests.e2e.host import EtcdNode, Node
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.served import call
from tests.faults.calls import PIDS, Limits, lonely_group
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.takes(10)]

VERBS = ("ADD", "DEL", "CHECK", "STATUS", "GC", "VERSION")
# what has effects in every run, the rest where there is time
VERBS_FIRST = [*VERBS[:2], *(pytest.param(verb, marks=pytest.mark.slow) for verb in VERBS[2:])]
DEFECT = 199
FEW_MB, MORE_MB = (24, 60, 90), tuple(range(16, 240, 4))
FEW_DESCRIPTORS = (3, 8)
STORES = [
    pytest.param("plain_node", id="local"),
    pytest.param("etcd_node", marks=[pytest.mark.etcd, pytest.mark.slow], id="etcd"),
    pytest.param("pods_node", marks=[pytest.mark.kubernetes, pytest.mark.slow], id="kubernetes"),
]


@contextmanager
def without_threads() -> Iterator[Path]:
    with lonely_group() as group:
        if group is None:
            pytest.skip("pids: this machine has no such cgroup")
        yield group


def limited(node: Node, limits: Limits, verb: str, pod: Namespace, **changes: Any) -> tuple[int, dict[str, Any]]:
    """A call whose process has these limits from its start: its exit status and document."""
    directory = node.bin_dir or executables()
    netns = pod.path if verb in ("ADD", "DEL", "CHECK") else ""
    container = "c1" if netns else ""
    environ = {k: v for k, v in node.env(verb, container, netns, "eth0", "").items() if v}
    argv = ["nsenter", f"--net={node.host.path}", *limits.words(), str(directory / "calico")]
    done = subprocess.run(
        argv, input=json.dumps(node.conf(**changes)).encode(), env=environ, capture_output=True, timeout=150
    )
    try:
        return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}
    except ValueError:
        return done.returncode, {"text": done.stdout}


def given(verb: str, result: Mapping[str, Any]) -> dict[str, Any]:
    if verb == "GC":
        return {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
    return {"prevResult": result} if verb in ("CHECK", "DEL") else {}


def require_no_defect(node: Node, pod: Namespace, verb: str, all_limits: list[Limits]) -> None:
    succeeded = 0
    for limits in all_limits:
        before = node.call("ADD", "c1", pod.path).document if verb != "ADD" else {}
        status, document = limited(node, limits, verb, pod, **given(verb, before))
        assert document.get("code") != DEFECT, (limits, document)
        succeeded += status == 0
        if verb == "ADD" and status != 0:
            left = node.leftovers()
            assert not left.keys() & {"links", "routes"}, (limits, document, left)
            assert "intents" in left or not left, (limits, document, left)
        elif verb not in ("ADD", "DEL"):
            assert pod.link("eth0") is not None
        require_deleted(node, pod)
    assert succeeded > 0, "no limit left room enough: nothing is shown"


def require_deleted(node: Node, pod: Namespace) -> None:
    """On a busy machine a DEL may owe something, which it pays when it is repeated."""

    def is_over() -> bool:
        assert call(node, "DEL", "c1", pod.path).ok
        return not node.leftovers()

    until(is_over, "nothing is left over", 400)


@pytest.mark.parametrize("how", ["few", pytest.param("many", marks=pytest.mark.slow)])
@pytest.mark.parametrize("verb", VERBS_FIRST)
def test_a_call_with_little_memory(plain_node: Node, pod_ns: Namespace, verb: str, how: str) -> None:
    sizes = FEW_MB if how == "few" else MORE_MB
    require_no_defect(plain_node, pod_ns, verb, [Limits("memory", size) for size in (*sizes, 2000)])


@pytest.mark.parametrize("verb", VERBS)
def test_a_call_without_threads(plain_node: Node, pod_ns: Namespace, verb: str) -> None:
    with without_threads() as group:
        require_no_defect(plain_node, pod_ns, verb, [Limits("threads", group=group)])


@pytest.mark.etcd
@pytest.mark.parametrize("verb", VERBS_FIRST)
def test_a_call_on_etcd_without_threads(etcd_node: EtcdNode, pod_ns: Namespace, verb: str) -> None:
    """gRPC may end the process, but not after something was done."""
    with without_threads() as group:
        limits = [Limits("threads", group=group), Limits("memory", 160), Limits("descriptors", 4096)]
        require_no_defect(etcd_node, pod_ns, verb, limits)


@pytest.mark.kubernetes
@pytest.mark.slow
@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_call_on_kubernetes_that_is_short(pods_node: KubeNode, pod_ns: Namespace, verb: str) -> None:
    with without_threads() as group:
        limits = [Limits("threads", group=group), *(Limits("memory", size) for size in (60, 110, 130))]
        limits += [Limits("descriptors", n) for n in (*FEW_DESCRIPTORS, 64)]
        require_no_defect(pods_node, pod_ns, verb, limits)


@pytest.mark.parametrize("verb", VERBS_FIRST)
def test_a_call_with_few_descriptors(plain_node: Node, pod_ns: Namespace, verb: str) -> None:
    require_no_defect(plain_node, pod_ns, verb, [Limits("descriptors", n) for n in (*FEW_DESCRIPTORS, 64)])


@contextmanager
def short(process: subprocess.Popen[bytes], what: str) -> Iterator[None]:
    """The server has as much as it uses now, and no more."""
    if what == "memory":
        pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[0])
        limit = f"--as={pages * os.sysconf('SC_PAGESIZE')}:unlimited"
        subprocess.run(["prlimit", f"--pid={process.pid}", limit], check=True)
        yield
        subprocess.run(["prlimit", f"--pid={process.pid}", "--as=unlimited:unlimited"], capture_output=True)
        return
    with without_threads() as group:
        (group / "pids.max").write_text("max")
        (group / "cgroup.procs").write_text(str(process.pid))
        (group / "pids.max").write_text((group / "pids.current").read_text())
        yield


@pytest.mark.parametrize("what", ["memory", "threads"])
@pytest.mark.parametrize("verb", VERBS_FIRST)
@pytest.mark.parametrize("store", STORES)
def test_a_server_that_is_short_loses_no_call(
    request: pytest.FixtureRequest, pod_ns: Namespace, store: str, verb: str, what: str
) -> None:
    """In its first calls, and once everything is warm; one that was refused memory ends, and callers go on."""
    node: Node = request.getfixturevalue(store)
    for warm in (False, True):
        with ExitStack() as held:
            process = held.enter_context(node.server())
            if warm:
                assert call(node, "ADD", "c2", pod_ns.path).ok
                assert call(node, "DEL", "c2", pod_ns.path).ok
            before = node.call("ADD", "c1", pod_ns.path).document if verb != "ADD" else {}
            with short(process, what):
                named = verb in ("ADD", "DEL", "CHECK")
                path, container = (pod_ns.path, "c1") if named else ("", "")
                reply = call(node, verb, container, path, **given(verb, before))
            assert reply.ok, (warm, reply)
            assert (pod_ns.link("eth0") is None) is (verb == "DEL")
            require_deleted(node, pod_ns)
        assert "Traceback" not in (node.root / "server.log").read_text()
    assert PIDS.exists() or what != "threads"
