"""The frozen calico-node as a host has it: what its probes cost, and what its pages say, while everything runs.

A probe may take 150 ms, its process start included. On a machine that is busy with other things the clock tells how
busy it is; so a probe's own CPU time counts too, and of several tries the best.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cni_calico.nodeagent.status.file import STALE_S
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.namespaces import namespace
from tests.netns.nodes import Node, Pod
from tests.netns.startups import add_card

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.bird]

BUDGET_S = 0.150
ALL = ("-felix-live", "-felix-ready", "-bird-live", "-bird-ready")


@pytest.fixture(scope="module")
def frozen_node(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("frozen")
    with namespace("frozen") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        made = Node(ns, "n1", directory / "n1", Store(directory / "store.db"), bin_dir=bundle)
        made.more = {"CALICO_NETWORKING_BACKEND": "bird", "CALICO_IPV4POOL_VXLAN": "Never"}
        try:
            made.run().until_ready()
            until(lambda: made.calico_node(*ALL, check=False).returncode == 0, "BIRD is ready", 60)
            yield made
        finally:
            made.end()


def fetch(node: Node, port: int, path: str) -> str:
    """A page, asked for inside the node's namespace."""
    return node.ns.call(_fetch, f"http://127.0.0.1:{port}/{path}")


def _fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.read().decode()


def cost(node: Node, *flags: str) -> tuple[float, float, int]:
    """(seconds by the clock, seconds of CPU, exit status) of one probe, as the kubelet executes it."""
    assert node.bin_dir is not None
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run([node.bin_dir / "calico-node", *flags], env=node.environ(), capture_output=True)
    seconds, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


@pytest.mark.parametrize(
    "flags", [ALL, ("-felix-live",), ("-felix-ready",), ("-bird-ready",)], ids=lambda f: " ".join(f)
)
def test_probes_are_quick(frozen_node: Node, flags: tuple[str, ...]) -> None:
    tries = [cost(frozen_node, *flags) for _ in range(10)]
    assert {code for _, _, code in tries} == {0}
    assert min(seconds for seconds, _, _ in tries) < BUDGET_S
    assert sorted(cpu for _, cpu, _ in tries)[len(tries) // 2] < BUDGET_S


def test_a_probe_that_fails_is_as_quick(frozen_node: Node) -> None:
    """Nobody there to answer: that is when probes count."""
    there = {**os.environ, "CALICO_RUN_DIR": "/nonexistent"}
    assert frozen_node.bin_dir is not None
    argv = [frozen_node.bin_dir / "calico-node", *ALL]
    tries = []
    for _ in range(10):
        begun = time.monotonic()
        done = subprocess.run(argv, env=there, capture_output=True, text=True)
        tries.append(time.monotonic() - begun)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 4
    assert min(tries) < BUDGET_S


def test_metrics_and_status_of_the_frozen_node(frozen_node: Node) -> None:
    with namespace("pod") as pod_ns:
        pod = frozen_node.add(Pod(pod_ns, "c1"))
        frozen_node.cni("DEL", pod)
    samples = (
        'calico_cni_requests_total{verb="ADD",result="ok"} 1',
        'calico_cni_requests_total{verb="DEL",result="ok"} 1',
        'calico_cni_request_seconds_bucket{verb="ADD"',
        "calico_ipam_batches_total{",
        "calico_datastore_writes_total{",
        'calico_ipam_node_addresses_free{pool="default-ipv4-ippool"} 64.0',  # once the agent has seen the block
        "calico_agent_pass_seconds_count",
        "calico_bird_restarts 0.0",
        "calico_cni_pending_dels 0.0",
        "calico_datastore_in_sync 1.0",
    )

    def is_shown(sample: str) -> bool:
        return sample in fetch(frozen_node, 9091, "metrics")

    for sample in samples:
        until(partial(is_shown, sample), sample, 30)
    shown = frozen_node.calico_node("-show-status").stdout
    assert "agent:      ready" in shown
    for path in ("liveness", "readiness"):
        assert fetch(frozen_node, 9099, path) == "ok\n"


def test_an_agent_that_hangs_is_noticed(frozen_node: Node) -> None:
    """Its file gets old: made old here, because a minute is long."""
    path = frozen_node.root / "run" / "agent-status.json"
    fields = json.loads(path.read_text())
    agent = int(fields["pid"])
    os.kill(agent, signal.SIGSTOP)  # it is there and does nothing
    try:
        path.write_text(json.dumps({**fields, "updated": fields["updated"] - STALE_S - 1}))
        done = frozen_node.calico_node("-felix-live", check=False)
        assert done.returncode == 1 and "sign of life" in done.stderr
    finally:
        os.kill(agent, signal.SIGCONT)
    until(lambda: frozen_node.calico_node("-felix-live", check=False).returncode == 0, "it goes on", 30)
