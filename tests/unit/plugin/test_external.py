"""What an external data plane is told, and what is taken of its answer."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.cni.dataplane import ExternalDataplane
from cni_calico.cni.environment import parse_call
from cni_calico.cni.netconf import parse_netconf
from cni_calico.deadline import Deadline
from cni_calico.errors import DataplaneFailed
from cni_calico.model.resources import EndpointPort, Metadata, WorkloadEndpoint
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.external import parse_mac, plan_add, plan_routes
from cni_calico.plugin.network.plan import PodPlan

V4, V6 = ip_address("10.0.0.1"), ip_address("fd00::1")


def plan(**changes):
    return PodPlan(**{"host_ifname": "cali1", "pod_ifname": "eth0", "mtu": 1400, "addresses": (V4, V6), **changes})


@pytest.mark.parametrize(
    ("extra", "also_default", "wanted"),
    [
        ((), False, ["0.0.0.0/0", "::/0"]),
        ((), True, ["0.0.0.0/0", "::/0"]),
        (("10.0.0.0/8",), False, ["10.0.0.0/8"]),
        (("10.0.0.0/8", "::/0"), True, ["10.0.0.0/8", "::/0", "0.0.0.0/0"]),
    ],
)
def test_routes(extra, also_default, wanted):
    found = plan_routes(plan(extra_routes=tuple(map(ip_network, extra)), include_default_routes=also_default))
    assert found == wanted
    assert plan_routes(plan(addresses=(V4,))) == ["0.0.0.0/0", "::/0"]


def test_add():
    environ = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c", "CNI_NETNS": "/ns", "CNI_IFNAME": "eth0", "CNI_PATH": "/b"}
    record = WorkloadEndpoint(
        metadata=Metadata(name="node1-k8s-p-eth0", namespace="space", labels={"app": "web"}),
        orchestrator="k8s",
        node="node1",
        endpoint="eth0",
        interface_name="cali1",
        pod="p",
        ports=(EndpointPort("http", 80, "TCP", 8080, "192.0.2.1"), EndpointPort("dns", 53, "UDP")),
    )
    dataplane = ExternalDataplane("/s", {"type": "grpc", "socket": "unix:///s"})
    conf = replace(
        parse_netconf({"cniVersion": "1.0.0", "name": "n", "datastore_type": "local"}, {}), dataplane=dataplane
    )
    services = Services({})
    task = Task(parse_call(environ, b""), conf, services, services.datastore(conf.datastore), Deadline.after(1))
    fields = plan_add(task, plan(), record, {V4: "10.0.0.254"}, {"team": "a"})
    assert fields == {
        "interface_name": "eth0",
        "netns": "/ns",
        "desired_host_interface_name": "cali1",
        "settings": {"allow_ip_forwarding": False, "mtu": 1400},
        "container_ips": [
            {"address": "10.0.0.1/32", "gateway": "10.0.0.254"},
            {"address": "fd00::1/128", "gateway": ""},
        ],
        "container_routes": ["0.0.0.0/0", "::/0"],
        "workload": {
            "name": "node1-k8s-p-eth0",
            "namespace": "space",
            "labels": {"app": "web"},
            "annotations": {"team": "a"},
            "endpoint": "eth0",
            "node": "node1",
            "orchestrator": "k8s",
            "pod": "p",
            "ports": [
                {"name": "http", "protocol": "TCP", "port": 80, "host_port": 8080, "host_ip": "192.0.2.1"},
                {"name": "dns", "protocol": "UDP", "port": 53, "host_port": 0, "host_ip": ""},
            ],
        },
        "dataplane_options": {"type": "grpc", "socket": "unix:///s"},
    }


def test_macs():
    assert parse_mac("02:FE:00:00:00:01") == parse_mac("02-fe-00-00-00-01") == "02:fe:00:00:00:01"
    for text in ("", "02:fe", "02:fe:00:00:00:0g", "02:fe:00:00:00:01:02"):
        with pytest.raises(DataplaneFailed, match="is not a MAC address"):
            parse_mac(text)
