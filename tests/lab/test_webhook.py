"""calico-webhooks.yaml in a cluster of projectcalico.org/v3: an API server that is no node calls its Service, and
kube-proxy of a node leads to one of its pods, through the network whose policies it guards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.host import BIN, run
from tests.lab.lab import Lab, install_manifest, manifest, running_lab
from tests.lab.proxy import install_kube_proxy
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(900)]

RBAC = "rbac.authorization.k8s.io"
GROUP = "projectcalico.org"
DEPLOYMENT = "deployment/calico-webhooks"


@pytest.fixture(scope="module")
def guarded_lab(busybox_image: Path, product_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(images=[busybox_image, product_image], bundle=own_bundle) as made:
        install_manifest(made, name="calico-v3.yaml")
        install_kube_proxy(made, "nftables")
        # the API server's host has no kube-proxy: addresses of Services are reached by way of a node
        run(*made.plane.inside("ip", "route", "add", "10.96.0.0/16", "via", made.nodes[0].address))
        made.apply(*manifest("calico-webhooks.yaml"))
        made.kubectl("-n", "kube-system", "rollout", "status", DEPLOYMENT, "--timeout=300s")
        yield made


def role(name: str, *rules: dict[str, Any]) -> list[dict[str, Any]]:
    """A role, and alice has it."""
    metadata = {"name": name}
    subject = {"apiGroup": RBAC, "kind": "User", "name": "alice"}
    return [
        {"apiVersion": f"{RBAC}/v1", "kind": "ClusterRole", "metadata": metadata, "rules": list(rules)},
        {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [subject],
        },
    ]


def rule(resource: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"apiGroups": [GROUP], "resources": [resource], "verbs": list(verbs), **more}


def tier(name: str, order: int) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/v3", "kind": "Tier", "metadata": {"name": name}, "spec": {"order": order}}


def write(lab: Lab, name: str, tier: str, *, user: str = "alice") -> str:
    """What kubectl says. The administrator may do anything."""
    spec = {"tier": tier, "selector": "has(nobody)", "types": ["Ingress"]}
    body = {"apiVersion": f"{GROUP}/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": name}, "spec": spec}
    done = run(
        *lab.plane.inside("sh", "-c", '"$0" "$@" 2>&1', *kubectl(lab, user)), check=False, input=json.dumps(body)
    )
    return done.stdout


def kubectl(lab: Lab, user: str) -> list[str | Path]:
    group = ["--as-group=system:masters"] if user == "admin" else []
    return [BIN / "kubectl", f"--kubeconfig={lab.plane.admin}", f"--as={user}", *group, "apply", "-f", "-"]


def test_the_api_server_asks_its_service(guarded_lab: Lab) -> None:
    lab = guarded_lab
    writer = role("writers", rule("globalnetworkpolicies", "*"))
    mine = role(
        "sec",
        rule("tiers", "get", resourceNames=["sec"]),
        rule("tier.globalnetworkpolicies", "*", resourceNames=["sec.*"]),
    )
    lab.apply(*writer, *mine, tier("sec", 10), tier("ops", 20))
    until(lambda: "created" in write(lab, "mine", "sec"), "alice writes in her tier", 60)
    assert 'User "alice" cannot create globalnetworkpolicies.projectcalico.org in tier "ops"' in write(
        lab, "theirs", "ops"
    )
    assert 'Tier "nowhere" does not exist' in write(lab, "lost", "nowhere", user="admin")
    names = {item["metadata"]["name"] for item in lab.get("globalnetworkpolicies.projectcalico.org")["items"]}
    assert "mine" in names and not names & {"theirs", "lost"}

    # another certificate
    trusted = bundle(lab)
    lab.kubectl("-n", "kube-system", "delete", "secret", "calico-webhooks-tls")
    until(lambda: bundle(lab) not in ("None", trusted), "the API server is told of another certificate", 180)
    until(lambda: "created" in write(lab, "mine-again", "sec"), "the pods show it", 120)

    # without its pods policies are not written, and pods get their network as before
    lab.kubectl("-n", "kube-system", "scale", DEPLOYMENT, "--replicas=0")
    until(lambda: "failed calling webhook" in write(lab, "later", "sec"), "nobody answers", 120)
    lab.apply(deployment(Wanted("web", 2)))
    lab.await_pods(2)
    lab.kubectl("-n", "kube-system", "scale", DEPLOYMENT, "--replicas=2")
    until(lambda: "created" in write(lab, "later", "sec"), "it answers again", 180)


def bundle(lab: Lab) -> str:
    [hook, *_] = lab.get("validatingwebhookconfiguration", "calico-webhooks")["webhooks"]
    return str(hook["clientConfig"].get("caBundle"))
