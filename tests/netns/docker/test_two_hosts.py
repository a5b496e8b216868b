"""Docker on two hosts with one etcd and VXLAN between them, by docs/docker.md: policies select containers wherever they
are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.netns.docker.machine import IMAGE, BareHost, Machine, running
from tests.netns.docker.test_page import commands
from tests.netns.node_cluster import Cluster
from tests.netns.nodes import Node
from tests.pages import blocks
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.docker, pytest.mark.etcd, pytest.mark.slow]

ADDRESS = "10.65.0.7"  # the page's, of db


def page(heading: str) -> list[tuple[str, str]]:
    """The commands below a heading, and what comes out."""
    return [each for block in blocks("docker.md", heading) for each in commands(block)]


def docker_on(node: Node, root: Path) -> Machine:
    root.mkdir()  # names are short, because containerd's socket is below
    machine = Machine(root, BareHost(node.ns))
    directories = ("CALICO_RUN_DIR", "CALICO_STATE_DIR", "CALICO_NODENAME_FILE")
    kept, environ = ("DATASTORE_TYPE", "ETCD_ENDPOINTS", "NODENAME", *directories), node.environ()
    machine.driver_environ = {name: environ[name] for name in kept if name in environ}
    return machine


@pytest.fixture
def docker_hosts(tmp_path: Path) -> Iterator[tuple[Node, Machine, Machine]]:
    with make_lab(tmp_path) as lab, ExitStack() as stack:
        made = Cluster(lab, tmp_path, ipv6=False, environ={"IP6": "none"}, bin_dir=None, tries=1)
        made.store.put(pool("10.65.0.0/16", "Always"))
        nodes = [made.start("n1", "0", 1), made.start("n3", "1", 3)]
        for node in nodes:
            node.until_ready()
        first, other = (docker_on(node, tmp_path / f"d-{node.name}") for node in nodes)
        for machine in (first, other):
            stack.enter_context(running(machine))
        yield nodes[0], first, other


def test_the_page(docker_hosts: tuple[Node, Machine, Machine]) -> None:
    """calico-node, which ``calicoctl node init`` starts there, runs already."""
    node, first, other = docker_hosts
    for machine in (first, other):
        machine.docker("tag", IMAGE, "alpine")
        (create,) = (command for command, _ in page("Several hosts") if command.startswith("docker network create"))
        machine.in_machine("sh", "-c", create)
    (start,) = (command for command, _ in page("One host") if "--name db" in command)
    first.in_machine("sh", "-c", start)
    rows = [(command, comment) for command, comment in page("Several hosts") if ADDRESS in command]
    assert [comment.partition(":")[0] for _, comment in rows] == ["nothing", "hello"]

    def heard(command: str) -> str:
        there = command.replace(ADDRESS, first.address("db", "shop"))
        return other.in_machine("sh", "-c", there, check=False).stdout

    until(lambda: all(heard(command) == "hello\n" for command, _ in rows), "through the tunnel, without a policy")
    (policy,) = (command for command, _ in page("One host") if command.startswith("calicoctl apply"))
    (node.root / "policy.yaml").write_text(policy.partition("<<'END'\n")[2].removesuffix("END"))
    node.calicoctl("apply", "-f", f"{node.root}/policy.yaml")
    until(lambda: heard(rows[0][0]) == "", "denied")
    assert heard(rows[1][0]) == "hello\n", "allowed"
    first.docker("rm", "-f", "db")
    until(lambda: "db" not in node.calicoctl("get", "wep", "-n", "libnetwork").stdout, "its record is gone")
