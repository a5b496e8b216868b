"""A host that starts again: a container that starts before calico-node, and a packet every millisecond from outside.

Rule: what is forbidden never arrives, and what is allowed arrives in the end. What arrives the container's own packet
filter counts, which is there before its interface.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from tests.deadlines import until
from tests.e2e.systemd.machine import Machine
from tests.netns.policing.lab import socket_in

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.never_excused]

ADDRESS, ALLOWED, FORBIDDEN = "10.65.0.77", 8000, 8001
POLICY = f"""
apiVersion: projectcalico.org/v3
kind: GlobalNetworkPolicy
metadata:
  name: web
spec:
  selector: all()
  types: [Ingress]
  ingress:
    - action: Allow
      protocol: UDP
      destination:
        ports: [{ALLOWED}]
"""
# as a runtime does it that starts containers by itself, and waits for nobody; the interface is there at once
CONTAINER = f"""#!/bin/sh
set -e
ip netns add c1
ip netns exec c1 nft -f - <<'RULES'
table ip seen {{
  chain in {{
    type filter hook prerouting priority -300
    udp dport {ALLOWED} counter
    udp dport {FORBIDDEN} counter
  }}
}}
RULES
export CNI_CONTAINERID=c1 CNI_NETNS=/run/netns/c1 CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin
export CNI_ARGS="IgnoreUnknown=1;IP={ADDRESS}"
sysctl -q net.ipv4.ip_forward=1
python3 -c 'import json; c = json.load(open("/etc/cni/net.d/10-calico.conflist"))
print(json.dumps({{**c["plugins"][0], "name": c["name"], "cniVersion": "1.0.0", "policy_setup_timeout_seconds": 0}}))' |
  CNI_COMMAND=ADD /opt/cni/bin/calico
"""
UNIT = """[Unit]
DefaultDependencies=no
After=local-fs.target calico-boot-table.service
Before=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh /srv/container
[Install]
WantedBy=multi-user.target
"""


@contextmanager
def packets(host: Machine) -> Iterator[None]:
    """To both ports, every millisecond, from outside; also while the host is down."""
    ending = threading.Event()
    with socket_in(host.outside, socket.AF_INET, socket.SOCK_DGRAM) as sender:

        def send() -> None:
            while not ending.wait(0.001):
                for port in (FORBIDDEN, ALLOWED):
                    try:
                        sender.sendto(b"", (ADDRESS, port))
                    except OSError:
                        pass  # there is no way there while the host is down

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            ending.set()
            thread.join()


def arrived(host: Machine) -> tuple[int, int]:
    """(allowed, forbidden) packets since the container started."""
    listed = host.run("ip", "netns", "exec", "c1", "nft", "list", "table", "ip", "seen", check=False).stdout
    counts = [int(count) for count in re.findall(r"counter packets (\d+)", listed)]
    return (counts[0], counts[1]) if len(counts) == 2 else (0, 0)


def has_more(host: Machine, allowed: int) -> bool:
    return arrived(host)[0] > allowed


def prepare(host: Machine) -> None:
    """A policy, and a container that starts with the host."""
    host.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16")
    host.write("/srv/policy.yaml", POLICY)
    host.calicoctl("apply", "-f", "/srv/policy.yaml")
    host.write("/srv/container", CONTAINER)
    host.write("/etc/systemd/system/container.service", UNIT)
    host.run("systemctl", "enable", "container")
    host.run("sync")


@pytest.mark.parametrize(
    "reboots", [1, pytest.param(20, marks=[pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.takes(600)])]
)
def test_nothing_forbidden_arrives_while_the_host_starts(lab_machine: Machine, reboots: int) -> None:
    host = lab_machine
    prepare(host)
    for _ in range(reboots):
        host.end()
        with packets(host):
            host.start()
            until(lambda: arrived(host)[0], "what is allowed arrives", 180, pause_s=0.2)
            until(partial(has_more, host, arrived(host)[0] + 100), "more of it", 180, pause_s=0.2)
            assert arrived(host)[1] == 0
        host.until_up()
        assert arrived(host)[1] == 0
        assert "closed by nftables until calico-node has decided" in host.journal("calico-boot-table")
        assert "the boot table is gone: what may pass is decided" in host.journal()


def test_without_the_boot_table_it_does(lab_machine: Machine) -> None:
    """So the test above can fail: the same container, which does not wait for calico-node."""
    host = lab_machine
    prepare(host)
    host.run("systemctl", "disable", "calico-boot-table")
    host.run("sync")
    host.end()
    with packets(host):
        host.start()
        until(lambda: arrived(host)[1], "what is forbidden arrives", 180, pause_s=0.2)
