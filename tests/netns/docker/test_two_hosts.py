"""Docker on two hosts with one etcd and VXLAN between them: policies select containers wherever they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.netns.docker.machine import BareHost, Machine, running
from tests.netns.docker.test_driver import LISTEN, answers
from tests.netns.node_cluster import Cluster
from tests.netns.nodes import Node
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.docker, pytest.mark.etcd, pytest.mark.slow]

POLICY = """
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {name: db, namespace: libnetwork}
spec:
  selector: cni-calico.io/container == 'db'
  types: [Ingress]
  ingress:
  - action: Allow
    source: {selector: cni-calico.io/container == 'web'}
"""


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


def test_policies(docker_hosts: tuple[Node, Machine, Machine]) -> None:
    node, first, other = docker_hosts
    for machine in (first, other):
        machine.network("shop")
    address = first.run("db", "shop", command=LISTEN)
    for name in ("web", "stranger"):
        other.run(name, "shop")
    until(lambda: answers(other, "stranger", address), "through the tunnel, without a policy")
    (node.root / "policy.yaml").write_text(POLICY)
    node.calicoctl("apply", "-f", f"{node.root}/policy.yaml")
    until(lambda: not answers(other, "stranger", address), "denied")
    assert answers(other, "web", address), "allowed"
    for machine, names in ((first, ("db",)), (other, ("web", "stranger"))):
        machine.docker("rm", "-f", *names)
    assert "db" not in node.calicoctl("get", "wep", "-n", "libnetwork").stdout
