"""Clusters for BGP tests: YAML documents in, snapshots out; and the real ``bird -p`` as the judge of rendered text.

Documents are resources as users write them, plus: ``kind: This`` (node, env, blocks, interfaces of the node at hand),
``Service``, ``EndpointSlice`` and ``Secret`` in Kubernetes' form.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable, Mapping
from ipaddress import ip_interface, ip_network
from pathlib import Path
from typing import Any

import yaml

from cni_calico.model.documents.codec import decode_node, decode_pool, decode_resource
from cni_calico.model.keys import AffinityKey, ResourceKey
from cni_calico.model.resources import Affinity, Resource
from cni_calico.nodeagent.bgp.config.records import parse_records
from cni_calico.nodeagent.bgp.config.services import parse_service
from cni_calico.nodeagent.bgp.config.snapshot import (
    BgpInterface,
    BgpSnapshot,
    parse_bgp_environment,
    select_blocks,
    snapshot_of,
)
from cni_calico.nodeagent.bgp.config.values import SecretRef

Document = Mapping[str, Any]
BIRD = "/usr/sbin/bird"


def read_documents(text: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(text) if document]


def document(kind: str, name: str, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name, "labels": dict(labels or {})}, "spec": spec}


def node(name: str, ipv4: str = "", ipv6: str = "", labels: Mapping[str, str] | None = None, **bgp: Any) -> Document:
    addresses = {"ipv4Address": ipv4, "ipv6Address": ipv6}
    return document("Node", name, labels, bgp={**{k: v for k, v in addresses.items() if v}, **bgp})


def this(name: str, blocks: Iterable[Any] = (), **env: str) -> Document:
    return {"kind": "This", "node": name, "blocks": list(blocks), "env": env}


def _of(documents: Iterable[Document], kind: str) -> list[Document]:
    return [document for document in documents if document["kind"] == kind]


def _key(document: Document) -> ResourceKey:
    return ResourceKey(document["kind"], document["metadata"]["name"])


def _blocks(at_hand: Document) -> list[tuple[AffinityKey, Affinity]]:
    out = []
    for block in at_hand.get("blocks") or ():
        cidr, state = (block, "confirmed") if isinstance(block, str) else (block["cidr"], block["state"])
        out.append((AffinityKey(at_hand["node"], ip_network(cidr)), Affinity(state)))
    return out


def _services(documents: Iterable[Document]) -> list[Any]:
    slices = _of(documents, "EndpointSlice")
    out = []
    for service in _of(documents, "Service"):
        name = service["metadata"]["name"]
        own = [s for s in slices if s["metadata"]["labels"]["kubernetes.io/service-name"] == name]
        value, problems = parse_service(service, own)
        assert not problems, problems
        out += [value] if value is not None else []
    return out


def _secrets(documents: Iterable[Document]) -> dict[SecretRef, str]:
    return {
        SecretRef(secret["metadata"]["name"], key): base64.b64decode(value).decode()
        for secret in _of(documents, "Secret")
        for key, value in secret["data"].items()
    }


def secret(name: str, **values: str) -> Document:
    data = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    return {"kind": "Secret", "metadata": {"name": name}, "data": data}


def make_snapshot(documents: Iterable[Document]) -> BgpSnapshot:
    """The snapshot of the node that the document of kind This names."""
    documents = list(documents)
    (at_hand,) = _of(documents, "This")
    name = at_hand["node"]

    def read(kind: str) -> list[Resource]:
        return [decode_resource(_key(d), d) for d in _of(documents, kind)]

    return snapshot_of(
        parse_records(name, read("BGPConfiguration"), read("BGPPeer"), read("BGPFilter")),
        name,
        nodes=[decode_node(_key(d), d) for d in _of(documents, "Node")],
        pools=[decode_pool(_key(d), d) for d in _of(documents, "IPPool")],
        blocks=select_blocks(_blocks(at_hand), name),
        services=_services(documents),
        secrets=_secrets(documents),
        environment=parse_bgp_environment(at_hand.get("env") or {}, node_name=name),
        interfaces=[BgpInterface(i["name"], ip_interface(i["address"])) for i in at_hand.get("interfaces") or ()],
    )


def refusal(files: Mapping[str, str], directory: Path) -> str:
    """What the real BIRD says against the files, "" when it takes them."""
    for name, text in files.items():
        (directory / name).write_text(text, encoding="utf-8", errors="surrogateescape")
    argv = [BIRD, "-p", "-c", str(directory / "bird.cfg")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30, errors="replace")
    return "" if done.returncode == 0 else f"rc {done.returncode}: {done.stderr.strip()}"
