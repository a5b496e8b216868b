"""WireGuard devices: made, read, changed, removed.

Rule: a device is found by its name, and nothing that is not WireGuard is ever taken for one. A device outside of the
kernel (an interface of kind tun whose program listens at a socket of its name) is read, changed and removed likewise,
but only whoever starts the program can make it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from errno import EEXIST, ENODEV, EOPNOTSUPP

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError, LinkGone
from cni_calico.kernel.netlink import wireguard as messages
from cni_calico.kernel.netlink.addresses import add_address, decode_address, delete_address, list_addresses
from cni_calico.kernel.netlink.generic import GenericNetlink
from cni_calico.kernel.netlink.links import (
    Link,
    create_wireguard,
    decode_link,
    delete_link,
    get_link,
    set_link,
)
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.wireguard import uapi
from cni_calico.model.resources import Address
from cni_calico.model.wireguard import (
    DEVICE_KINDS,
    KEY_BYTES,
    PrivateKey,
    WireguardChange,
    WireguardDevice,
    WireguardPeer,
)

KIND, OUTSIDE_KIND = DEVICE_KINDS
SOCKETS = "/var/run/wireguard"
_TEXT_MAX, _AT_ONCE = 64 << 20, 65536


def make_private_key() -> PrivateKey:
    """The kernel, and every other implementation, clamps it."""
    return PrivateKey(os.urandom(KEY_BYTES))


def _as_it_is(peer: WireguardPeer) -> WireguardPeer:
    return peer


def read_device(
    name: str, deadline: Deadline, share: Callable[[WireguardPeer], WireguardPeer] = _as_it_is
) -> WireguardDevice | None:
    """None if there is no such interface. ``share``: what is kept of each peer, an equal one. Raises KernelError:
    EEXIST for an interface that is not WireGuard's.
    """
    link = _find(name, deadline)
    if link is None:
        return None
    if link.kind == OUTSIDE_KIND:
        return _talk(name, uapi.GET, f"read {name}", deadline, share)
    with GenericNetlink() as kernel:
        family = kernel.family(messages.FAMILY, deadline)
        return messages.decode_device(_taken(kernel.dump(messages.list_device(family, name), deadline)), share)


def _taken(payloads: list[bytes]) -> Iterator[bytes]:
    """Each is released when the next one is wanted."""
    payloads.reverse()
    while payloads:
        yield payloads.pop()


def is_wireguard(name: str, deadline: Deadline) -> bool:
    """Not for one that has gone, or that cannot be asked for."""
    try:
        return _find(name, deadline) is not None
    except KernelError:
        return False


def _find(name: str, deadline: Deadline) -> Link | None:
    with Rtnl() as rtnl:
        try:
            link = decode_link(rtnl.one(get_link(name), deadline))
        except LinkGone:
            return None
    if link.kind != KIND and not (link.kind == OUTSIDE_KIND and os.path.exists(f"{SOCKETS}/{name}.sock")):
        kind = f"of kind {link.kind}" if link.kind else "a device of its own"
        raise KernelError(f"cannot use {name}: it is {kind} and not WireGuard's; it is left as it is", errno=EEXIST)
    return link


def ensure_link(name: str, mtu: int, addresses: Sequence[Address] | None, deadline: Deadline) -> list[str]:
    """The interface, up, with this MTU and exactly these addresses (link-local ones aside; None: those that it has);
    returns what was done.

    Raises KernelError: EEXIST as above, EOPNOTSUPP where the kernel has no WireGuard.
    """
    done = []
    with Rtnl() as rtnl:
        link = _find(name, deadline)
        if link is None:
            rtnl.one(create_wireguard(name, mtu), deadline)
            done.append(f"made {name}")
            link = decode_link(rtnl.one(get_link(name), deadline))
        index = link.ifindex
        held = [decode_address(one) for one in rtnl.dump(list_addresses(index), deadline)]
        there = {one.address for one in held if one.ifindex == index and not one.address.is_link_local}
        if link.mtu != mtu:
            rtnl.one(set_link(index, name, mtu=mtu), deadline)
            done.append(f"set the MTU of {name} to {mtu}")
        for address in addresses or ():
            if address not in there:
                rtnl.one(add_address(index, name, address), deadline)
                done.append(f"added address {address} to {name}")
        for address in there.difference(there if addresses is None else addresses):
            rtnl.one(delete_address(index, name, address), deadline)
            done.append(f"removed address {address} from {name}")
        if not link.up:
            rtnl.one(set_link(index, name, up=True), deadline)
    return done


def change_device(name: str, change: WireguardChange, deadline: Deadline) -> None:
    """Raises KernelError: ENODEV if it is gone."""
    link = _find(name, deadline)
    if link is None:
        raise LinkGone(f"cannot set {name}: it is gone", errno=ENODEV)
    if link.kind == OUTSIDE_KIND:
        faults.before(messages.WIREGUARD_SET)
        _talk(name, uapi.render_set(change), f"set {name}", deadline)
        faults.after(messages.WIREGUARD_SET)
        return
    with GenericNetlink() as kernel:
        for request in messages.set_device(kernel.family(messages.FAMILY, deadline), name, change):
            kernel.one(request, deadline)


def remove_device(name: str, deadline: Deadline) -> bool:
    """Whether there was one. Raises KernelError."""
    link = _find(name, deadline)
    if link is None:
        return False
    with Rtnl() as rtnl:
        try:
            rtnl.one(delete_link(link.ifindex, name), deadline)
        except LinkGone:
            return False
    return True


def set_threaded(name: str) -> str:
    """Let the kernel decrypt on several processors; returns why not, "" if it does."""
    path = f"/sys/class/net/{name}/threaded"
    try:
        with open(path, "r+") as file:
            if file.read().strip() != "1":
                file.write("1")
    except OSError as e:
        return f"cannot set {path}: {e.strerror}"
    return ""


def is_unsupported(error: KernelError) -> bool:
    """Whether the kernel has no WireGuard, and no module of it."""
    return error.errno == EOPNOTSUPP


def _talk(
    name: str,
    message: bytes,
    doing: str,
    deadline: Deadline,
    share: Callable[[WireguardPeer], WireguardPeer] = _as_it_is,
) -> WireguardDevice:
    """What the program answers. Raises KernelError, DeadlineExceeded."""
    left_s = deadline.require(doing)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as talking:
            talking.settimeout(left_s)
            talking.connect(f"{SOCKETS}/{name}.sock")
            talking.sendall(message)
            return uapi.parse_answer(_lines(talking, doing, deadline), doing, share)
    except TimeoutError as e:
        raise DeadlineExceeded(f"cannot {doing}: its program did not answer in time") from e
    except OSError as e:
        raise KernelError(f"cannot {doing}: its program does not answer: {e.strerror or e}", errno=e.errno or 0) from e


def _lines(talking: socket.socket, doing: str, deadline: Deadline) -> Iterator[str]:
    """Up to the empty one that ends an answer; a line is no longer than what may come at once."""
    rest, length = b"", 0
    while length < _TEXT_MAX:
        part = talking.recv(_AT_ONCE)
        length += len(part)
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line:
                return
            yield line.decode(errors="replace")
        if not part or len(rest) > _AT_ONCE:
            break
        talking.settimeout(deadline.require(doing))
    yield rest.decode(errors="replace")
