"""Every parser of something that somebody else wrote: frames, answers, documents, files, arguments.

Rule: whatever the bytes are, a parser gives a value or one of its own errors, within time and memory that their size
bounds; anything else is a defect. Each target has an example of what it is meant for, from which mutations start.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cni_calico.cni.environment import parse_args, parse_call
from cni_calico.cni.netconf import parse_json, parse_netconf
from cni_calico.cni.result import parse_result
from cni_calico.ctl.input.manifests import parse_documents
from cni_calico.datastore import http
from cni_calico.datastore.encoding import decode_document
from cni_calico.datastore.kubernetes import login
from cni_calico.datastore.kubernetes.watch import _parse as parse_event
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.files import Files
from cni_calico.model.documents import codec
from cni_calico.model.keys import BlockKey, HandleKey, Key, ResourceKey
from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.status import file as status
from cni_calico.plugin import owed
from cni_calico.plugin.annotations import parse_pod_annotations
from cni_calico.plugin.call import protocol
from tests.hostile.tenants import TENANTS, Refusals

NETCONF = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "calico",
    "datastore_type": "local",
    "datastore_path": "/somewhere",
    "mtu": 1450,
    "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "ipv4_pools": ["10.0.0.0/16", "pool"]},
    "prevResult": {"ips": [{"address": "10.0.0.1/32", "interface": 0}], "interfaces": [{"name": "eth0"}]},
    "cni.dev/valid-attachments": [{"containerID": "c", "ifname": "eth0"}],
    "policy": {"type": "k8s"},
    "kubernetes": {"kubeconfig": "/k"},
}
INTENT = {
    "format": 1,
    "network": "net",
    "container_id": "c",
    "ifname": "eth0",
    "handle_ids": ["net.c"],
    "endpoint": ["default", "n1-cni-c-eth0"],
    "datastore": {"type": "local", "path": "/p", "etcd_endpoints": [], "kubernetes": {}},
    "recorded": "2026-11-20T12:00:00Z",
    "addresses": ["10.0.0.1"],
    "uids": ["u"],
}
BLOCK = {
    "cidr": "10.0.0.0/30",
    "affinity": "host:n",
    "allocations": [0, None, None, None],
    "unallocated": [1, 2, 3],
    "attributes": [{"handle_id": "net.c", "secondary": {"node": "n", "interface": "eth0"}}],
    "sequenceNumber": 7,
    "sequenceNumberForAllocation": {"0": 3},
}
ENDPOINT = {
    "metadata": {"name": "n1-cni-c-eth0", "namespace": "default", "uid": "u"},
    "spec": {
        "orchestrator": "cni",
        "node": "n1",
        "containerID": "c",
        "endpoint": "eth0",
        "ipNetworks": ["10.0.0.1/32"],
    },
}
KUBECONFIG = b"""apiVersion: v1
clusters: [{name: c, cluster: {server: "https://h:6443", certificate-authority-data: aGk=}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""
ANNOTATIONS = (
    *("ipAddrs", "ipAddrsNoIpam", "ipv4pools", "ipv6pools", "hwAddr", "ipFamilies", "floatingIPs"),
    *("allowedSourcePrefixes",),
)
HTTP = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n5\r\nhello\r\n0\r\n\r\n"


@dataclass(frozen=True)
class Target:
    """``parse`` raises nothing but ``errors``, whatever it is given."""

    example: bytes
    parse: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = (CalicoError,)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _frame(data: bytes) -> None:
    protocol.parse_header(data[: protocol.HEADER_BYTES])
    fields = protocol.parse_fields(data[protocol.HEADER_BYTES :])
    protocol.parse_request(fields)


def _answer(data: bytes) -> None:
    protocol.parse_answer(protocol.parse_fields(data[protocol.HEADER_BYTES :]))


def _netconf(data: bytes) -> None:
    conf = parse_netconf(parse_json(data), {})
    parse_result(conf.prev_result or {})


def _environment(data: bytes) -> None:
    pairs = (pair.partition("=") for pair in data.decode("utf-8", "surrogateescape").split("\0"))
    parse_call({name: value for name, _, value in pairs}, b"{}")


def _document(key: Key, data: bytes) -> None:
    try:
        document = decode_document(data)
    except ValueError:
        return  # the datastore names the record
    codec.decode(key, document)


def _answered(data: bytes, read: Callable[[http.Connection, Deadline], object]) -> None:
    """``read`` from a server that answers so and closes the connection."""
    theirs, ours = socket.socketpair()
    with theirs, ours:
        theirs.setblocking(False)
        try:
            theirs.sendall(data)
        except BlockingIOError:
            return  # more than fits: the next input
        theirs.shutdown(socket.SHUT_WR)
        connection = http.Connection.__new__(http.Connection)
        connection._buffer, connection._socket, connection.reusable = b"", ours, True
        read(connection, Deadline.after(5))


def _http(data: bytes) -> None:
    def read(connection: http.Connection, deadline: Deadline) -> None:
        found, headers = connection.read_head(deadline)
        body = connection.read_body(found, headers, deadline)
        assert len(body) <= len(data), "more than was sent"

    _answered(data, read)


def _in_file(parse: Callable[[Path], object], data: bytes) -> None:
    with TemporaryDirectory(prefix="cct-hostile-") as directory:
        path = Path(directory, "state", "cni", "pending-del", "x.json")
        path.parent.mkdir(parents=True)
        path.write_bytes(data)
        parse(path)


def _owed(path: Path) -> None:
    owed.read(Files(), str(path.parents[2]), path.name)


def _status(path: Path) -> None:
    path.rename(status.path_in(str(path.parent)))
    fields = status.read_status(str(path.parent))
    status.why_not_live(fields, 1.0)
    status.why_not_ready(fields, 1.0)


def _annotations(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    conf = parse_netconf(NETCONF, {})
    for name in (
        "ipAddrs",
        "ipAddrsNoIpam",
        "ipv4pools",
        "hwAddr",
        "ipFamilies",
        "allowedSourcePrefixes",
        "floatingIPs",
    ):
        pod = {"metadata": {"annotations": {f"cni.projectcalico.org/{name}": text}}}
        try:
            parse_pod_annotations(pod, None, conf)
        except CalicoError:
            continue


def _text(parse: Callable[[str], object], data: bytes) -> None:
    parse(data.decode("utf-8", "replace"))


TARGETS: dict[str, Target] = {
    "a request's frame": Target(
        protocol.frame(protocol.request_fields("calico", [("A", "b")], b"{}", [b"netns"])),
        _frame,
        (protocol.Malformed,),
    ),
    "an answer's frame": Target(protocol.frame(protocol.answer_fields(0, b"{}")), _answer, (protocol.Malformed,)),
    "a network configuration": Target(_json(NETCONF), _netconf),
    "the environment of a call": Target(
        b"CNI_COMMAND=ADD\0CNI_CONTAINERID=c\0CNI_NETNS=/n\0CNI_IFNAME=eth0\0CNI_PATH=/b\0CNI_ARGS=K8S_POD_NAME=p;IP=10.0.0.1",
        _environment,
    ),
    "CNI_ARGS": Target(b"IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n;IP=10.0.0.1", partial(_text, parse_args)),
    "a block": Target(_json(BLOCK), partial(_document, BlockKey(ip_network("10.0.0.0/30")))),
    "a handle": Target(
        _json({"handleID": "net.c", "block": {"10.0.0.0/30": 1}}), partial(_document, HandleKey("net.c"))
    ),
    "an endpoint": Target(
        _json(ENDPOINT), partial(_document, ResourceKey("WorkloadEndpoint", "n1-cni-c-eth0", "default"))
    ),
    "a pool": Target(
        _json({"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16", "blockSize": 26, "nodeSelector": "all()"}}),
        partial(_document, ResourceKey("IPPool", "p")),
    ),
    "an API server's answer": Target(HTTP, _http, (http.HTTPFailure,)),
    "an event of a watch": Target(
        _json({"type": "ADDED", "object": {"metadata": {"name": "a"}}}), lambda data: parse_event(data, "/pods")
    ),
    "a kubeconfig": Target(KUBECONFIG, lambda data: login.parse_kubeconfig(data, "k")),
    "a manifest": Target(
        b"kind: IPPool\nmetadata: {name: p}\nspec: &s {cidr: 10.0.0.0/16}\na: *s\n---\nb: 1\n",
        partial(_text, partial(parse_documents, source="m")),
    ),
    "a recorded DEL": Target(_json(INTENT), partial(_in_file, _owed)),
    "an agent's status": Target(_json({"time": 1.0, "needs": {"a": True}, "live": 2}), partial(_in_file, _status)),
    "an annotation": Target(b'["10.0.0.1", "pool"]', _annotations),
    "a selector": Target(
        b"a == 'b' && !has(c) || d in {'e', 'f'}", partial(_text, parse_selector), (ValueError, CalicoError)
    ),
    **{
        name: Target(value.encode() if isinstance(value, str) else _json(value), parse, Refusals)
        for name, (value, parse) in TENANTS.items()
    },
}
