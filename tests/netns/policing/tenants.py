"""Tenants with policies as large as they may be, each with an endpoint on this node that its policy governs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.netns.policing.lab import NODE, Lab, lab


def document(kind: str, name: str, namespace: str, spec: dict[str, Any], **labels: str) -> Write:
    metadata = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "labels": labels}
    body = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    return Write.put(ResourceKey(kind, name, namespace), body)


def endpoint(number: int) -> Write:
    """Of tenant ``number``; no such interface exists."""
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
    return document("WorkloadEndpoint", f"{NODE}-k8s-{name}-eth0", name, spec, app="a")


def large_policy(number: int, rules: int, version: int = 0) -> Write:
    """Every rule has an address of its own."""
    nets = [f"10.{version}.{i >> 8}.{i & 255}/32" for i in range(min(rules, 65536))]
    listed = [{"action": "Allow", "source": {"nets": [net]}} for net in nets]
    spec = {"tier": "default", "selector": "app == 'a'", "types": ["Ingress"], "ingress": listed}
    return document("NetworkPolicy", "large", f"t{number}", spec)


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
