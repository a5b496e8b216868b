"""docs/from-calico.md on a cluster of real kubelets: its commands, node by node, back, and again at one go, under
traffic.

Rule: upstream's programs are stood for (tests/lab/upstream.py); its manifest, rules and records are its own. The page's
commands are run as they are; only names of nodes are filled in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.deadlines import until
from tests.lab.host import BIN
from tests.lab.lab import POOL4, Lab, manifest, running_lab
from tests.lab.node import Node
from tests.lab.probes import Flow, Probe, flowing, probes_of, serving
from tests.lab.proxy import install_kube_proxy
from tests.lab.test_pods import ready_agents
from tests.lab.test_takeover import CLOSED, DNS, IN_RANGE, PODS, POLICY, WORKLOADS
from tests.lab.upstream import forget_ours, lay_down_rules, left_of_upstream, make_images, tables
from tests.lab.workloads import pod
from tests.pages import blocks
from tests.upstream_manifest import upstreams_manifest

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(900)]
PAGE = "from-calico.md"
# what its owner has set
CONFIG = {"calico_backend": "vxlan", "veth_mtu": "1400"}
ENVIRONMENT = {"CALICO_IPV4POOL_IPIP": "Never", "CALICO_IPV4POOL_VXLAN": "Always", "CALICO_IPV4POOL_CIDR": POOL4}
AGENTS = ("-n", "kube-system", "pods", "-l", "k8s-app=calico-node")
# phases of the takeover; before these, each node is one by its number
BACK, RULES, AGAIN = 3, 4, 5
# the pods of each node that stand where a and b stand in upstream's rules
IN_RULES = (("a", "b"), ("r1", "r2"))


def with_settings(documents: list[dict[str, Any]], **strategy: str) -> str:
    for document in documents:
        if document["kind"] == "ConfigMap":
            document["data"] |= CONFIG
        if document["kind"] == "DaemonSet":
            document["spec"]["updateStrategy"] = strategy or document["spec"]["updateStrategy"]
            [node] = document["spec"]["template"]["spec"]["containers"]
            kept = [entry for entry in node["env"] if entry["name"] not in ENVIRONMENT]
            node["env"] = kept + [{"name": name, "value": value} for name, value in ENVIRONMENT.items()]
    return yaml.safe_dump_all(documents)


@dataclass
class Owner:
    """Types the page's commands in a directory with both manifests."""

    lab: Lab
    directory: Path
    probes: dict[str, Probe]

    def type(self, script: str, *, status: int = 0) -> str:
        """What it printed; both streams when it is to fail."""
        assert self.lab.bundle is not None
        path = f"{self.lab.bundle}:{BIN}:{os.environ['PATH']}"
        environ = {**os.environ, "PATH": path, "KUBECONFIG": str(self.lab.plane.admin)}
        command = [str(word) for word in self.lab.plane.inside("bash", "-euc", script)]
        done = subprocess.run(command, cwd=self.directory, env=environ, capture_output=True, text=True, timeout=300)
        assert done.returncode == status, f"{script}\n{done.stdout}{done.stderr}\n{self.lab.describe()}"
        return done.stdout + (done.stderr if status else "")

    def verdicts(self) -> dict[tuple[str, str, str, int], bool]:
        return {
            (source, target, protocol, port): bool(
                self.probes[source].reaches(port, self.probes[target].address, protocol=protocol)
            )
            for source, target, protocol, port in WORKLOADS.verdicts
        }

    def records(self) -> dict[str, Any]:
        """Addresses of the pods, and whose the blocks are."""
        pods = [each for space in ("default", "other") for each in self.lab.pods(space)]
        blocks_ = self.lab.get("ipamblocks.crd.projectcalico.org")["items"]
        return {
            **{each["metadata"]["name"]: each["status"]["podIPs"] for each in pods},
            **{each["spec"]["cidr"]: each["spec"]["affinity"] for each in blocks_},
        }

    @contextmanager
    def under_traffic(self, phase: int) -> Iterator[list[Flow]]:
        """What was sent is known when the block has ended; no forbidden connection has passed then.

        In every phase TCP has ports of its own, so that no connection takes a former one's place.
        """
        with ExitStack() as stack:
            flows = [
                stack.enter_context(
                    flowing(
                        self.probes[source], self.probes[target].address,
                        allowed=allowed + phase if protocol == "tcp" else allowed,
                        forbidden=forbidden, protocol=protocol,
                    )
                )
                for source, target, protocol, allowed, forbidden in WORKLOADS.flows
            ]  # fmt: skip
            yield flows
        assert all(counts.forbidden == 0 and counts.sent > 200 for counts in flows), flows

    @contextmanager
    def nothing_lost(self, phase: int) -> Iterator[None]:
        with self.under_traffic(phase) as flows:
            yield
        assert all(counts.allowed == counts.sent for counts in flows), flows

    def is_ours(self, node: Node) -> bool:
        return "ip calico-policy" in tables(node) and not left_of_upstream(node)

    def is_upstreams(self, node: Node) -> bool:
        return bool(left_of_upstream(node)) and not any("calico" in table for table in tables(node))

    def is_without_ours(self) -> bool:
        """On every node; removes what our agent, which the stand-in ran before, makes until it has ended."""
        if all(self.is_upstreams(node) for node in self.lab.nodes):
            return True
        for node in self.lab.nodes:
            forget_ours(node)
        return False


@pytest.fixture
def owner(busybox_image: Path, own_bundle: Path, tmp_path: Path) -> Iterator[Owner]:
    """Of a cluster from upstream's manifest, with pods and a policy in force."""
    images = [busybox_image, *make_images(tmp_path, own_bundle)]
    with running_lab(images=images, bundle=own_bundle) as lab:
        install_kube_proxy(lab, "iptables")
        (tmp_path / "upstream.yaml").write_text(with_settings(upstreams_manifest()))
        lab.kubectl("apply", "-f", tmp_path / "upstream.yaml")
        until(lambda: ready_agents(lab) == len(lab.nodes), "upstream's agents are ready", timeout_s=180, pause_s=0.1)
        lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "other", "labels": {"team": "y"}}})
        lab.kubectl("label", "namespace", "default", "team=x")
        placed = [
            pod(name, space, labels, lab.nodes[node].name, ports=ports)
            for name, (_, space, node, labels, ports) in PODS.items()
        ]
        lab.apply(*placed, POLICY)
        probes = probes_of(lab, "default", 4) | probes_of(lab, "other", 1)
        made = Owner(lab, tmp_path, probes)
        for node, local in zip(lab.nodes, IN_RULES, strict=True):
            replaced = {PODS[name][0]: probe.address for name, probe in probes.items()}
            replaced |= {f"cali{there}": probes[here].interface() for there, here in zip("ab", local, strict=True)}
            others = [probe.interface() for name, probe in probes.items() if probe.node is node and name not in local]
            lay_down_rules(node, WORKLOADS.name, replaced, others, POOL4)
        lab.kubectl("delete", *AGENTS)
        until(made.is_without_ours, "upstream's rules are there, and ours are not", timeout_s=60, pause_s=0.1)
        until(lambda: ready_agents(lab) == len(lab.nodes), "upstream's agents are ready", timeout_s=180, pause_s=0.1)
        with serving(list(probes.values()), DNS, *(IN_RANGE + phase for phase in range(AGAIN + 1)), 8080, CLOSED):
            assert made.is_without_ours()
            assert made.verdicts() == WORKLOADS.verdicts
            yield made


def test_there_and_back(owner: Owner, product_image: Path) -> None:
    [look] = blocks(PAGE, "Before: what would no longer be enforced")
    save, _, compare, keep_rights, change, one, ask, last = blocks(PAGE, "A cluster installed from upstream's manifest")
    back, remove_rules = blocks(PAGE, "The way back")
    lab, before = owner.lab, owner.records()

    assert owner.type(look) == ""
    owner.type(save)
    for node in lab.nodes:
        node.ctr("images", "import", product_image)
    (owner.directory / "manifests").mkdir()
    (owner.directory / "manifests" / "crds.yaml").symlink_to(ROOT / "manifests" / "crds.yaml")
    ours = owner.directory / "manifests" / "calico.yaml"
    ours.write_text(with_settings(manifest(), type="OnDelete"))
    assert "-  calico_backend" not in owner.type(compare.replace("| less", "|| true"))
    owner.type(keep_rights)
    assert "only available for RollingUpdate" in owner.type(change, status=1)
    for node in lab.nodes:
        with owner.nothing_lost(node.number):
            owner.type(one.replace("NODE=node1", f"NODE={node.name}"))
            until(lambda node=node: owner.is_ours(node), f"{node.name} is taken over", timeout_s=30, pause_s=0.1)
        assert owner.verdicts() == WORKLOADS.verdicts
    said = owner.type(ask)
    assert said.count("Ready:     yes") == len(lab.nodes) and "is not ready" not in said
    assert "The network works." in owner.type(last)
    assert owner.records() == before
    lab.calicoctl("ipam", "check")

    with owner.under_traffic(BACK):  # what upstream's agent loses when it starts is upstream's
        owner.type(back)
    with owner.nothing_lost(RULES):
        for node in lab.nodes:
            node.run("bash", "-euc", remove_rules)
            assert owner.is_upstreams(node)
        assert owner.verdicts() == WORKLOADS.verdicts
    assert owner.type("kubectl diff -f upstream.yaml") == ""
    assert owner.records() == before
    lab.calicoctl("ipam", "check")

    ours.write_text(with_settings(manifest()))
    with owner.nothing_lost(AGAIN):
        owner.type(change)
        assert all(owner.is_ours(node) for node in lab.nodes)
    assert owner.verdicts() == WORKLOADS.verdicts
    assert owner.records() == before
