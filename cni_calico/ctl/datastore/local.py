"""``calicoctl datastore check, salvage, rebuild``: for an embedded store's file that is damaged or lost. Rule: a file
that can still be read is never replaced. ``rebuild`` is for a host whose store is lost while its containers run: it
allocates, in a new store, every address for which this host has a route to a container, so that none is assigned again.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import suppress

from cni_calico.ctl.node_datastore import read_node_name
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.ctl.settings import read_config
from cni_calico.datastore.local.file import marker_path
from cni_calico.datastore.local.salvage import read_problems, salvage
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import AddressInUse, CalicoError, InvalidConfig, IPAMError
from cni_calico.ipam.allocator import Allocator
from cni_calico.kernel.host_routes import read_host_routes
from cni_calico.model.host import HostRoute
from cni_calico.model.keys import HandleKey, HandleList

HANDLE = "rebuilt."


def _local_path(arguments: Namespace, environ: Mapping[str, str]) -> str:
    config = read_config(arguments.config, environ)
    if config.type != "local":
        raise InvalidConfig(
            f"cannot do this with a datastore of type {config.type}: it is for the embedded one",
            details="name it with DATASTORE_TYPE=local, and DATASTORE_PATH where it is not in its usual place",
        )
    return config.path


def check(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CalicoError saying what is wrong."""
    path = _local_path(arguments, environ)
    with Doing(f"check {path}", CalicoError):
        problems = read_problems(path)
    advice = "'calicoctl datastore salvage -o NEWFILE' writes what can be read into a new one"
    if arguments.output != TABLE:
        text = render_value({"datastore": path, "problems": list(problems)}, arguments.output)
        if problems:
            raise CommandFailed(f"datastore {path} is damaged", details=advice, output=text)
        return text
    if problems:
        raise CalicoError(
            f"datastore {path} is damaged:\n" + "\n".join(f"  {problem}" for problem in problems), details=advice
        )
    return f"Datastore {path} is in order.\n"


def rescue(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """``salvage``. Raises CalicoError."""
    path, target = _local_path(arguments, environ), arguments.file
    if os.path.exists(target):
        raise InvalidConfig(f"cannot salvage into {target}: it exists already")
    with Doing(f"salvage {path}", CalicoError):
        found = salvage(path, os.path.abspath(target), Deadline.after(arguments.timeout))
    lines = [f"Saved {found.saved} records of {path} into {target}; {path} is as it was."]
    lines += [f"Found: {problem}" for problem in found.problems]
    lines += [f"Lost: {key}" for key in found.lost]
    lines.append(
        f"To use it, stop calico-node, move {path}, {path}-wal and {path}-shm away, and put it in their place."
    )
    if found.lost:
        lines.append(
            "Then run 'calicoctl datastore rebuild --yes': it allocates the addresses of running containers that the "
            "new file lacks."
        )
    return "\n".join(lines) + "\n"


def select_addresses(routes: Iterable[HostRoute], prefixes: Iterable[str]) -> list[HostRoute]:
    """PURE: the routes to single addresses through containers' interfaces."""
    starts = tuple(prefixes)
    return [
        route for route in routes if route.dst.prefixlen == route.dst.max_prefixlen and route.device.startswith(starts)
    ]


def rebuild(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CalicoError."""
    path = _local_path(arguments, environ)
    prefixes = [each.strip() for each in environ.get("FELIX_INTERFACEPREFIX", "cali").split(",") if each.strip()]
    deadline = Deadline.after(arguments.timeout)
    routes = select_addresses(read_host_routes(deadline), prefixes or ["cali"])
    is_there = os.path.exists(path) and os.path.getsize(path) > 0
    if not arguments.yes:
        shown = [f"  {route.dst.network_address} through {route.device}" for route in routes]
        what = (
            "exists; --yes would allocate these addresses in it"
            if is_there
            else "is gone; --yes would make a new one with these addresses allocated"
        )
        raise InvalidConfig(
            "\n".join([f"datastore {path} {what}, as far as there are pools for them:", *shown]),
            details="repeat this with --yes, and with -f FILE for the pools and other resources of a new one",
        )
    if not is_there and not arguments.filename:
        raise InvalidConfig(
            "cannot make a new datastore without its pools: the running containers' addresses are allocated from them",
            details="name a file with the IPPools and whatever else was configured: -f FILE",
        )
    target = path if is_there else f"{path}.rebuilding"
    if not is_there:
        _remove_store(target)
    store = LocalStore(target)
    try:
        text = _fill(store, routes, arguments, environ, deadline)
    finally:
        store.close()
    if not is_there:
        _remove_store(path)
        os.rename(target, path)
        _remove_store(target)
    return text


def _fill(
    store: LocalStore,
    routes: Iterable[HostRoute],
    arguments: Namespace,
    environ: Mapping[str, str],
    deadline: Deadline,
) -> str:
    lines, failed = [], []
    if arguments.filename:
        lines.append(_apply(store, arguments, deadline).rstrip("\n"))
    node = arguments.node or read_node_name(environ)
    allocator = Allocator(store)
    handles = set()
    for route in routes:
        handle, address = f"{HANDLE}{route.device}", route.dst.network_address
        handles.add(handle)
        if any(item.address == address for item in allocator.addresses_of(handle, deadline)):
            continue  # allocated by an earlier run
        try:
            allocator.assign_address(address, handle, {"node": node, "interface": route.device}, node, deadline)
            lines.append(f"Allocated {address}, which {route.device} has.")
        except AddressInUse:
            continue  # it is allocated already
        except IPAMError as e:
            failed.append(f"{address} of {route.device}: {e}")
    for item in store.list(HandleList(), deadline).items:
        name = item.key.handle_id if isinstance(item.key, HandleKey) else ""
        if name.startswith(HANDLE) and name not in handles:
            allocator.release_handle(name, deadline)
            lines.append(f"Released the addresses of {name.removeprefix(HANDLE)}: the interface is gone.")
    if failed:
        raise CalicoError(
            "cannot allocate every address that is in use:\n" + "\n".join(f"  {each}" for each in failed),
            details="apply the pools that contain them, then run this again; until then do not start containers",
        )
    lines.append(
        "When the containers that run now are gone, run this again: it releases their addresses."
        if handles
        else "No container of this host has an address."
    )
    return "\n".join(filter(None, lines)) + "\n"


def _apply(store: LocalStore, arguments: Namespace, deadline: Deadline) -> str:
    import uuid

    from cni_calico.ctl.datastore.initialize import initialize
    from cni_calico.ctl.opening import now
    from cni_calico.ctl.resources.commands import apply

    session = Session(store, deadline, now, lambda: str(uuid.uuid4()))
    initialize(session)
    return apply(session, arguments)


def _remove_store(path: str) -> None:
    for name in (path, f"{path}-wal", f"{path}-shm", marker_path(path)):
        with suppress(FileNotFoundError):
            os.unlink(name)
