"""What this host still shows of a container: its ID in runtimes' state, its address in a network namespace or a route.

Rule: it only reads, and everything that is found keeps the container. Nothing can be said where runtimes' state is not
visible, as in most containers, or is not what the first process sees: then there is always a trace.
"""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from errno import EACCES, EHOSTUNREACH, EINVAL, ENETUNREACH

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, KernelError
from cni_calico.kernel import netns
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import NDA_DST, RTM_GETNEIGH
from cni_calico.kernel.netlink.routes import decode_route, match_route
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import NLM_F_DUMP, Request
from cni_calico.model.names import runtimes_id, short_id
from cni_calico.model.resources import Address

# libcni's, and with it every runtime's that calls CNI plugins; the second where one keeps its cache there
_RESULTS = ("var/lib/cni/results", "var/lib/cni/cache/results")
_WITHOUT_LIBCNI = ("var/lib/containers/storage",)  # podman's: with netavark it keeps no results
# directories whose entries are named after containers: of libcni, podman and CRI-O, containerd, nerdctl, Docker
_NAMED = (
    *_RESULTS,
    "var/lib/containers/storage/*-containers",
    "run/containers/storage/*-containers",
    "run/crun",
    "run/runc",
    "run/libpod/*",
    "run/containerd/io.containerd.runtime.v2.task/*",
    "run/containerd/runc/*",
    "run/containerd/io.containerd.grpc.v1.cri/*",
    "var/lib/containerd/io.containerd.grpc.v1.cri/*",
    "var/lib/nerdctl/*/containers/*",
    "var/lib/docker/containers",
    "run/docker/runtime-runc/*",
    "run/docker/containerd/daemon/io.containerd.runtime.v2.task/*",
)
_LEASES = "var/lib/cni/networks/*/*"  # host-local's files say whose an address is
_LEASE_BYTES = 4096
_NEIGHBOUR_BYTES = 12
_NO_ROUTE = (ENETUNREACH, EHOSTUNREACH, EINVAL, EACCES)  # none at all, or one that refuses
_NAMED_NAMESPACES = ("run/netns/*", "run/docker/netns/*")
_NAMESPACES = ("proc/[0-9]*/ns/net", *_NAMED_NAMESPACES)
_HOSTS = "proc/1/root"  # what the first process sees: with the host's PID namespace, the host


def find_trace(container_id: str, address: Address, deadline: Deadline, root: str = "/") -> str:
    """Where there is one; "" if there is certainly none. Raises KernelError if that cannot be found out."""
    hidden = what_is_hidden(root)
    if hidden:
        return hidden
    place = find_place(container_id, root)
    return place or _route_to(address, deadline) or _namespace_with(address, deadline, root)


def find_place(container_id: str, root: str = "/") -> str:
    """Where a runtime has the container, running or not; "" for nowhere. Raises KernelError."""
    try:
        return next(_places_naming(container_id, root), "")
    except OSError as e:
        shown = short_id(container_id)
        raise KernelError(f"cannot look for container {shown}: {e.strerror}", errno=e.errno or 0) from e


def runs_here(container_id: str, root: str = "/") -> bool:
    """Whether this host's kernel has it now: a control group, or runtimes' state that ends with the boot; hosts
    may share other file systems. Raises KernelError.
    """
    own = tuple(os.path.join(root, directory, "") for directory in ("proc", "run"))
    try:
        return any(place.startswith(own) for place in _places_naming(container_id, root))
    except OSError as e:
        shown = short_id(container_id)
        raise KernelError(f"cannot look for container {shown}: {e.strerror}", errno=e.errno or 0) from e


def what_is_hidden(root: str = "/") -> str:
    """What of the runtimes' state cannot be seen here, as a sentence; "" if all can. Raises KernelError."""
    if not any(os.path.isdir(os.path.join(root, state)) for state in (*_RESULTS, *_WITHOUT_LIBCNI)):
        return "the state of this host's runtimes is not visible: there is no /var/lib/cni/results"
    for pattern in (*_NAMED, _LEASES, *_NAMED_NAMESPACES):
        directory = pattern.partition("/*")[0]
        try:
            theirs = os.stat(os.path.join(root, _HOSTS, directory))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as e:
            raise KernelError(f"cannot see what the first process sees: {e.strerror}", errno=e.errno or 0) from e
        try:
            ours = os.stat(os.path.join(root, directory))
        except OSError:
            return f"the state of this host's runtimes is not visible: /{directory} is not here"
        if not os.path.samestat(ours, theirs):
            return f"the state of this host's runtimes is not visible: /{directory} here is another one than the host's"
    return ""


def _places_naming(container_id: str, root: str) -> Iterator[str]:
    """Raises OSError for what is there and cannot be read."""
    container_id = runtimes_id(container_id) or container_id
    for pattern in _NAMED:
        for directory in glob.iglob(os.path.join(root, pattern)):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield from (f"{directory}/{name}" for name in os.listdir(directory) if container_id in name)
    for pattern, size in ((_LEASES, _LEASE_BYTES), ("proc/[0-9]*/cgroup", 1 << 16)):
        for path in glob.iglob(os.path.join(root, pattern)):
            with suppress(FileNotFoundError, ProcessLookupError, IsADirectoryError), open(path, "rb") as file:
                if container_id.encode() in file.read(size):
                    yield path


def _route_to(address: Address, deadline: Deadline) -> str:
    with Rtnl() as rtnl:
        try:
            if decode_route(rtnl.one(match_route(address), deadline)).dst.prefixlen == address.max_prefixlen:
                return f"a route to {address}"
        except KernelError as e:
            if e.errno not in _NO_ROUTE:
                raise
        family = 2 if address.version == 4 else 10
        body = bytes((family,)) + bytes(_NEIGHBOUR_BYTES - 1)
        for payload in rtnl.dump(Request(RTM_GETNEIGH, NLM_F_DUMP, body, "list neighbours"), deadline):
            if wire.attributes(payload, _NEIGHBOUR_BYTES).get(NDA_DST) == address.packed:
                return f"a neighbour {address}"
    return ""


def _namespace_with(address: Address, deadline: Deadline, root: str) -> str:
    """Looked for by a thread of its own, which enters every namespace there is."""
    found: list[str] = []
    failed: list[CalicoError | OSError] = []

    def look() -> None:
        try:
            found.extend(_namespaces_with(address, deadline, root))
        except (CalicoError, OSError) as e:
            failed.append(e)

    thread = threading.Thread(target=look, name="container-traces", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise KernelError(f"cannot look for {address} in network namespaces: {failed[0]}")
    return found[0] if found else ""


def _namespaces_with(address: Address, deadline: Deadline, root: str) -> Iterator[str]:
    seen: set[tuple[int, int]] = set()
    for pattern in _NAMESPACES:
        for path in glob.iglob(os.path.join(root, pattern)):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except (FileNotFoundError, ProcessLookupError):
                continue  # the process has ended
            try:
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
                try:
                    netns.enter(fd)
                except OSError as e:
                    if e.errno != EINVAL:
                        raise
                    continue  # what a removed namespace has left: not one
                if any(one.ip == address for link in read_interfaces(deadline) for one in link.addresses):
                    yield path
            finally:
                os.close(fd)
