"""Published ports: from outside, from the host, from other containers, from itself; and policies decide."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.port_table import PortForward, apply_legacy
from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.docker.machine import PATH, Machine
from tests.netns.namespaces import Namespace, namespace
from tests.netns.policing.lab import NODE

pytestmark = [pytest.mark.netns, pytest.mark.docker]

LISTEN = ("sh", "-c", "while :; do nc -l -p 80 -e echo answered; done")
OUTSIDE, HOST = "198.51.100.2", "198.51.100.1"
KNOCK = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 2) as s:
        print(s.recv(100).decode())
except OSError as e:
    print(e)
"""


@contextmanager
def outside(box: Machine) -> Iterator[Namespace]:
    """Another host, on a network of the machine's."""
    with namespace("out") as other:
        box.lab.host.do("link", "add", "lan", "type", "veth", "peer", "name", "lan0", "netns", other.name)
        box.lab.host.do("addr", "add", f"{HOST}/24", "dev", "lan")
        box.lab.host.do("link", "set", "lan", "up")
        other.do("addr", "add", f"{OUTSIDE}/24", "dev", "lan0")
        other.do("link", "set", "lan0", "up")
        yield other
        box.lab.host.do("link", "delete", "lan")


def knock(ns: Namespace, address: str, port: int) -> bool:
    return "answered" in ns.run("/usr/bin/python3", "-c", KNOCK, address, str(port)).stdout


def knock_from(box: Machine, container: str, address: str, port: int) -> bool:
    return "answered" in box.docker("exec", container, "nc", "-w", "2", address, str(port), check=False).stdout


def explained(box: Machine) -> str:
    environ = {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(box.root / "store.db"), "PATH": PATH}
    variables = [f"{name}={value}" for name, value in {**environ, "PYTHONPATH": str(ROOT), "NODENAME": NODE}.items()]
    asked = ("policy", "explain", "--from", OUTSIDE, "--to", f"{HOST}:8080")
    done = box.lab.host.run("env", *variables, sys.executable, "-m", "cni_calico.ctl.main", *asked, check=False)
    return done.stdout + done.stderr


def published(box: Machine, name: str) -> list[dict[str, Any]]:
    return list(box.records()[name]["spec"].get("ports") or ())


def allow_from(box: Machine, net: str) -> None:
    rules = [{"action": "Allow", "protocol": "TCP", "source": {"nets": [net]}, "destination": {"ports": [80]}}]
    spec = {"selector": "cni-calico.io/container == 'server'", "order": 1, "types": ["Ingress"], "ingress": rules}
    box.lab.put("GlobalNetworkPolicy", "allow", spec)


SERVE = """
import socket
with socket.create_server(("0.0.0.0", 80)) as listener:
    print("ready", flush=True)
    while True:
        connection, _ = listener.accept()
        connection.sendall(b"answered")
        connection.close()
"""


def forward(*forwards: PortForward) -> None:
    """As where the kernel has no nf_tables."""
    apply_legacy(forwards, 4, Deadline.after(60))


def test_legacy_iptables_forwards_too() -> None:
    with namespace("ports") as host, namespace("served") as served, namespace("outside") as other:
        for name, ns, address in (("calip", served, "10.65.0.7"), ("lan", other, OUTSIDE)):
            host.do("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", ns.name)
            host.do("link", "set", name, "up")
            ns.do("addr", "add", f"{address}/24", "dev", "eth0")
            ns.do("link", "set", "eth0", "up")
        host.do("addr", "add", "10.65.0.1/24", "dev", "calip")
        host.do("addr", "add", f"{HOST}/24", "dev", "lan")
        served.do("route", "add", "default", "via", "10.65.0.1")
        host.set_sysctl("ipv4/ip_forward", "1")
        host.set_sysctl("ipv4/conf/calip/route_localnet", "1")
        argv = ["nsenter", f"--net={served.path}", sys.executable, "-c", SERVE]
        with subprocess.Popen(argv, stdout=subprocess.PIPE) as server, ExitStack() as stack:
            stack.callback(server.kill)
            assert server.stdout is not None and server.stdout.readline() == b"ready\n"
            assert not knock(other, HOST, 8080)
            host.call(forward, PortForward("tcp", 8080, ip_address("10.65.0.7"), 80))
            assert knock(other, HOST, 8080) and knock(host, HOST, 8080) and knock(host, "127.0.0.1", 8080)
            assert knock(served, HOST, 8080), "and by itself"
            host.call(forward)
            assert not knock(other, HOST, 8080)
        assert "calico-published" not in host.run("iptables-legacy-save").stdout


def test_a_published_port_is_reached_from_everywhere_that_policies_allow(box: Machine) -> None:
    box.network("web")
    box.run("server", "web", "-p", "8080:80", "-p", "80", command=LISTEN)
    box.run("client", "web")
    by_port = {port["hostPort"]: port for port in published(box, "server")}
    (chosen,) = by_port.keys() - {8080}
    assert by_port[8080] == {"name": "tcp-8080", "port": 80, "protocol": "TCP", "hostPort": 8080}
    with outside(box) as other:
        assert knock(other, HOST, 8080) and knock(other, HOST, chosen)
        assert knock(box.lab.host, "127.0.0.1", 8080) and knock(box.lab.host, HOST, 8080)
        assert knock_from(box, "client", HOST, 8080) and knock_from(box, "server", HOST, 8080), "and by itself"
        allow_from(box, f"{OUTSIDE}/32")
        box.lab.start()
        box.lab.until_in_force()
        until(lambda: not knock_from(box, "client", HOST, 8080), "a policy decides, by the container's port")
        assert knock(other, HOST, 8080), "and by the client's own address"
        assert "server" in explained(box) and "Allow" in explained(box)
        allow_from(box, "203.0.113.0/24")
        until(lambda: not knock(other, HOST, 8080), "another policy")
        box.lab.remove("GlobalNetworkPolicy", "allow")
        until(lambda: knock(other, HOST, 8080), "no policy")
        box.lab.host.run("nft", "delete table ip calico-published")
        until(lambda: knock(other, HOST, 8080), "another program has removed it, and it is back")
        box.end("driver", signal.SIGKILL)
        assert knock(other, HOST, 8080), "without the driver"
        box.start_driver()
        assert knock(other, HOST, 8080)
        assert "in use" in box.refused("run", "--network", "web", "-p", "8080:80", "box", "true"), "it is still taken"
        box.docker("network", "create", "aa")
        box.docker("network", "connect", "aa", "server")
        until(lambda: knock(other, HOST, 8080), "wherever its default route is now")
    box.docker("rm", "-f", "server")
    tables = json.loads(box.lab.host.run("nft", "-j", "list", "tables").stdout)["nftables"]
    assert "calico-published" not in {item["table"]["name"] for item in tables if "table" in item}
    box.docker("rm", "-f", "client")
    box.docker("network", "rm", "aa")


def test_a_policy_before_translation_sees_the_hosts_port(box: Machine) -> None:
    """And by the client's address; one of the container's sees the container's port."""
    box.network("web")
    box.run("server", "web", "-p", "8080:80", command=LISTEN)

    def before_translation(port: int) -> None:
        deny = {"action": "Deny", "protocol": "TCP", "destination": {"ports": [port]}}
        spec = {"preDNAT": True, "applyOnForward": True, "types": ["Ingress"], "selector": "place == 'outside'"}
        box.lab.put("GlobalNetworkPolicy", "outside", {**spec, "order": 1, "ingress": [deny, {"action": "Allow"}]})

    with outside(box) as other:
        profiles = ["projectcalico-default-allow"]
        spec = {"node": NODE, "interfaceName": "lan", "profiles": profiles}
        box.lab.put("HostEndpoint", "lan", spec, place="outside")
        before_translation(80)
        box.lab.start()
        box.lab.until_in_force()
        until(lambda: knock(other, HOST, 8080), "the container's port is nothing to it")
        before_translation(8080)
        until(lambda: not knock(other, HOST, 8080), "the host's port is")
        assert knock(box.lab.host, "127.0.0.1", 8080), "which this host does not come by"
        before_translation(80)
        until(lambda: knock(other, HOST, 8080), "allowed again")
        allow_from(box, "203.0.113.0/24")
        until(lambda: not knock(other, HOST, 8080), "and then the container's policy decides, by its port")
    for kind, name in (("HostEndpoint", "lan"), ("GlobalNetworkPolicy", "outside"), ("GlobalNetworkPolicy", "allow")):
        box.lab.remove(kind, name)
