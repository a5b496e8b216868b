"""A small shop: two pods web, one db, one cache, and its policies as documents, files and records."""

import json

from cni_calico.model.keys import ResourceKey, etcd_path

PODS = {"web-1": "web", "web-2": "web", "db-0": "db", "cache-0": "cache"}


def policy(name, selector, peers, *, types=("Ingress",), tier="default", order=100, action="Allow"):
    """``peers``: (selector, ports) of each rule."""
    rules = []
    for peer, ports in peers:
        side = "source" if "Ingress" in types else "destination"
        rule = {"action": action, "protocol": "TCP", side: {"selector": peer}}
        rule["destination"] = {**rule.get("destination", {}), "ports": list(ports)}
        rules.append(rule)
    spec = {"tier": tier, "order": order, "selector": selector, "types": list(types)}
    spec["ingress" if "Ingress" in types else "egress"] = rules
    metadata = {"name": name, "namespace": "shop"}
    return {"apiVersion": "projectcalico.org/v3", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec}


POLICIES = {"database": policy("database", "app == 'db'", [("app == 'web'", [5432])])}


def pod(number, name, app):
    spec = {"orchestrator": "k8s", "node": "n1", "pod": name, "endpoint": "eth0", "interfaceName": f"cali{number}"}
    spec |= {"ipNetworks": [f"10.65.0.{number}/32"], "profiles": ["kns.shop"]}
    metadata = {"name": f"n1-k8s-{name.replace('-', '--')}-eth0", "namespace": "shop"}
    metadata["labels"] = {"app": app, "projectcalico.org/namespace": "shop", "projectcalico.org/orchestrator": "k8s"}
    return {"apiVersion": "projectcalico.org/v3", "kind": "WorkloadEndpoint", "metadata": metadata, "spec": spec}


def pods():
    return [pod(number, name, app) for number, (name, app) in enumerate(PODS.items(), start=1)]


def write(path, *documents):
    """A file of documents (JSON is YAML); returns its path as text."""
    path.write_text("".join(f"---\n{json.dumps(document)}\n" for document in documents))
    return str(path)


def flow(source, destination, *, port=5432, verdict="allowed", count=1, reporter="dst", decided=None, **ends):
    """A sum of flows between two pods, as ``calicoctl flows --aggregate`` writes it; ``ends`` replaces what it has."""
    found = {}
    for side, name in (("source", source), ("destination", destination)):
        number = list(PODS).index(name) + 1 if name in PODS else 99
        found[side] = {"kind": "pod", "namespace": "shop", "name": name, "ip": f"10.65.0.{number}"}
    found["destination"]["port"] = port
    if "sender" in ends:
        found["source"] = {"ip": "192.0.2.1", **ends["sender"]}
    if "to" in ends:
        found["destination"] = {"kind": "address", "port": port, **ends["to"]}
    return {
        **{"start": "2026-11-26T14:00:00.000+00:00", "last": "2026-11-26T14:02:11.403+00:00", "node": "n1"},
        **{"reporter": reporter, "verdict": verdict, **found, "protocol": "tcp", "connections": count},
        "decided": decided if decided is not None else [{"direction": "ingress", "action": "Allow"}],
    }


def write_flows(path, *lines):
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def endpoints_file(directory):
    return write(directory / "pods.yaml", *pods())


def stored(policies):
    """The records of the shop with these policies, by their paths."""
    profile = {
        **{"apiVersion": "projectcalico.org/v3", "kind": "Profile", "metadata": {"name": "kns.shop"}},
        "spec": {
            **{"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]},
            "labelsToApply": {"pcns.projectcalico.org/name": "shop"},
        },
    }
    records = {}
    for document in (profile, *pods(), *policies):
        metadata = {"uid": "u", "creationTimestamp": "2026-11-20T12:06:00Z", **document["metadata"]}
        key = ResourceKey(document["kind"], metadata["name"], metadata.get("namespace", ""))
        records[etcd_path(key)] = {**document, "metadata": metadata}
    return records
