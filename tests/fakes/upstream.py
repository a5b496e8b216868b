"""Upstream's plugin as far as other plugins meet it: the records it writes, in its spelling, and its interfaces.

Rule: no encoding of the product is used. What is written is what tests/golden/vectors show: blocks, handles, affinities
and endpoints without any field of ours, interfaces without an alias. A container is released by its handle. One call at
a time: it compares nothing.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import ipaddress
import json
import secrets
import time
import urllib.request
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.e2e.kubernetes.cluster import Cluster
from tests.netns.namespaces import Namespace

JSON = dict[str, Any]
API_GROUP, NATIVE_GROUP = "crd.projectcalico.org/v1", "projectcalico.org/v3"
HOST_MAC, GATEWAY, GATEWAY6 = "ee:ee:ee:ee:ee:ee", "169.254.1.1", "fe80::ecee:eeff:feee:eeee"
POD = "cni.projectcalico.org/"


# -- blocks: pure -----------------------------------------------------------------------------------------------------


def new_block(cidr: str, node: str, now_ns: int) -> JSON:
    size = ipaddress.ip_network(cidr).num_addresses
    return {
        "cidr": cidr,
        "affinity": f"host:{node}",
        "affinity_claim_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_ns // 10**9)),
        "allocations": [None] * size,
        "unallocated": list(range(size)),
        "attributes": [],
        "sequenceNumber": now_ns,
        "sequenceNumberForAllocation": {},
        "deleted": False,
    }


def allocate(block: JSON, handle: str, secondary: JSON) -> tuple[JSON, str]:
    """The block after it, and the address: the first of the unallocated ones."""
    block = copy.deepcopy(block)
    ordinal = block["unallocated"].pop(0)
    attribute = {"handle_id": handle, "secondary": secondary}
    if attribute not in block["attributes"]:
        block["attributes"].append(attribute)
    block["allocations"][ordinal] = block["attributes"].index(attribute)
    block["sequenceNumberForAllocation"][str(ordinal)] = block["sequenceNumber"]
    block["sequenceNumberForAllocation"] = dict(sorted(block["sequenceNumberForAllocation"].items()))
    block["sequenceNumber"] += 1
    return block, str(ipaddress.ip_network(block["cidr"])[ordinal])


def release(block: JSON, handle: str) -> tuple[JSON, int]:
    """The block after all that the handle had in it is given back, and how many those were. The numbers of the freed
    ordinals stay in it.
    """
    block = copy.deepcopy(block)
    mine = {i for i, attribute in enumerate(block["attributes"]) if attribute["handle_id"] == handle}
    freed = [ordinal for ordinal, index in enumerate(block["allocations"]) if index in mine]
    kept = [i for i in range(len(block["attributes"])) if i not in mine]
    block["attributes"] = [block["attributes"][i] for i in kept]
    block["allocations"] = [
        None if index is None or index in mine else kept.index(index) for index in block["allocations"]
    ]
    block["unallocated"] += freed
    block["sequenceNumber"] += 1
    return block, len(freed)


def time_text(now_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now_ns // 10**9)) + f".{now_ns % 10**9:09} +0000 UTC"


# -- where it is stored -----------------------------------------------------------------------------------------------


class Records(Protocol):
    """Blocks by CIDR (as etcd spells them), affinities as (node, CIDR), handles by ID; None removes."""

    def blocks(self) -> dict[str, JSON]: ...

    def affinities(self) -> set[tuple[str, str]]: ...

    def handle(self, handle: str) -> JSON | None: ...

    def put_block(self, cidr: str, block: JSON | None) -> None: ...

    def put_affinity(self, node: str, cidr: str) -> None: ...

    def put_handle(self, handle: str, record: JSON | None) -> None: ...

    def put_endpoint(self, container: Container, veth: str, mac: str, addresses: list[str]) -> None: ...

    def remove_endpoint(self, container: Container) -> None: ...


@dataclass(frozen=True)
class Container:
    """``pod`` "": outside of Kubernetes."""

    id: str
    node: str
    network: str = "calnet"
    namespace: str = "default"
    pod: str = ""

    @property
    def handle(self) -> str:
        return f"{self.network}.{self.id}"

    @property
    def veth(self) -> str:
        if self.pod:
            return "cali" + hashlib.sha1(f"{self.namespace}.{self.pod}".encode()).hexdigest()[:11]
        return "cali" + self.id[:11]


def _dashed(cidr: str) -> str:
    return cidr.replace("/", "-")


def _etcd_call(url: str, method: str, body: JSON) -> Any:
    request = urllib.request.Request(f"{url}/v3/kv/{method}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@dataclass
class EtcdRecords:
    """By etcd's JSON gateway, from inside the namespace that etcd is in."""

    host: Namespace
    url: str

    def _call(self, method: str, body: JSON) -> Any:
        return self.host.call(_etcd_call, self.url, method, body)

    def _list(self, prefix: str) -> dict[str, JSON]:
        body = {"key": _b64(prefix), "range_end": _b64(prefix[:-1] + chr(ord(prefix[-1]) + 1))}
        found = self._call("range", body).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode(): json.loads(base64.b64decode(kv["value"])) for kv in found}

    def _put(self, key: str, value: JSON | None) -> None:
        if value is None:
            self._call("deleterange", {"key": _b64(key)})
        else:
            self._call("put", {"key": _b64(key), "value": _b64(json.dumps(value, separators=(",", ":")))})

    def _block_key(self, cidr: str) -> str:
        version = ipaddress.ip_network(cidr).version
        return f"/calico/ipam/v2/assignment/ipv{version}/block/{_dashed(cidr)}"

    def blocks(self) -> dict[str, JSON]:
        return {block["cidr"]: block for block in self._list("/calico/ipam/v2/assignment/").values()}

    def affinities(self) -> set[tuple[str, str]]:
        parts = [key.split("/") for key in self._list("/calico/ipam/v2/host/")]
        return {(part[5], part[8].rpartition("-")[0] + "/" + part[8].rpartition("-")[2]) for part in parts}

    def handle(self, handle: str) -> JSON | None:
        return self._list(f"/calico/ipam/v2/handle/{handle}").get(f"/calico/ipam/v2/handle/{handle}")

    def put_block(self, cidr: str, block: JSON | None) -> None:
        self._put(self._block_key(cidr), block)

    def put_affinity(self, node: str, cidr: str) -> None:
        version = ipaddress.ip_network(cidr).version
        key = f"/calico/ipam/v2/host/{node}/ipv{version}/block/{_dashed(cidr)}"
        self._put(key, {"state": "confirmed", "deleted": False})

    def put_handle(self, handle: str, record: JSON | None) -> None:
        self._put(f"/calico/ipam/v2/handle/{handle}", record)

    def _endpoint(self, container: Container) -> tuple[str, str]:
        parts = [part.replace("-", "--") for part in (container.node, "cni", container.id, "eth0")]
        name = "-".join(parts)
        return name, f"/calico/resources/v3/projectcalico.org/workloadendpoints/default/{name}"

    def put_endpoint(self, container: Container, veth: str, mac: str, addresses: list[str]) -> None:
        name, key = self._endpoint(container)
        uid = secrets.token_hex(16)
        document = {
            "kind": "WorkloadEndpoint",
            "apiVersion": "projectcalico.org/v3",
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"{uid[:8]}-{uid[8:12]}-{uid[12:16]}-{uid[16:20]}-{uid[20:]}",
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "labels": {"projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni"},
            },
            "spec": {
                "orchestrator": "cni",
                "node": container.node,
                "containerID": container.id,
                "endpoint": "eth0",
                "ipNetworks": addresses,
                "profiles": [container.network],
                "interfaceName": veth,
                "mac": mac,
            },
        }
        self._put(key, document)

    def remove_endpoint(self, container: Container) -> None:
        _, key = self._endpoint(container)
        found = self._list(key).get(key)
        if found is not None and found["spec"]["containerID"] == container.id:
            self._put(key, None)


@dataclass
class KubeRecords:
    """By the API server's custom resources, as an administrator; those of ``group``, which of the two it is."""

    kube: Cluster
    group: str = API_GROUP

    @property
    def _root(self) -> str:
        return f"/apis/{self.group}"

    def _list(self, plural: str) -> list[JSON]:
        found: list[JSON] = self.kube.request("GET", f"{self._root}/{plural}")["items"]
        return [item for item in found if str(item["spec"].get("deleted", "")).lower() != "true"]

    def _put(self, plural: str, kind: str, name: str, spec: JSON, labels: JSON | None = None) -> None:
        found = [
            item
            for item in self.kube.request("GET", f"{self._root}/{plural}")["items"]
            if item["metadata"]["name"] == name
        ]
        stored: JSON = {"creationTimestamp": None, **({"labels": labels} if labels else {})}
        metadata: JSON = {"annotations": {"projectcalico.org/metadata": json.dumps(stored, separators=(",", ":"))}}
        if self.group == NATIVE_GROUP:
            metadata = {}
        document = {
            "apiVersion": self.group,
            "kind": kind,
            "metadata": {"name": name, **metadata, **({"labels": labels} if labels else {})},
            "spec": spec,
        }
        if found:
            document["metadata"]["resourceVersion"] = found[0]["metadata"]["resourceVersion"]
            self.kube.request("PUT", f"{self._root}/{plural}/{name}", document)
        else:
            self.kube.request("POST", f"{self._root}/{plural}", document)

    def _remove(self, plural: str, name: str) -> None:
        """Marked first, then deleted, if it is still the same object."""
        found = self.kube.request("GET", f"{self._root}/{plural}/{name}")
        marked = {**found, "spec": {**found["spec"], "deleted": True}}
        found = self.kube.request("PUT", f"{self._root}/{plural}/{name}", marked)
        preconditions = {"preconditions": {"uid": found["metadata"]["uid"]}}
        self.kube.request("DELETE", f"{self._root}/{plural}/{name}", preconditions)

    def _name(self, cidr: str) -> str:
        return cidr.replace(".", "-").replace(":", "-").replace("/", "-")

    def blocks(self) -> dict[str, JSON]:
        found = {}
        for item in self._list("ipamblocks"):
            block = {
                key: value for key, value in item["spec"].items() if key not in ("affinityClaimTime", "strictAffinity")
            }
            if "affinityClaimTime" in item["spec"]:
                block["affinity_claim_time"] = item["spec"]["affinityClaimTime"]
            found[block["cidr"]] = {"sequenceNumberForAllocation": {}, "affinity": None, **block}
        return found

    def affinities(self) -> set[tuple[str, str]]:
        return {(item["spec"]["node"], item["spec"]["cidr"]) for item in self._list("blockaffinities")}

    def handle(self, handle: str) -> JSON | None:
        found = [item["spec"] for item in self._list("ipamhandles") if item["spec"]["handleID"] == handle]
        return {"block": found[0]["block"], "deleted": False} if found else None

    def put_block(self, cidr: str, block: JSON | None) -> None:
        if block is None:
            self._remove("ipamblocks", self._name(cidr))
            return
        spec = {key: value for key, value in block.items() if key != "affinity_claim_time" and value is not None}
        if block.get("affinity_claim_time"):
            spec["affinityClaimTime"] = block["affinity_claim_time"]
        self._put("ipamblocks", "IPAMBlock", self._name(cidr), {**spec, "strictAffinity": False})

    def put_affinity(self, node: str, cidr: str) -> None:
        labels = {
            "projectcalico.org/affinity-type": "host",
            "projectcalico.org/hostname-hash": base64.b32encode(hashlib.sha3_256(node.encode()).digest())
            .decode()
            .rstrip("="),
            "projectcalico.org/ip-version": str(ipaddress.ip_network(cidr).version),
        }
        deleted: Any = False if self.group == NATIVE_GROUP else "false"
        spec = {"cidr": cidr, "deleted": deleted, "node": node, "state": "confirmed", "type": "host"}
        self._put("blockaffinities", "BlockAffinity", f"{node}-{self._name(cidr)}", spec, labels)

    def put_handle(self, handle: str, record: JSON | None) -> None:
        if record is None:
            self._remove("ipamhandles", handle.lower())
        else:
            self._put("ipamhandles", "IPAMHandle", handle.lower(), {**record, "handleID": handle})

    def _annotate(self, container: Container, annotations: JSON) -> None:
        path = f"/api/v1/namespaces/{container.namespace}/pods/{container.pod}/status"
        body = {"metadata": {"annotations": {POD + name: value for name, value in annotations.items()}}}
        self.kube.request("PATCH", path, body, content_type="application/merge-patch+json")

    def put_endpoint(self, container: Container, veth: str, mac: str, addresses: list[str]) -> None:
        self._annotate(container, {"containerID": container.id, "podIP": addresses[0], "podIPs": ",".join(addresses)})

    def remove_endpoint(self, container: Container) -> None:
        pod = self.kube.read_pod(container.namespace, container.pod)
        if pod["metadata"].get("annotations", {}).get(POD + "containerID") == container.id:
            self._annotate(container, {"podIP": "", "podIPs": ""})


# -- the plugin -------------------------------------------------------------------------------------------------------


@dataclass
class Upstream:
    """The plugin on one node. ``pools``: CIDR and block size, one per family."""

    records: Records
    host: Namespace
    pools: list[tuple[str, int]]
    borrowed: list[str] = field(default_factory=list)

    def add(self, container: Container, pod: Namespace) -> list[str]:
        """The addresses, one of every pool."""
        addresses = [self._take(container, pool, size) for pool, size in self.pools]
        networks = [f"{a}/{ipaddress.ip_address(a).max_prefixlen}" for a in addresses]
        mac = self._make_interface(container.veth, pod, networks)
        self.records.put_endpoint(container, container.veth, mac, networks)
        return networks

    def delete(self, container: Container, pod: Namespace | None) -> None:
        """Whoever has added it; by its handle, as upstream does."""
        self.records.remove_endpoint(container)
        if pod is not None and pod.link("eth0") is not None:
            pod.do("link", "del", "eth0")
        handle = self.records.handle(container.handle)
        if handle is None:
            return
        blocks = self.records.blocks()
        for cidr in handle["block"]:
            block, freed = release(blocks[cidr], container.handle)
            assert freed == handle["block"][cidr], (container, handle, blocks[cidr])
            gone = not block["affinity"] and not block["attributes"]
            self.records.put_block(cidr, None if gone else block)
        self.records.put_handle(container.handle, None)

    def _take(self, container: Container, pool: str, size: int) -> str:
        blocks = self.records.blocks()
        cidr, block = self._find(container.node, blocks, pool, size)
        now_ns = time.time_ns()
        secondary = {"node": container.node, "timestamp": time_text(now_ns)}
        if container.pod:
            secondary = {"namespace": container.namespace, "pod": container.pod, **secondary}
        handle = self.records.handle(container.handle) or {"block": {}, "deleted": False}
        handle["block"][cidr] = handle["block"].get(cidr, 0) + 1
        self.records.put_handle(container.handle, handle)
        block, address = allocate(block, container.handle, secondary)
        self.records.put_block(cidr, block)
        return address

    def _find(self, node: str, blocks: dict[str, JSON], pool: str, size: int) -> tuple[str, JSON]:
        """The node's own block with room, else a new one, else somebody else's."""
        network = ipaddress.ip_network(pool)
        room = [block for block in blocks.values() if block["unallocated"] and _within(block["cidr"], network)]
        for block in room:
            if block["affinity"] == f"host:{node}":
                return block["cidr"], block
        for free in network.subnets(new_prefix=size):
            if str(free) not in blocks:
                self.records.put_affinity(node, str(free))
                return str(free), new_block(str(free), node, time.time_ns())
        self.borrowed.append(room[0]["cidr"])
        return room[0]["cidr"], room[0]

    def _make_interface(self, veth: str, pod: Namespace, networks: list[str]) -> str:
        """The MAC of the pod's side."""
        if self.host.link(veth) is not None:
            self.host.do("link", "del", veth)
        self.host.do(
            "link", "add", veth, "address", HOST_MAC, "type", "veth", "peer", "name", "eth0", "netns", pod.name
        )
        self.host.set_sysctl(f"ipv4/conf/{veth}/proxy_arp", "1")
        self.host.do("link", "set", veth, "up")
        pod.do("link", "set", "eth0", "up")
        for network in networks:
            family = ["-6"] if ":" in network else ["-4"]
            pod.do(*family, "addr", "add", network, "dev", "eth0", *(["nodad"] if ":" in network else []))
            self.host.do(
                *family, "route", "replace", network, "dev", veth, *([] if ":" in network else ["scope", "link"])
            )
            if ":" in network:
                pod.do("-6", "route", "add", "default", "via", GATEWAY6, "dev", "eth0")
            else:
                pod.do("route", "add", GATEWAY, "dev", "eth0", "scope", "link")
                pod.do("route", "add", "default", "via", GATEWAY, "dev", "eth0")
        link = pod.link("eth0")
        assert link is not None
        return str(link["address"])


def _within(cidr: str, pool: Any) -> bool:
    network = ipaddress.ip_network(cidr)
    return bool(network.version == pool.version and network.subnet_of(pool))
