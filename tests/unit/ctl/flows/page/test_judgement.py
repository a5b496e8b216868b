"""What would be decided now: the answer of ``policy explain``, or why there is none."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.flows.page.judgement import judge_now
from tests.unit.ctl.conftest import Calicoctl, stored

POLICY = {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow", "protocol": "TCP"}]}


def pod(name: str, ip: str) -> dict[str, Any]:
    found = {"orchestrator": "k8s", "node": "n1", "endpoint": "eth0", "pod": name, "interfaceName": f"cali{name}"}
    found |= {"containerID": f"c-{name}", "ipNetworks": [f"{ip}/32"], "profiles": ["open"]}
    return stored("WorkloadEndpoint", f"n1-k8s-{name}-eth0", found, namespace="shop")


@pytest.fixture
def judging(calicoctl: Calicoctl) -> Namespace:
    profile = stored("Profile", "open", {"egress": [{"action": "Allow"}]})
    policy = stored("NetworkPolicy", "default.db", POLICY, namespace="shop")
    calicoctl.write(pod("web", "10.0.0.1") | pod("db", "10.0.0.2") | profile | policy)
    arguments = parse_arguments(["-c", str(calicoctl.config), "flows", "--web"])
    arguments.prog = "calicoctl"
    return arguments


def test_both_sides_and_the_rule(judging: Namespace) -> None:
    asked = {"from": "shop/web", "to": "shop/db", "protocol": "tcp", "port": "5432"}
    found = judge_now(judging, {}, asked)
    assert found["allowed"] and [one["direction"] for one in found["ends"]] == ["egress", "ingress"]
    assert "by rule 1 of NetworkPolicy shop/default.db" in found["ends"][1]["why"][0]
    assert json.loads(found["ends"][1]["why"][1]) == {"action": "Allow", "protocol": "TCP"}
    found = judge_now(judging, {}, {**asked, "protocol": "udp"})
    assert not found["allowed"] and "DENIED at the end of tier default" in found["ends"][1]["why"][0]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"from": "shop/web", "to": "shop/none", "port": "1"}, "there is no workload shop/none"),
        ({"from": "shop/web", "to": "shop/db", "port": "x"}, "--port"),
        ({"from": "shop/web", "to": "shop/db", "protocol": "--with=x"}, "--protocol"),
        ({"to": "shop/db"}, "--from"),
        ({"from": "\0", "to": "shop/db"}, "is not text"),
    ],
)
def test_what_cannot_be_answered(judging: Namespace, asked: dict[str, str], says: str) -> None:
    assert says in judge_now(judging, {}, asked)["error"]


def test_without_a_datastore(judging: Namespace, tmp_path: Path) -> None:
    judging.config = str(tmp_path / "none.cfg")
    found = judge_now(judging, {}, {"from": "shop/web", "to": "shop/db", "port": "1"})
    assert found.keys() == {"error"} and "none.cfg" in found["error"]
