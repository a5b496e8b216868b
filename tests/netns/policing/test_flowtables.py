"""Flowtables that another program set up: new connections are judged; those that are offloaded pass every table."""

from __future__ import annotations

import socket

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, DENY_B, Lab, socket_in

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("flowtables")]

PORT, OTHER = 80, 81
THEIRS = """
table ip theirs {
  flowtable fast { hook ingress priority 0; devices = { calia, calib }; }
  chain forward { type filter hook forward priority 100; meta l4proto tcp ct state established flow add @fast; }
}
"""
ALLOW = {**ALLOW_80, "ingress": [{**ALLOW_80["ingress"][0], "protocol": "TCP"}]}
DROPPED_S = 2.0


@pytest.fixture
def offloading(two_workloads: Lab) -> Lab:
    two_workloads.put("GlobalNetworkPolicy", "allow", ALLOW)
    two_workloads.start()
    two_workloads.until_in_force(policies=1)
    two_workloads.host.run("sh", "-c", f"nft '{THEIRS}'")
    return two_workloads


def server_at(lab: Lab, port: int) -> socket.socket:
    b = lab.workloads["b"]
    server = socket_in(b.ns, socket.AF_INET, socket.SOCK_STREAM)
    server.bind((b.address(), port))
    server.listen()
    server.settimeout(20)
    return server


def connect(lab: Lab, port: int, timeout_s: float = 20) -> socket.socket:
    made = socket_in(lab.workloads["a"].ns, socket.AF_INET, socket.SOCK_STREAM)
    made.settimeout(timeout_s)
    try:
        made.connect((lab.workloads["b"].address(), port))
    except OSError:
        made.close()
        raise
    return made


def test_new_connections_are_judged_and_offloaded_ones_stay(offloading: Lab) -> None:
    with server_at(offloading, PORT) as server, server_at(offloading, OTHER), connect(offloading, PORT) as client:
        served, _ = server.accept()
        with served:
            served.settimeout(20)

            def is_offloaded() -> bool:
                client.sendall(b"x")
                served.recv(1)
                return "OFFLOAD" in offloading.host.run("conntrack", "-L").stdout

            until(is_offloaded, "the connection is offloaded", 30)
            with pytest.raises(TimeoutError):
                connect(offloading, OTHER, DROPPED_S)  # never allowed
            offloading.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
            offloading.until_in_force(policies=2)
            with pytest.raises(TimeoutError):
                connect(offloading, PORT, DROPPED_S)  # no longer allowed
            client.sendall(b"still")  # docs/policy.md: a change does not cut it
            assert served.recv(10) == b"still"
