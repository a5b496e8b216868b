"""A host that starts again: a container that starts before calico-node, and a packet every millisecond from outside.

Rule: what is forbidden never arrives, and what is allowed arrives in the end. tests/kernels/test_reboots.py has the
same with kernels that start.
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
from tests.e2e.systemd.container import CONTAINER, POLICY, UNIT, send
from tests.e2e.systemd.machine import Machine
from tests.netns.policing.lab import socket_in

pytestmark = [pytest.mark.netns, pytest.mark.bundle, pytest.mark.never_excused]


@contextmanager
def packets(host: Machine) -> Iterator[None]:
    """To both ports, every millisecond, from outside; also while the host is down."""
    ending = threading.Event()
    with socket_in(host.outside, socket.AF_INET, socket.SOCK_DGRAM) as sender:
        thread = threading.Thread(target=send, args=(sender, ending))
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
