"""What containers leave whose end no DEL has told: real links, namespaces and records, and a reboot that is feigned by
removing what it removes, and by another boot ID in the records.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.connect import open_datastore
from cni_calico.deadline import Deadline
from cni_calico.kernel.container_traces import find_place, find_trace
from cni_calico.log import Log
from cni_calico.model.keys import CONTROLLERS_DEFAULT, ResourceList, etcd_path
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.runtimes.attachments import Attachments, HostTraces, _interface_names
from cni_calico.plugin.identity.boot import BOOT, read_boot_id
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.host import Node, added, addresses
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

FIRST, SECOND, THIRD = ("c0ffee" + 58 * "0", "ab" * 32, "cd" * 32)
GRACE_S = 900.0


class Agent:
    """Looks at a node; ``root`` has what its runtimes keep."""

    def __init__(self, node: Node, root: Path) -> None:
        self.node, self.root = node, root
        (root / "run").mkdir(parents=True)
        (root / "run" / "netns").symlink_to("/run/netns")
        (root / "var/lib/cni/results").mkdir(parents=True)
        self._state: dict[str, Any] = {}

    def keep(self, container: str) -> None:
        (self.root / "var/lib/cni/results" / f"calnet-{container}-eth0").write_text("{}")

    def look(self, *times: float) -> str:
        """Look at these times in one life of the agent, in the host's namespace; what it logs."""
        return str(self.node.host.call(self._look, times))

    def _look(self, times: tuple[float, ...]) -> str:
        node, now = self.node, [0.0]
        log = node.root / "agent.log"
        log.unlink(missing_ok=True)
        directories = {"CALICO_RUN_DIR": str(node.root / "run"), "CALICO_STATE_DIR": str(node.root / "state")}
        store = open_datastore(node.datastore)
        context = Context(parse_settings(directories), store, Log("info", str(log), stderr=False), lambda _: True)
        context.config = node.datastore
        root = str(self.root)

        def trace(record: WorkloadEndpoint) -> str:
            found = (
                find_trace(record.container_id, net.network_address, Deadline.after(10), root)
                for net in record.ip_networks
            )
            return next(filter(None, found), "")

        traces = HostTraces(read_boot_id(), _interface_names, lambda container: find_place(container, root), trace)
        attachments = Attachments(context, node.nodename, lambda: now[0], traces)
        for now[0] in times:
            attachments.look()
        store.close()
        return log.read_text() if log.exists() else ""


@pytest.fixture
def departed(plain_node: Node, tmp_path: Path) -> Agent:
    return Agent(plain_node, tmp_path / "host")


def reboot(node: Node) -> None:
    for link in node.host.ip("link", "show"):
        if link["ifname"].startswith("cali"):
            node.host.run("ip", "link", "del", link["ifname"])
    stored = node.records(ResourceList("WorkloadEndpoint"))
    for document in stored.values():
        document["metadata"]["annotations"][BOOT] = "00000000-0000-0000-0000-000000000000"
    node.put(stored)


def containers(node: Node) -> set[str]:
    return {endpoint["spec"]["containerID"] for endpoint in node.endpoints()}


@pytest.fixture
def new_pod() -> Any:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(namespace(name))


def test_after_a_reboot(departed: Agent, new_pod: Callable[[str], Namespace]) -> None:
    node = departed.node
    for container in (FIRST, SECOND, THIRD):
        added(node, container, new_pod(container[:3]), args="K8S_POD_NAME=web")
    kept = addresses(added(node, THIRD, new_pod("again-0")))
    reboot(node)
    departed.keep(SECOND)  # stopped, but not removed
    assert addresses(added(node, THIRD, new_pod("again-1"))) == kept  # as podman's restart policy does
    assert departed.look(0.0, 59.0) == ""
    assert containers(node) == {FIRST, SECOND, THIRD}
    said = departed.look(0.0, 61.0, GRACE_S - 1)
    assert containers(node) == {SECOND, THIRD} and f"of web (container {FIRST[:12]})" in said, said
    assert "before this host's last boot, and no runtime has its container" in said
    said = departed.look(0.0, GRACE_S)
    assert containers(node) == {THIRD} and f"calnet-{SECOND}-eth0 still names its container" in said
    assert set(node.taken()) == {address.partition("/")[0] for address in kept}
    reply = node.call("DEL", THIRD, "")
    assert reply.ok and not node.leftovers()


CHECK = """
mount -t tmpfs none /var/lib && mkdir -p /var/lib/cni/results
exec "$0" -m cni_calico.ctl.main ipam check
"""


def test_ipam_check_lists_them_before(departed: Agent, new_pod: Callable[[str], Namespace]) -> None:
    """In mounts of its own: what is no runtime's state here is none there either."""
    node = departed.node
    added(node, FIRST, new_pod("first"), args="K8S_POD_NAME=web")
    added(node, SECOND, new_pod("second"))
    reboot(node)
    assert addresses(added(node, SECOND, new_pod("second-1")))
    (node.root / "state").mkdir(exist_ok=True)
    (node.root / "state" / "nodename").write_text(f"{node.nodename}\n")
    environ = {
        "PATH": os.environ["PATH"],
        "CALICO_STATE_DIR": str(node.root / "state"),
        "DATASTORE_TYPE": "local",
        "DATASTORE_PATH": node.datastore.path,
    }
    apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", CHECK, sys.executable]
    argv = ["nsenter", f"--net={node.host.path}", *apart]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
    said = done.stdout[done.stdout.index(f"Scanning node {node.nodename}") :]
    assert "Found 1 of 2" in said and f"of web (container {FIRST[:12]}): it was made before" in said
    assert SECOND[:12] not in said
    assert said.endswith("Check complete; found 0 problems, and 1 to be released.\n")


def test_in_one_boot_only_what_shows_no_trace(departed: Agent, new_pod: Callable[[str], Namespace]) -> None:
    node = departed.node
    added(node, FIRST, new_pod("first"))
    with namespace("second") as second:
        added(node, SECOND, second)
        for link in node.host.ip("link", "show"):
            if link["ifname"].startswith("cali") and SECOND[:11] in link["ifname"]:
                node.host.run("ip", "link", "del", link["ifname"])
        departed.keep(SECOND)
        assert departed.look(0.0, GRACE_S + 1) == ""
        (departed.root / "var/lib/cni/results" / f"calnet-{SECOND}-eth0").unlink()
        assert departed.look(0.0, GRACE_S - 1) == ""
        # a test beside this one may have a namespace with the same address for a while, which is a trace
        said = until(lambda: departed.look(0.0, GRACE_S + 1), "it is released", 120)
    assert containers(node) == {FIRST} and "shows no trace of container or address" in said


def test_where_nothing_is_to_be_released(departed: Agent, new_pod: Callable[[str], Namespace]) -> None:
    node = departed.node
    added(node, FIRST, new_pod("first"))
    reboot(node)
    stored = next(iter(node.records(ResourceList("WorkloadEndpoint")).values()))
    switched_off = {"controllers": {"node": {"leakGracePeriod": "0s"}}}
    node.apply("KubeControllersConfiguration", "default", switched_off)
    assert departed.look(0.0, 10 * GRACE_S) == "" and containers(node) == {FIRST}
    node.put({etcd_path(CONTROLLERS_DEFAULT): None})
    node.apply("ClusterInformation", "default", {"datastoreReady": False})
    assert departed.look(0.0, 10 * GRACE_S) == "" and containers(node) == {FIRST}
    node.apply_cluster()
    node.nodename, here = "node2", node.nodename  # another node's agent leaves it alone
    assert departed.look(0.0, 10 * GRACE_S) == "" and containers(node) == {FIRST}
    node.nodename = here
    assert stored["spec"]["node"] == here
    assert "released" in departed.look(0.0, GRACE_S) and not node.leftovers()
