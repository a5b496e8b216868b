"""``calicoctl policy explain`` about ports that the real portmap has published: it says what a connection finds."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.kernel import netns
from cni_calico.model.resources import Metadata, Resource
from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.bird.cluster import make_lab
from tests.netns.namespaces import Namespace
from tests.netns.nodes import Node, Pod

pytestmark = [pytest.mark.netns, pytest.mark.cnitool]

HOST, CLIENT = "10.0.0.1", "10.0.0.9"
PORTMAP = LAB_CACHE / "cni" / "bin" / "portmap"


@pytest.fixture
def published(tmp_path: Path) -> Iterator[tuple[Node, Pod, Namespace]]:
    """A host whose port 8080 is a container's port 80, and a client beside it."""
    with make_lab(tmp_path) as lab:
        host, client, inside = (lab.namespace(name) for name in ("n1", "client", "web"))
        lab.plug(host, "eth0", "0", f"{HOST}/24")
        lab.plug(client, "eth0", "0", f"{CLIENT}/24")
        node = Node(host, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        node.root.mkdir()
        try:
            node.run().until_ready()
            yield node, node.add(Pod(inside, "c" * 64)), client
        finally:
            node.end()


def publish(node: Node, pod: Pod, backend: str) -> None:
    conf = {
        "cniVersion": "1.0.0",
        "name": "calnet",
        "type": "portmap",
        "backend": backend,
        "snat": True,
        "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]},
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "eth0", "sandbox": pod.ns.path}],
            "ips": [{"address": f"{pod.addresses[0]}/32", "interface": 0}],
        },
    }
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": pod.container, "CNI_NETNS": pod.ns.path, "CNI_IFNAME": "eth0"}
    subprocess.run(
        ["nsenter", f"--net={node.ns.path}", str(PORTMAP)],
        input=json.dumps(conf),
        env={"PATH": os.environ["PATH"], "CNI_PATH": str(PORTMAP.parent), **environ},
        capture_output=True,
        text=True,
        check=True,
    )


@contextmanager
def serving(ns: Namespace, port: int) -> Iterator[None]:
    """Something answers at the port."""
    fd = netns.open_netns(ns.path)
    with netns.inside(fd):
        listener = socket.create_server(("", port))
    os.close(fd)

    def answer() -> None:
        while True:
            try:
                listener.accept()[0].close()
            except OSError:
                return

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def connects(client: Namespace) -> bool:
    """A new connection; one that is dropped is given up after a second."""
    try:
        client.call(_connect)
    except OSError:
        return False
    return True


def _connect() -> None:
    socket.create_connection((HOST, 8080), 1).close()


def policy(node: Node, *ports: int) -> None:
    rule: dict[str, Any] = {"action": "Allow", "protocol": "TCP", "destination": {"ports": list(ports)}}
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": [rule]}
    node.store.put(Resource("GlobalNetworkPolicy", Metadata("web"), spec))


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_a_published_port(published: tuple[Node, Pod, Namespace], backend: str) -> None:
    node, pod, client = published
    ask = ("policy", "explain", "--from", CLIENT, "--to", f"{HOST}:8080")
    before = node.calicoctl(*ask).stdout
    assert "nothing translates 10.0.0.1:8080" in before
    publish(node, pod, backend)
    with serving(pod.ns, 80):
        for ports, reached in (((8080,), False), ((80, 443), True), ((443,), False)):
            policy(node, *ports)  # the host's port is none of the container's
            until(lambda r=reached: connects(client) == r, f"the policy for {ports} is in force", 60)
            said = node.calicoctl(*ask).stdout
            assert f"Judged from this host's rules ({backend}" in said
            assert f"{HOST}:8080 becomes {pod.addresses[0]} port 80." in said
            assert "Judged from the stored policies, which are in force on this host." in said
            assert f"The connection is {'allowed' if reached else 'DENIED'}." in said, said
    shown = json.loads(node.calicoctl(*ask, "-o", "json").stdout)
    assert (shown["allowed"], shown["to"], shown["published"]) == (False, pod.addresses[0], f"{HOST}:8080")
    by_name = node.calicoctl("policy", "explain", "--from", CLIENT, "--to", "n1:8080").stdout
    assert "becomes" in by_name
    elsewhere = node.calicoctl("policy", "explain", "--from", CLIENT, "--to", "10.0.0.7:8080").stdout
    assert "Judged from the records alone: 10.0.0.7 is no address of this host" in elsewhere
    node.stop()
    without = node.calicoctl(*ask).stdout
    assert "Judged from the stored policies; this host still has the rules of before: the agent has ended" in without
    assert not connects(client), "they are"
