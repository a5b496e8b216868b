"""Tenants with policies as large as they may be, each with an endpoint on this node that its policy governs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.budget import DEFAULT
from tests.netns.policing.lab import NODE, Lab, lab


def document(kind: str, name: str, namespace: str, spec: dict[str, Any], **labels: str) -> Write:
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "labels": labels}
    body = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    return Write.put(ResourceKey(kind, name, namespace), body)


def endpoint(number: int, version: int = 0) -> Write:
    """Of tenant ``number``; no such interface exists. Each version has another label."""
    name = f"t{number}"
    spec = {
        "orchestrator": "k8s",
        "node": NODE,
        "pod": name,
        "containerID": "c",
        "endpoint": "eth0",
        "ipNetworks": [f"10.77.0.{number}/32"],
        "profiles": [],
        "interfaceName": f"cali{name}",
    }
    return document("WorkloadEndpoint", f"{NODE}-k8s-{name}-eth0", name, spec, app="a", version=str(version))


def large_policy(number: int, rules: int, version: int = 0) -> Write:
    """Every rule has an address of its own."""
    nets = [f"10.{version}.{i >> 8}.{i & 255}/32" for i in range(min(rules, 65536))]
    listed = [{"action": "Allow", "source": {"nets": [net]}} for net in nets]
    spec = {"tier": "default", "selector": "app == 'a'", "types": ["Ingress"], "ingress": listed}
    return document("NetworkPolicy", "large", f"t{number}", spec)


def _policy(number: int, name: str, rules: list[dict[str, Any]]) -> Write:
    spec = {"tier": "default", "selector": "app == 'a'", "types": ["Ingress"], "ingress": rules}
    return document("NetworkPolicy", name, f"t{number}", spec)


# of_alternatives' rules that the budget has room for, beside a few sets
LARGEST = (DEFAULT - 1000) // 16


def of_alternatives(number: int, rules: int, *, port: int = 0) -> Write:
    """Each rule but the first, which allows this port, needs 16 rules of the packet filter: the densest there are."""
    side = {"selector": "has(app)", "ports": [9000, "name"]}
    listed = [
        {"action": "Allow", "protocol": "UDP", "destination": {"ports": [port]}},
        *({"action": "Allow", "protocol": "UDP", "source": side, "destination": _named(i)} for i in range(rules)),
    ]
    return _policy(number, "alternatives", listed)


def _named(i: int) -> dict[str, Any]:
    return {"selector": "app == 'a'", "ports": [f"n{i % 700}", 1 + i]}


def selector_policy(number: int, rules: int) -> Write:
    """Every rule has a selector of its own."""
    listed = [{"action": "Allow", "source": {"selector": f"x == 'v{i}'"}} for i in range(rules)]
    return _policy(number, "large", listed)


def terms_policy(number: int, terms: int, version: int = 0) -> Write:
    """A rule whose selector has many terms and asks every endpoint of the cluster."""
    text = " || ".join(f"(a{i} == 'x' && b != 'y{version}')" for i in range(terms))
    side = {"selector": text, "namespaceSelector": "all()"}
    return _policy(number, "terms", [{"action": "Allow", "source": side}])


def small_policy(tenant: int, number: int) -> Write:
    return _policy(tenant, f"small-{number}", [{"action": "Allow", "source": {"nets": [f"10.9.{number >> 8}.0/24"]}}])


def set_policy(number: int) -> Write:
    return _policy(number, "members", [{"action": "Allow", "source": {"selector": "what == 'large'"}}])


def network_set(number: int, members: int, version: int = 0) -> Write:
    """Of a tenant; each version has other members, half of them networks."""
    nets = [
        f"{20 + version}.{i >> 15 & 255}.{i >> 7 & 255}.{(i & 127) * 2}/{32 if i & 1 else 31}" for i in range(members)
    ]
    return document("NetworkSet", "large", f"t{number}", {"nets": nets}, what="large")


@contextmanager
def two_pods(root: Path) -> Iterator[Lab]:
    """a and b, in the namespace default, may talk."""
    with lab(root) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("a", "10.65.0.1", app="a")
        made.add("b", "10.65.0.2", app="b")
        unrelated(made, deny=False)
        yield made


def unrelated(made: Lab, *, deny: bool) -> None:
    """Whether b, in another namespace than the tenants', gets anything."""
    rules = [{"action": "Deny" if deny else "Allow"}]
    made.put("NetworkPolicy", "small", {"selector": "app == 'b'", "types": ["Ingress"], "ingress": rules}, "default")
