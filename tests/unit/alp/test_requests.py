"""Two hundred requests, each by the engine's own messages for the policy concerned."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico.alp.asked import ALLOWED, AskedPeer, AskedRequest, encode_check, parse_check
from cni_calico.alp.synced import SyncedPolicies
from tests.unit.alp.table import ACCOUNTS, ADDRESSES, CASES, NAMESPACES, PROFILE, Case
from tests.unit.alp.told import told, wanted_of
from tests.unit.policy.cluster import NODE, document

WEB = "10.0.0.1"


def read_request(line: str) -> AskedRequest:
    method, path, *rest = ["" if word == "-" else word for word in line.split()]
    udp = "udp" in rest
    words = [word for word in rest if word != "udp"]
    said = dict(zip(words[::2], words[1::2], strict=True))
    assert said.keys() <= {"from", "as", "to"}
    principal = said.get("as", "")
    if principal.count("/") == 1 and ":" not in principal:
        namespace, account = principal.split("/")
        principal = f"spiffe://cluster.local/ns/{namespace}/sa/{account}"
    address = ip_address({"web": WEB, **ADDRESSES}[said.get("from", "cart")])
    web = ip_address("fd00::1" if said.get("from") == "cart6" else WEB)
    return AskedRequest(
        AskedPeer(address, 40000, principal),
        AskedPeer(web, int(said.get("to", "80"))),
        17 if udp else 6,
        method,
        path,
    )


def pod(namespace: str, name: str, account: str, addresses: list[str], node: str) -> Any:
    spec = {
        "orchestrator": "k8s",
        "node": node,
        "pod": name,
        "endpoint": "eth0",
        "interfaceName": f"cali{name}",
        "ipNetworks": [f"{text}/{128 if ':' in text else 32}" for text in addresses],
        "profiles": [f"kns.{namespace}", f"ksa.{namespace}.{account}"],
        "serviceAccountName": account,
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
    }
    return document(spec, {"app": name})


def world(case: Case) -> dict[tuple[str, str, str], Any]:
    (kind, namespace), rules, _, _ = case
    open_to_all = {"ingress": [{"action": "Allow"}], "egress": []}
    documents = {
        ("WorkloadEndpoint", "shop", "web"): pod("shop", "web", "plain", [WEB, "fd00::1"], NODE),
        ("WorkloadEndpoint", "shop", "cart"): pod("shop", "cart", "cart", ["10.0.0.2", "fd00::2"], "there"),
        ("WorkloadEndpoint", "stock", "count"): pod("stock", "count", "count", ["10.0.0.3"], "there"),
        ("GlobalNetworkSet", "", "partners"): document({"nets": ["192.0.2.0/24"]}, {"role": "partner"}),
    }
    for name, labels in NAMESPACES.items():
        its = {f"pcns.{key}": value for key, value in labels.items()}
        documents["Profile", "", f"kns.{name}"] = document({**open_to_all, "labelsToApply": its})
    for name, labels in ACCOUNTS.items():
        its = {f"pcsa.{key}": value for key, value in labels.items()}
        documents["Profile", "", f"ksa.{name}"] = document({"ingress": [], "egress": [], "labelsToApply": its})
    if (kind, namespace) == PROFILE:
        documents["Profile", "", "kns.shop"] = document({"ingress": rules, "egress": [], "labelsToApply": {}})
    else:
        spec = {"selector": "app == 'web'", "types": ["Ingress"], "ingress": rules, "tier": "default"}
        documents[kind, namespace, "p"] = document(spec)
    return documents


def checker(name: str) -> SyncedPolicies:
    documents = world(CASES[name])
    wanted = wanted_of(documents)
    (key,) = wanted.endpoints
    return told(wanted, key, documents)


@pytest.mark.parametrize("name", CASES)
def test_requests(name: str) -> None:
    found = checker(name)
    _, _, allowed, refused = CASES[name]
    for lines, expected in ((allowed, True), (refused, False)):
        for line in filter(str.strip, lines.splitlines()):
            asked = read_request(line)
            sent = parse_check(encode_check(asked))
            answer = found.judge(sent)
            assert (answer.code == ALLOWED) is expected, (line, answer.by)


def test_there_are_two_hundred() -> None:
    lines = [line for case in CASES.values() for line in f"{case[2]}\n{case[3]}".splitlines() if line.strip()]
    assert len(lines) >= 200
