"""Upstream's form of an exported datastore, read and written.

Rule: three parts between lines of "===": v3 resources as YAML lists, ClusterInformation as JSON, and address management
as JSON, with each record beside its etcd key. It is made for a move to Kubernetes: nodes have their Kubernetes names,
endpoints and profiles are left out. Source: upstream's calicoctl datastore migrate.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cni_calico.bounded import parse_json
from cni_calico.ctl.input.manifests import parse_documents, parse_key, split_lists
from cni_calico.ctl.output.render import exported, listed
from cni_calico.ctl.output.texts import render_json, render_yaml
from cni_calico.datastore.interface import Document
from cni_calico.errors import InvalidConfig
from cni_calico.ipam.lost.leaks import kubernetes_name
from cni_calico.model.documents.codec import decode_node
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import (
    CLUSTER,
    PLURALS,
    AffinityKey,
    BlockKey,
    HandleKey,
    IPAMConfigKey,
    Key,
    ResourceKey,
    etcd_path,
    parse_path,
)
from cni_calico.model.kubernetes.policies import STORED_PREFIX

ExportedRecords = dict[Key, Document]

BETWEEN = "==="
# the order of upstream's export; tiers before the policies in them, nodes before what is named after nodes
KINDS = (
    *("Tier", "IPPool", "BGPPeer", "GlobalNetworkPolicy", "GlobalNetworkSet", "HostEndpoint"),
    *("KubeControllersConfiguration", "NetworkPolicy", "NetworkSet", "Node", "BGPConfiguration", "FelixConfiguration"),
    *(
        "IPReservation",
        "BGPFilter",
        "StagedGlobalNetworkPolicy",
        "StagedNetworkPolicy",
        "StagedKubernetesNetworkPolicy",
    ),
)
_IPAM = {"block_affinities": AffinityKey, "blocks": BlockKey, "handles": HandleKey}
_TUNNELS = ("ipip-tunnel-addr-", "vxlan-tunnel-addr-", "wireguard-tunnel-addr-")
_OF_NODES = ("FelixConfiguration", "BGPConfiguration")


def is_upstreams(text: str) -> bool:
    """Whether a text looks like an export of upstream's, not of ours (which is one JSON document)."""
    return f"\n{BETWEEN}\n" in text


# -- read -------------------------------------------------------------------------------------------------------------


def parse_upstream(text: str, source: str) -> ExportedRecords:
    """The records by key; resources without uid and creation time. Raises InvalidConfig."""
    parts = text.split(f"\n{BETWEEN}\n")
    if len(parts) != 3:
        raise InvalidConfig(
            f"cannot import {source}: expected three parts between lines of {BETWEEN}, got {len(parts)}"
        )
    records: ExportedRecords = {}
    for document in split_lists(parse_documents(parts[0], source)):
        records[parse_key(document, "")] = exported(document)
    records[CLUSTER] = _parse_object(parts[1], source)
    records.update(_parse_ipam(_parse_object(parts[2], source), source))
    return records


def _parse_object(text: str, source: str) -> dict[str, Any]:
    try:
        value = parse_json(text, source)
    except ValueError as e:
        raise InvalidConfig(f"cannot import {source}: {e}") from e
    if not isinstance(value, dict):
        raise InvalidConfig(f"cannot import {source}: expected an object, got {value!r}")
    return value


def _parse_ipam(body: Document, source: str) -> Iterator[tuple[Key, Document]]:
    for name, kind in _IPAM.items():
        for entry in body.get(name) or ():
            key = parse_path(str(entry.get("Key"))) if isinstance(entry, Mapping) else None
            if key is None or not isinstance(key, kind) or not isinstance(entry.get("Value"), Mapping):
                raise InvalidConfig(f"cannot import {source}: {name} has {entry!r}, which is not a record of that kind")
            yield key, entry["Value"]
    config = body.get("config")
    if isinstance(config, Mapping) and isinstance(config.get("Value"), Mapping):
        yield IPAMConfigKey(), config["Value"]


# -- write ------------------------------------------------------------------------------------------------------------


def render_upstream(records: ExportedRecords) -> str:
    """Raises InvalidConfig for a node that Kubernetes does not have: upstream could not import it."""
    names = _kubernetes_names(records)
    lists = [render_yaml(listed(kind, list(_documents(records, kind, names)), "")) for kind in KINDS]
    ipam: dict[str, Any] = {
        name: [_entry(key, value, names) for key, value in records.items() if isinstance(key, kind)]
        for name, kind in _IPAM.items()
    }
    config = records.get(IPAMConfigKey())
    if config is not None:
        ipam["config"] = {"Key": etcd_path(IPAMConfigKey()), "Value": config, "TTL": 0}
    cluster = render_json(records.get(CLUSTER, {}))
    return "---\n".join([*lists, ""]) + f"{BETWEEN}\n{cluster}{BETWEEN}\n{render_json(ipam)}"


def _kubernetes_names(records: ExportedRecords) -> dict[str, str]:
    names = {}
    for key, document in records.items():
        if isinstance(key, ResourceKey) and key.kind == "Node":
            names[key.name] = kubernetes_name(decode_node(key, document))
            if not names[key.name]:
                raise InvalidConfig(
                    f"cannot export: node {key.name} missing a 'k8s' orchestrator reference",
                    details="upstream's format is for a move to Kubernetes; leave --format out for any other",
                )
    return names


def _documents(records: ExportedRecords, kind: str, names: Mapping[str, str]) -> Iterable[dict[str, Any]]:
    assert kind in PLURALS
    for key, value in records.items():
        if isinstance(key, ResourceKey) and key.kind == kind and not key.name.startswith(STORED_PREFIX):
            document = exported({"apiVersion": API_VERSION, "kind": kind, **value})
            yield {**document, "metadata": {**document["metadata"], "name": _renamed(key, names)}}


def _renamed(key: ResourceKey, names: Mapping[str, str]) -> str:
    if key.kind == "Node":
        return names.get(key.name, key.name)
    prefix, _, node = key.name.partition(".")
    if key.kind in _OF_NODES and prefix == "node":
        return f"node.{names.get(node, node)}"
    return key.name


def _entry(key: Key, value: Document, names: Mapping[str, str]) -> dict[str, Any]:
    if isinstance(key, AffinityKey):
        key = AffinityKey(names.get(key.node, key.node), key.cidr, key.type)
    elif isinstance(key, HandleKey):
        key = HandleKey(_handle(key.handle_id, names))
    else:
        value = _block(value, names)
    return {"Key": etcd_path(key), "Value": value, "TTL": 0}


def _handle(handle_id: str, names: Mapping[str, str]) -> str:
    for prefix in _TUNNELS:
        if handle_id.startswith(prefix):
            node = handle_id.removeprefix(prefix)
            return prefix + names.get(node, node)
    return handle_id


def _block(value: Document, names: Mapping[str, str]) -> Document:
    block = json.loads(json.dumps(value))
    kind, _, node = str(block.get("affinity") or "").partition(":")
    if kind == "host":
        block["affinity"] = f"host:{names.get(node, node)}"
    for attribute in block.get("attributes") or ():
        secondary = attribute.get("secondary") or {}
        if secondary.get("node") in names:
            secondary["node"] = names[secondary["node"]]
        if attribute.get("handle_id"):
            attribute["handle_id"] = _handle(attribute["handle_id"], names)
    return dict(block)
