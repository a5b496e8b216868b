"""A node of a cluster is taken over from upstream's agent under traffic: nothing forbidden passes, nothing is lost.

Rule: upstream's rules are those that its agent programmed for the records of a case of tests/golden/policy, in each of
its two modes, with the names and addresses of the pods and the node here; the cluster has the same policies, the same
labels and, in the second case, the same host endpoint.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.control_plane import NET4
from tests.lab.lab import Lab, install_bundle, running_lab
from tests.lab.node import Node
from tests.lab.probes import Outside, Probe, flowing, host_probe, probes_of, serving
from tests.lab.proxy import install_kube_proxy
from tests.lab.upstream import left_of_upstream, tables
from tests.lab.workloads import pod
from tests.upstream_rules import iptables_scripts, nft_script

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(600)]
MAIL, DNS, WEB, FAILSAFE, IN_RANGE, CLOSED = 25, 53, 80, 179, 8000, 9999
# the pods of the cases, by the address that each has there: namespace, node, labels, named ports
PODS: dict[str, tuple[str, str, int, dict[str, str], dict[str, int]]] = {
    "a": ("10.65.0.1", "default", 0, {"app": "a", "role": "front"}, {}),
    "b": ("10.65.0.2", "default", 0, {"app": "b", "role": "back"}, {"web": 8080}),
    "r1": ("10.65.1.1", "default", 1, {"app": "a", "role": "front"}, {}),
    "r2": ("10.65.1.2", "default", 1, {"app": "b", "role": "back"}, {"web": 8080}),
    "o1": ("10.65.1.3", "other", 1, {"app": "a"}, {}),
}
LOCAL = ("a", "b")
APP_A = {"podSelector": {"matchLabels": {"app": "a"}}}
POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "b"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [APP_A],
                "ports": [{"protocol": "TCP", "port": 80}, {"protocol": "TCP", "port": 8000, "endPort": 8010}],
            },
            {
                "from": [{**APP_A, "namespaceSelector": {"matchLabels": {"team": "y"}}}],
                "ports": [{"protocol": "TCP", "port": "web"}],
            },
            {
                "from": [{"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.128/25", "192.0.2.7/32"]}}],
                "ports": [{"protocol": "TCP"}],
            },
        ],
        "egress": [
            {"to": [{"namespaceSelector": {}}], "ports": [{"protocol": "UDP", "port": 53}]},
            {"to": [{"podSelector": {"matchLabels": {"role": "front"}}}]},
        ],
    },
}


@dataclass(frozen=True)
class Case:
    """``verdicts``: source, destination, protocol, port: whether it passes. ``flows``: source, destination, protocol,
    allowed port, forbidden port.
    """

    name: str
    documents: tuple[dict[str, Any], ...]
    verdicts: dict[tuple[str, str, str, int], bool]
    flows: tuple[tuple[str, str, str, int, int], ...]


PODS_VERDICTS = {
    ("a", "b", "tcp", IN_RANGE): True,
    ("a", "b", "tcp", CLOSED): False,
    ("a", "b", "udp", IN_RANGE): False,
    ("r1", "b", "tcp", IN_RANGE): True,
    ("r1", "b", "tcp", CLOSED): False,
    ("o1", "b", "tcp", 8080): True,
    ("o1", "b", "tcp", IN_RANGE): False,
    ("b", "o1", "udp", DNS): True,
    ("b", "o1", "udp", IN_RANGE): False,
    ("b", "a", "udp", CLOSED): True,
}
PODS_FLOWS = (
    ("a", "b", "tcp", IN_RANGE, CLOSED),
    ("r1", "b", "tcp", IN_RANGE, CLOSED),
    ("b", "o1", "udp", DNS, IN_RANGE),
)
WORKLOADS = Case("02-kubernetes-style", (POLICY,), PODS_VERDICTS, PODS_FLOWS)


def stored(kind: str, name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": labels}
    return {"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": metadata, "spec": spec}


ALLOW, DENY = {"action": "Allow"}, {"action": "Deny"}
# "host" is the node that is taken over, "peer" the other one, "outside" no node
HOST = Case(
    "06-host-endpoint-named",
    (
        stored("HostEndpoint", "h0", {"node": "node1", "interfaceName": "eth0"}, hep="h0"),
        stored(
            "GlobalNetworkPolicy",
            "default.host-in",
            {
                "order": 1,
                "selector": "hep == 'h0'",
                "types": ["Ingress", "Egress"],
                "ingress": [{**ALLOW, "protocol": "TCP", "destination": {"ports": [WEB]}}],
                "egress": [{**ALLOW, "protocol": "UDP"}],
            },
        ),
        stored(
            "GlobalNetworkPolicy",
            "default.forwarded",
            {
                "order": 2,
                "selector": "hep == 'h0'",
                "applyOnForward": True,
                "types": ["Ingress"],
                "ingress": [{**DENY, "protocol": "TCP", "destination": {"ports": [MAIL]}}, ALLOW],
            },
        ),
    ),
    {
        ("peer", "host", "tcp", WEB): True,
        ("peer", "host", "tcp", MAIL): False,
        ("peer", "host", "udp", MAIL): True,
        ("host", "peer", "udp", CLOSED): True,
        ("host", "peer", "tcp", CLOSED): False,
        ("host", "peer", "tcp", FAILSAFE): True,
        ("host", "a", "tcp", MAIL): True,
        ("outside", "a", "tcp", IN_RANGE): True,
        ("outside", "a", "tcp", MAIL): False,
        ("a", "b", "tcp", MAIL): True,
    },
    (
        ("peer", "host", "tcp", WEB, MAIL),
        ("host", "peer", "tcp", FAILSAFE, CLOSED),
        ("outside", "a", "tcp", IN_RANGE, MAIL),
    ),
)


@dataclass
class World:
    """``probes``: the pods by name, and the hosts; ``interfaces``: those of the pods of the first node."""

    lab: Lab
    mode: str
    probes: dict[str, Probe]
    interfaces: dict[str, str]

    @property
    def node(self) -> Node:
        return self.lab.nodes[0]

    def verdicts(self, case: Case) -> dict[tuple[str, str, str, int], bool]:
        return {
            (source, target, protocol, port): bool(
                self.probes[source].reaches(port, self.probes[target].address, protocol=protocol)
            )
            for source, target, protocol, port in case.verdicts
        }

    def remove(self, case: Case) -> None:
        for document in case.documents:
            group = document["apiVersion"].partition("/")[0]
            self.lab.kubectl("delete", f"{document['kind'].lower()}.{group}", document["metadata"]["name"])

    def lay_down_upstream(self, case: Case) -> None:
        """In the place of ours, whose agent has been stopped."""
        replaced = {f"cali{name}": self.interfaces[name] for name in LOCAL}
        replaced |= {PODS[name][0]: self.probes[name].address for name in PODS}
        replaced["172.31.0.1"] = self.node.address
        script = "".join(f"delete table {table}\n" for table in tables(self.node) if "calico" in table)
        if self.mode == "nftables":
            script += nft_script(case.name, replaced)
        else:
            sets, rules = iptables_scripts(case.name, replaced)
            self._load(sets, "ipset", "restore", "-file")
            self._load(rules, "iptables-legacy-restore")
        self._load(script, "nft", "-f")

    def _load(self, text: str, *command: str) -> None:
        file = self.lab.directory / "upstream"
        file.write_text(text)
        self.node.run(*command, file)

    def ours(self) -> bool:
        return "ip calico-policy" in tables(self.node)


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def takeover_world(request: pytest.FixtureRequest, busybox_image: Path, own_bundle: Path) -> Iterator[World]:
    with running_lab(images=[busybox_image], bundle=own_bundle) as lab:
        install_bundle(lab)
        install_kube_proxy(lab, request.param)
        lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "labels": {"team": "y"}}})
        lab.kubectl("label", "namespace", "default", "team=x")
        lab.apply(
            *(
                pod(name, space, labels, lab.nodes[node].name, ports=ports)
                for name, (_, space, node, labels, ports) in PODS.items()
            )
        )
        probes = probes_of(lab, "default", 4) | probes_of(lab, "other", 1)
        node = lab.nodes[0]
        probes["host"], probes["peer"] = map(host_probe, lab.nodes)
        with serving(list(probes.values()), MAIL, DNS, WEB, FAILSAFE, IN_RANGE, 8080, CLOSED):
            probes["outside"] = Outside("outside", node, f"{NET4}.1", "", lab)
            way = ("ip", "route", "add", probes["a"].address, "via", node.address)
            subprocess.run([str(word) for word in lab.plane.inside(*way)], check=True)
            yield World(lab, request.param, probes, {name: probes[name].interface() for name in LOCAL})


@pytest.mark.parametrize("case", [WORKLOADS, HOST], ids=lambda case: case.name)
def test_from_upstreams_rules_without_a_gap(takeover_world: World, case: Case) -> None:
    until(lambda: all(takeover_world.verdicts(case).values()), "everything is open", timeout_s=60, pause_s=0.1)
    takeover_world.lab.apply(*case.documents)
    try:
        take_over(takeover_world, case)
    finally:
        takeover_world.remove(case)


def take_over(world: World, case: Case) -> None:
    def in_force() -> bool:
        return world.verdicts(case) == case.verdicts

    until(in_force, "the policies are in force on both nodes", timeout_s=60, pause_s=0.1)
    world.node.disable("calico-node")
    world.lay_down_upstream(case)
    assert not world.ours() and left_of_upstream(world.node)
    assert world.verdicts(case) == case.verdicts

    with ExitStack() as stack:
        flows = [
            stack.enter_context(
                flowing(
                    world.probes[source], world.probes[target].address,
                    allowed=allowed, forbidden=forbidden, protocol=protocol,
                )
            )
            for source, target, protocol, allowed, forbidden in case.flows
        ]  # fmt: skip
        world.node.enable_again("calico-node")
        until(
            lambda: world.ours() and not left_of_upstream(world.node),
            f"taken over: {left_of_upstream(world.node)}",
            timeout_s=60,
            pause_s=0.1,
        )
    for counts in flows:
        assert counts.sent > 200
        assert (counts.allowed, counts.forbidden) == (counts.sent, 0)
    assert world.verdicts(case) == case.verdicts
