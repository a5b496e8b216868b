"""A kernel that never answers: each netlink socket, pyroute2's and ours, ends its wait with the deadline.

The sockets are real ones; a filter of theirs drops whatever the kernel sends.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pyroute2.netns
import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError
from cni_calico.kernel.filter import ipsets
from cni_calico.kernel.filter.ipsets import read_ipsets, remove_ipset
from cni_calico.kernel.netlink import links
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.kernel.netlink.pyroute import iproute
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.tunnels import apply_vteps, change_tunnel, create_tunnel, read_tunnels, read_vteps, remove_tunnel
from cni_calico.model.host import ForwardingEntry
from tests.deadlines import soon
from tests.netns.namespaces import Namespace, namespace
from tests.netns.startups import VXLAN_DEVICE, add_card

pytestmark = pytest.mark.netns

NAME = "vxlan.calico"
ENTRY = ForwardingEntry(NAME, "66:00:00:00:00:02", ip_address("10.0.0.2"))
_SO_ATTACH_FILTER, _RETURN = 26, 0x06  # linux/filter.h
CALLS: dict[str, Callable[[Deadline], object]] = {
    "make a device": lambda deadline: create_tunnel(VXLAN_DEVICE, deadline),
    "change a device": lambda deadline: change_tunnel(VXLAN_DEVICE, deadline),
    "remove a device": lambda deadline: remove_tunnel(NAME, deadline),
    "read its entries": lambda deadline: read_vteps([NAME], deadline),
    "change its entries": lambda deadline: apply_vteps(((), ()), ((ENTRY,), ()), deadline),
}


@pytest.fixture
def silent_host() -> Iterator[Namespace]:
    with namespace("silent") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        yield ns


def deafen(made: Any) -> None:
    """Drop everything that is sent to a socket."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, 0))
    made.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(drop_all)))


@contextmanager
def deaf_library() -> Iterator[list[Any]]:
    """Sockets that the library makes get no answers; yields them."""
    real, made = pyroute2.netns.create_socket, []

    def create(*arguments: Any, **options: Any) -> Any:
        made.append(real(*arguments, **options))
        deafen(made[-1])
        return made[-1]

    pyroute2.netns.create_socket = create
    try:
        yield made
    finally:
        pyroute2.netns.create_socket = real


def _unanswered(what: str) -> tuple[str, int]:
    """(what is said; how many sockets were asked)."""
    if what != "make a device":
        create_tunnel(VXLAN_DEVICE, soon())
    if what == "change a device":
        change_tunnel(replace(VXLAN_DEVICE, mtu=1300), soon())
    with deaf_library() as made:
        try:
            CALLS[what](Deadline.after(0.2))
        except DeadlineExceeded as e:
            return str(e), len(made)
    return "", len(made)


@pytest.mark.parametrize("what", CALLS)
def test_a_call_of_the_librarys_ends_in_time(silent_host: Namespace, what: str) -> None:
    said, sockets = silent_host.call(_unanswered, what)
    assert said.endswith(": the kernel did not answer in time") and sockets == 1


class Deaf(Nfnetlink):
    def __init__(self) -> None:
        super().__init__()
        deafen(self._socket)


def _sets() -> list[str]:
    heard, there, said = ipsets.Nfnetlink, ipsets._MODULE, []
    ipsets.Nfnetlink, ipsets._MODULE = Deaf, "/"
    try:
        for ask in (read_ipsets, lambda deadline: remove_ipset("cali40s", deadline)):
            with pytest.raises(DeadlineExceeded) as caught:
                ask(Deadline.after(0.2))
            said.append(str(caught.value))
    finally:
        ipsets.Nfnetlink, ipsets._MODULE = heard, there
    return said


def test_a_call_for_ip_sets_ends_in_time(silent_host: Namespace) -> None:
    assert silent_host.call(read_ipsets, soon()) == []
    assert silent_host.call(_sets) == [
        f"cannot {doing}: the kernel did not answer in time" for doing in ("read IP sets", "remove IP set cali40s")
    ]


def _asked_again() -> tuple[list[str], list[bool]]:
    """The names of the links that a second call finds; whether each socket was open then."""
    with iproute() as kernel:
        with deaf_library() as made:
            for _ in range(2):
                with pytest.raises(DeadlineExceeded):
                    kernel.call("list links", lambda ip: ip.link("dump"), Deadline.after(0.2))
        still_open = [one.fileno() != -1 for one in made]
        found = kernel.call("list links", lambda ip: ip.link("dump"), soon())
    return [message.get_attr("IFLA_IFNAME") for message in found], still_open


def test_the_next_call_has_a_fresh_socket(silent_host: Namespace) -> None:
    names, still_open = silent_host.call(_asked_again)
    assert set(names) >= {"lo", "eth0"}
    assert still_open == [False, False]


def _made_all_the_same() -> tuple[str, bool]:
    """What an agent does: it says what failed, and looks at the kernel again."""
    with deaf_library(), pytest.raises(DeadlineExceeded) as caught:
        create_tunnel(VXLAN_DEVICE, Deadline.after(0.2))
    there = NAME in read_tunnels([NAME], soon())
    change_tunnel(VXLAN_DEVICE, soon())
    return str(caught.value), there and read_tunnels([NAME], soon()) == {NAME: VXLAN_DEVICE}


def test_what_was_done_without_an_answer_is_found(silent_host: Namespace) -> None:
    assert silent_host.call(_made_all_the_same) == (f"cannot make {NAME}: the kernel did not answer in time", True)


def _ours() -> list[str]:
    said = []
    for ask in (
        lambda rtnl, deadline: rtnl.dump(links.list_links(), deadline),
        lambda rtnl, deadline: rtnl.one(links.get_link("lo"), deadline),
        lambda rtnl, deadline: rtnl.one(links.set_link(1, "lo", up=True), deadline),
    ):
        with Rtnl() as rtnl:
            deafen(rtnl._socket)
            with pytest.raises(DeadlineExceeded) as caught:
                ask(rtnl, Deadline.after(0.2))
            said.append(str(caught.value))
    return said


def test_a_call_of_ours_ends_in_time(silent_host: Namespace) -> None:
    assert silent_host.call(_ours) == [
        f"cannot {doing}: the kernel did not answer in time"
        for doing in ("list interfaces", "read interface lo", "set interface lo")
    ]


def test_without_descriptors_the_error_is_one_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("asyncio.new_event_loop", fail)
    with pytest.raises(KernelError, match="Too many open files"):
        iproute()
