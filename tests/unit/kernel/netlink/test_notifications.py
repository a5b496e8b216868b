"""A socket that hears what happens, and nothing else."""

import os
import socket

import pytest

from cni_calico.kernel.netlink.notifications import listen

LINKS = 1


def test_it_is_bound_and_does_not_block():
    with listen(socket.NETLINK_ROUTE, LINKS, buffer_bytes=1 << 20) as opened:
        assert opened.getsockname()[1] == LINKS
        with pytest.raises(BlockingIOError):
            opened.recv(100)


def test_an_unknown_family_leaves_nothing_open():
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="not supported"):
        listen(200, LINKS)
    assert len(os.listdir("/proc/self/fd")) == before
