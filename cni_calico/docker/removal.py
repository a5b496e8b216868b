"""Takes an endpoint down: closed interface, link with its routes, record, file, addresses; in this order.

Rule: every step tolerates absence, and a file goes when its subject is gone: what cannot be done now is done later,
from the file. Addresses, which have files of their own, are released only when nothing of the endpoint is left, so that
no policy, and no file, meets another container's address.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cni_calico.deadline import Deadline
from cni_calico.docker.context import DockerHost, call_deadline
from cni_calico.docker.former import release_former
from cni_calico.docker.links import remove_link
from cni_calico.docker.records import remove_record
from cni_calico.docker.state import DockerEndpoint
from cni_calico.errors import CalicoError
from cni_calico.model.identity import LIBNETWORK
from cni_calico.plugin.network.host import Host

_LATER_S = 5.0


def leave(host: DockerHost, endpoint: str, deadline: Deadline) -> None:
    """Remove what is in the kernel. Raises KernelError. The caller holds the endpoint's lock."""
    host.ports.withdraw(endpoint, deadline)
    found = host.state.endpoints.get(endpoint)
    if found is not None and found.ports:  # dockerd 29 does not always revoke them
        host.state.endpoints.change(endpoint, ports=[])
    with Host() as kernel:
        remove_link(kernel, endpoint, deadline, former=found is not None and found.former)
    host.gate.forget(endpoint)


def owe(host: DockerHost, endpoint: DockerEndpoint) -> None:
    """It is over, and so are its addresses, which Docker does not release any more. Raises KernelError."""
    for address in endpoint.addresses:
        if (held := host.state.holding(address)) is not None:
            host.state.addresses.change(held.id, owed=True)
    host.state.endpoints.change(endpoint.id, owed=True)


def take_down(host: DockerHost, endpoint: str, deadline: Deadline) -> None:
    """Remove an endpoint, and its addresses if they are owed. Raises CalicoError; then what is left is still owed."""
    with host.locks.hold(endpoint, deadline):
        found = host.state.endpoints.get(endpoint)
        if found is None:
            return
        leave(host, endpoint, deadline)
        remove_record(host, endpoint, deadline)
        host.state.endpoints.remove(endpoint)
    for address in found.addresses:
        held = host.state.holding(address)
        if held is not None and held.owed:
            release_held(host, held.id, deadline)


def release_owed(host: DockerHost, id: str, deadline: Deadline) -> None:
    """Release one address, after what is left of the endpoint that has it, which may be on its way out. Raises
    CalicoError; then it is still owed.
    """
    held = host.state.addresses.get(id)
    endpoint = host.state.endpoint_with(held.address) if held is not None else None
    if endpoint is not None and endpoint.owed:
        take_down(host, endpoint.id, deadline)
    if host.state.addresses.get(id) is not None:
        release_held(host, id, deadline)


def release_held(host: DockerHost, id: str, deadline: Deadline) -> None:
    """Release one address, by its handle if it has one. Raises CalicoError; then it is still owed."""
    held = host.state.addresses.get(id)
    if held is not None and held.former:
        release_former(host, held.address, deadline)
    else:
        host.datastore.allocator.release_handle(handle_of(id), deadline)
    host.state.addresses.remove(id)


def handle_of(id: str) -> str:
    """PURE: the handle of one address."""
    return f"{LIBNETWORK}.{id}"


def soon(host: DockerHost, what: str, act: Callable[[Deadline], None]) -> None:
    """``now_or_later``, once Docker has its answer."""
    host.afterwards.do(lambda: now_or_later(host, what, act))


def now_or_later(host: DockerHost, what: str, act: Callable[[Deadline], None]) -> None:
    """Do what a call of Docker's says, or leave it to the clean-up: dockerd never repeats such a call. After a failure
    the next calls leave it at once, because several of them belong to one container.
    """
    if time.monotonic() >= host.later_until:
        try:
            act(call_deadline())
            return
        except CalicoError as e:
            host.log.warning(f"{what} will be removed later: {e}")
            host.later_until = time.monotonic() + _LATER_S
    host.wake()
