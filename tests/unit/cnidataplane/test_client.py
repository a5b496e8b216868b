"""The messages against protoc's own reading of the service, and what is made of a data plane's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from cni_calico.cnidataplane import dataplane_pb2 as ours
from cni_calico.cnidataplane.client import TEXT_MAX, short, target_of

PROTO = Path(__file__).parents[2] / "fakes" / "cni_dataplane.proto"
ADD = {
    "interface_name": "eth0",
    "netns": "/var/run/netns/a",
    "desired_host_interface_name": "cali1",
    "settings": {"allow_ip_forwarding": True, "mtu": 1400},
    "container_ips": [{"address": "10.0.0.1/32", "gateway": "10.0.0.254"}, {"address": "fd00::1/128"}],
    "container_routes": ["0.0.0.0/0", "::/0"],
    "workload": {
        "name": "n",
        "namespace": "ns",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "endpoint": "eth0",
        "node": "node1",
        "orchestrator": "k8s",
        "pod": "p",
        "ports": [{"name": "http", "protocol": "TCP", "port": 80, "host_port": 8080, "host_ip": "1.2.3.4"}],
    },
    "dataplane_options": {"type": "grpc"},
}
DEL = {"interface_name": "eth0", "netns": "", "dataplane_options": {"type": "grpc"}}
ADDED = {"successful": True, "error_message": "e", "host_interface_name": "v", "container_mac": "02:00:00:00:00:01"}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Message classes by name, of the service as it is written down for tests; in a pool of their own."""
    out = tmp_path_factory.mktemp("proto") / "set"
    assert protoc.main(["protoc", f"-I{PROTO.parent}", f"--descriptor_set_out={out}", PROTO.name]) == 0
    files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"cni.{name}"))


@pytest.mark.parametrize(
    ("name", "fields"),
    [("AddRequest", ADD), ("DelRequest", DEL), ("AddReply", ADDED), ("DelReply", {"error_message": "e"})],
)
def test_messages(theirs, name, fields):
    data = getattr(ours, name)(**fields).SerializeToString(deterministic=True)
    assert data == theirs(name)(**fields).SerializeToString(deterministic=True)


def test_a_path_is_escaped():
    assert target_of("/run/a b%41?#.sock") == "unix:/run/a%20b%2541%3F%23.sock"
    assert target_of("/run/ä\udcff") == "unix:/run/%C3%A4%FF"


def test_short():
    assert short("  one\n\ttwo\x00\x1b[1m ") == "one two [1m"
    assert len(short("x" * 5000)) == TEXT_MAX
