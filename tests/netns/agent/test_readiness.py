"""``calico-node run`` as a unit of Type=notify: when systemd is told that it is ready, and what."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.netns.nodes import Node

pytestmark = pytest.mark.netns

DENY = {
    "kind": "GlobalNetworkPolicy",
    "apiVersion": "projectcalico.org/v3",
    "metadata": {"name": "deny", "uid": "d"},
    "spec": {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Deny"}]},
}


@dataclass
class Systemd:
    """The socket that it gives to a unit."""

    told: socket.socket
    path: Path

    def next(self) -> list[str]:
        return self.told.recv(4096).decode().splitlines()


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[Systemd]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
        told.bind(str(tmp_path / "notify"))
        told.settimeout(90)
        yield Systemd(told, tmp_path / "notify")


def starts(node: Node, systemd: Systemd, **environ: str) -> list[str]:
    """What systemd is told first."""
    node.more = {"NOTIFY_SOCKET": str(systemd.path), **environ}
    node.run()
    return systemd.next()


def test_ready_is_when_policies_are_in_force(agent_node: Node, systemd: Systemd) -> None:
    agent_node.store.write(Write.put(ResourceKey("GlobalNetworkPolicy", "deny"), DENY))
    ready, status = starts(agent_node, systemd)
    assert ready == "READY=1" and "policies are in force for 0 workloads" in status
    assert "to-workloads" in agent_node.ns.run("nft", "list", "table", "ip", "calico-policy").stdout
    assert "the unit is ready after" in agent_node.log()
    agent_node.end()
    systemd.told.setblocking(False)
    with pytest.raises(BlockingIOError):  # nobody else speaks: the CNI server, which is of Type=notify by itself
        systemd.next()


def test_ready_is_when_no_policy_is_due(agent_node: Node, systemd: Systemd) -> None:
    assert starts(agent_node, systemd)[1].startswith("STATUS=no policy is enforced on this node: there is no policy")


def test_a_datastore_that_may_be_a_container_of_this_host_is_not_waited_for(agent_node: Node, systemd: Systemd) -> None:
    """Nobody listens there; the name of a pod's etcd could not even be resolved."""
    etcd = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": "http://127.0.0.1:1", "WAIT_FOR_DATASTORE": "true"}
    ready, status = starts(agent_node, systemd, **etcd)
    assert ready == "READY=1"
    assert status.startswith(
        "STATUS=not decided what workloads may do: the datastore has not answered: waiting for the"
    )
