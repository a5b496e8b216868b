"""The agent with another data plane's driver: it is told what is to be in force, and the kernel is left alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.fakes.driven import NAME, AskedDriver, write_driver
from tests.netns.nodes import Node
from tests.unit.nodeagent.fabric import node as fabric_node
from tests.unit.nodeagent.fabric import pool, workload

pytestmark = pytest.mark.netns

DRIVEN = {"FELIX_USEINTERNALDATAPLANEDRIVER": "false", "FELIX_DATAPLANEDRIVER": NAME}
WEB = "k8s default/web eth0"
PACKET = {"source": "10.9.0.1", "destination": "10.65.0.2", "protocol": 6, "sport": 4000}


def policy(*ports: int) -> Resource:
    rule = {"action": "Allow", "protocol": "TCP", "destination": {"ports": list(ports)}}
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": [{**rule, "source": {"nets": ["10.9.0.0/16"]}}]}
    return Resource("GlobalNetworkPolicy", Metadata("p"), spec)


def felix(**spec: object) -> Resource:
    return Resource("FelixConfiguration", Metadata("default"), dict(spec))


@pytest.fixture
def driven_node(agent_node: Node, tmp_path: Path) -> Iterator[Node]:
    agent_node.more = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    agent_node.store.put(pool("10.65.0.0/16", vxlan="Always"))
    agent_node.store.put(policy(80))
    agent_node.store.put(replace(workload("web", "caliweb", "10.65.0.2/32"), pod="web"))
    agent_node.calico_node("-startup")
    yield agent_node


def allowed(driver: AskedDriver, *ports: int) -> list[bool]:
    asks = [["workload", WEB, "own", "ingress", {**PACKET, "dport": port}] for port in ports]
    found: list[bool] = driver.ask(judge=asks)
    return found


def tables(node: Node) -> str:
    return node.ns.run("nft", "list", "tables").stdout


def test_a_driver_has_what_is_to_be_in_force(driven_node: Node, tmp_path: Path) -> None:
    """What is in force, what changes, and what it says itself."""
    node, answers = driven_node, write_driver(tmp_path)
    node.more |= DRIVEN
    node.store.put(felix(interfacePrefix="cali,tap"))
    node.store.put(pool("10.66.0.0/16"))  # without a tunnel: BIRD would make the routes, and the agent not read blocks
    node.store.put(fabric_node("n2", "10.0.0.2/24", vtep="10.65.9.0"))
    node.store.put_block("10.66.2.0/26", "n2")
    node.store.put(Resource("BGPConfiguration", Metadata("default"), {"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}))
    node.run("-felix").until_ready()
    driver = AskedDriver(answers)
    state = driver.ask(state=1)
    assert state["first"] == "config_update" and not state["wrong"] and state["others"][-1] == "in_sync"
    assert state["config"].items() >= {"InterfacePrefix": "cali,tap", "UseInternalDataplaneDriver": "false"}.items()
    assert {"ipam_pool_update", "host_metadata_v4v6_update", "encapsulation"} <= set(state["others"])
    assert state["workloads"] == [WEB] and allowed(driver, 80, 443) == [True, False]
    cluster = state["cluster"]
    assert (
        cluster["route"]["10.66.2.0/26"].items() >= {"dstNodeName": "n2", "dstNodeIp": "10.0.0.2", "types": 1}.items()
    )
    assert cluster["vtep"]["n2"]["ipv4Addr"] == "10.65.9.0"
    assert cluster["bgp"] == {"serviceClusterCidrs": ["10.96.0.0/12"]}
    assert driver.ask(ways=["10.66.2.7", "10.65.0.2", "10.67.0.1"]) == [["eth0", "10.0.0.2"], [], None]
    node.store.put_block("10.66.3.0/26", "n2")
    until(lambda: driver.ask(ways=["10.66.3.7"]) == [["eth0", "10.0.0.2"]], "another block has come")
    assert node.status()["policing"]["sentence"] == (
        f"1 policies are in force for 1 workloads (by the data plane driver {NAME})"
    )
    node.store.put(policy(443))
    until(lambda: allowed(driver, 80, 443) == [False, True], "the policy has changed")
    node.store.put(felix(interfacePrefix="cali"))
    until(lambda: driver.ask(state=1)["config"].get("InterfacePrefix") == "cali", "a parameter has changed")
    files = node.root / "run/endpoint-status"
    assert not files.is_dir() or not list(files.iterdir())
    driver.ask(say=[WEB, "up"])
    until(lambda: files.is_dir() and list(files.iterdir()), "ADD may go on")
    driver.ask(say=[WEB, "error"])
    until(lambda: node.status()["policing"]["problems"], "it is told")
    assert node.status()["policing"]["problems"] == ["workload default/web: the data plane driver reports an error"]
    assert not list(files.iterdir())
    assert tables(node) == "" and "vxlan.calico" not in node.ns.run("ip", "-br", "link").stdout
    assert node.stop()[0] == 0
    assert not Path(f"/proc/{state['pid']}").exists()  # it has ended with the agent
    driver.close()


def test_a_resource_chooses_the_data_plane(driven_node: Node, tmp_path: Path) -> None:
    """Without a restart, there and back."""
    node = driven_node
    node.store.put(felix(dataplaneDriver=NAME))
    node.run("-felix").until_applied()
    until(lambda: "calico-policy" in tables(node), "policy is in force")
    answers = write_driver(tmp_path)
    node.store.put(felix(dataplaneDriver=NAME, useInternalDataplaneDriver=False))
    driver = AskedDriver(answers)
    until(lambda: driver.ask(state=1)["workloads"] == [WEB], "the driver knows")
    driver.close()
    node.store.put(felix(dataplaneDriver=NAME))
    until(lambda: node.status()["policing"]["by"] == "nftables", "the kernel filters again")
    node.until_applied()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", f"the data plane driver {NAME} has ended with status 3"),
        (r"printf 'GET / HTTP/1.1\r\n' >&4; cat <&3 >/dev/null", "says what cannot be understood: a message of "),
        (None, f"cannot start the data plane driver {NAME}: no directory of PATH has it"),
    ],
)
def test_a_driver_that_fails_ends_the_agent(driven_node: Node, tmp_path: Path, script: str | None, why: str) -> None:
    node = driven_node
    node.more |= DRIVEN
    if script is not None:
        write_driver(tmp_path, script)
    node.run("-felix")
    assert node.process is not None and node.process.wait(90) == 1
    assert why in node.log()
    assert tables(node) == ""
