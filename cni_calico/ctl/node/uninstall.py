"""``calicoctl node uninstall``: takes away what ``node init`` wrote and what calico-node has made on this host.

Rule: nothing is begun while a container has an interface of ours, unless that is asked for; first goes what would set
up more, then what runs, then what it made. A step that fails is told at the end, and does not stop the others; the
notes of what is to be undone go last, and only if nothing failed. Until the datastore has forgotten this node, the host
keeps what names the datastore.
"""

from __future__ import annotations

import os
import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from cni_calico import directories
from cni_calico.ctl.node.init import PEERS, PODMAN, remove_peer
from cni_calico.ctl.node.setup import bird, host
from cni_calico.ctl.node.setup.plan import COMMAND_LINK, CONFLIST, ENVIRONMENT, NETAVARK_LINK
from cni_calico.ctl.node.setup.podman import remove_network
from cni_calico.ctl.node.setup.traces import read_interface_names, remove_traces
from cni_calico.ctl.node.setup.units import BOOT_TABLE, DOCKER, DOCKER_SOCKET, NODE
from cni_calico.ctl.node.setup.written import WrittenFiles, read_written
from cni_calico.ctl.node_datastore import parse_environment_file
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.resources.operations import read_pools
from cni_calico.ctl.resources.removal import delete_resource
from cni_calico.ctl.session import CommandFailed, ResourceMissing
from cni_calico.ctl.settings import DEFAULT_PATH
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import CalicoError
from cni_calico.kernel.files import Files
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Network
from cni_calico.nodeagent.boot_table import switch_off
from cni_calico.nodeagent.context.felix import parse_felix

_LINKS = (NETAVARK_LINK, COMMAND_LINK)  # those made by hand are as dangling as ours
_UNITS = (DOCKER_SOCKET, DOCKER, NODE, BOOT_TABLE)
_REMOVE_S = 60.0
_RECORDS = "removed this node's records"
_NAME_DATASTORE = (ENVIRONMENT, DEFAULT_PATH)


def uninstall(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CommandFailed, InvalidConfig, KernelError."""
    written = read_written()
    settings = {**_node_environment(), **environ}
    prefixes = parse_felix(settings).settings.interface_prefixes
    interfaces = read_interface_names(prefixes, Deadline.after(_REMOVE_S))
    if arguments.show_only:
        return _shown(written, interfaces)
    host.require_root()
    if interfaces and not arguments.force:
        raise CommandFailed(
            f"cannot take this host's network away: {len(interfaces)} containers still have an interface of it "
            f"({', '.join(interfaces[:5])})",
            details="stop them first; --force takes the network away from them",
        )
    failures: dict[str, str] = {}
    for what, step in _steps(arguments, settings, written, prefixes, failures):
        try:
            step()
            arguments.say(f"{what}\n")
        except (CalicoError, OSError) as e:
            failures[what] = str(e)
    for path in written.kept:
        arguments.say(f"kept {path}: it was not as node init had written it\n")
    if failures:
        again = "run the same command again"
        if _RECORDS in failures:
            again += f" when the datastore answers: until then {ENVIRONMENT} stays, which names it; remove that file "
            again += "first if it never will"
        raise CommandFailed(
            f"not everything is gone: {'; '.join(f'{what}: {why}' for what, why in failures.items())}", details=again
        )
    written.remove_notes()
    for path in _directories(settings):
        _remove_tree(path)
        arguments.say(f"removed {path}\n")
    directory = host.executables()
    return f"This host has nothing of Calico any more but the executables in {directory}.\n"


def _node_environment() -> dict[str, str]:
    try:
        return parse_environment_file(Files().read_text(ENVIRONMENT))
    except (OSError, UnicodeDecodeError):
        return {}


def _shown(written: WrittenFiles, interfaces: list[str]) -> str:
    lines = [f"refuse: {len(interfaces)} interfaces of containers are there"] if interfaces else []
    lines += [f"remove {path}" for path in written.digests]
    lines += [f"remove {kind[:-1]} {name}" for kind, names in written.extra.items() for name in names]
    lines.append(f"systemctl disable --now {' '.join(_UNITS)}")
    lines.append("remove this node's records, its interfaces, routes and packet filter rules")
    lines += [f"remove {path}" for path in _directories({})]
    return "\n".join([*lines, "Nothing was changed: --dry-run."]) + "\n"


def _directories(environ: Mapping[str, str]) -> tuple[str, ...]:
    return (directories.run_dir(environ), directories.state_dir(environ), directories.LOG_DIR)


def _bird_directory(environ: Mapping[str, str]) -> str:
    return environ.get("CALICO_BIRD_CONFIG_DIR", "").strip() or directories.BIRD_CONFIG_DIR


UndoStep = tuple[str, Callable[[], object]]


def _steps(
    arguments: Namespace,
    environ: Mapping[str, str],
    written: WrittenFiles,
    prefixes: tuple[str, ...],
    failures: Mapping[str, str],
) -> Iterator[UndoStep]:
    """``failures``: of the steps that have been taken."""
    for name in written.extra.get(PODMAN, ()):
        yield f"removed podman's network {name}", partial(remove_network, name)
    yield f"removed {CONFLIST}", lambda: written.remove(CONFLIST)
    yield "stopped calico-node", _stop
    yield _RECORDS, lambda: _leave(arguments, environ, written)
    bird_directory = _bird_directory(environ)
    is_known = _RECORDS not in failures and bird.has_run(bird_directory)
    pools = _read_pools(arguments, environ) if is_known else ()
    yield "removed interfaces, routes and rules", lambda: _remove_traces(arguments, prefixes, pools)
    yield "removed the boot table", lambda: switch_off(directories.run_dir(environ))
    if not failures:  # else it says, the next time, that our BIRD has run
        yield "removed BIRD's configuration", lambda: bird.remove_configuration(bird_directory)
    # a network configuration of before is put back when there is no second run that would take it for ours
    needed = (*((CONFLIST,) if failures else ()), *(_NAME_DATASTORE if _RECORDS in failures else ()))
    yield "removed what node init wrote", lambda: list(written.remove_all(needed))
    yield "removed links to executables of ours", _remove_links
    yield "told systemd", lambda: host.systemctl("daemon-reload") if _has_systemd() else None


def _has_systemd() -> bool:
    try:
        host.require_systemd()
    except CommandFailed:
        return False
    return True


def _stop() -> None:
    if not _has_systemd():
        return
    for unit in _UNITS:
        if host.has_unit(unit):
            host.systemctl("disable", "--now", unit)


def _leave(arguments: Namespace, environ: Mapping[str, str], written: WrittenFiles) -> None:
    """A datastore of several hosts forgets this one; the embedded one goes with its directory."""
    name = _node_name(environ)
    if environ.get("DATASTORE_TYPE") != "etcdv3" or not name:
        return
    with open_session(arguments, environ) as opened:
        session = replace(opened, deadline=Deadline.after(min(arguments.timeout, _REMOVE_S)))
        for peer in tuple(written.extra.get(PEERS, ())):
            remove_peer(session, peer)
        with suppress(ResourceMissing):
            delete_resource(session, ResourceKey("Node", name))


def _read_pools(arguments: Namespace, environ: Mapping[str, str]) -> tuple[Network, ...]:
    """None where they cannot be read: then more is left."""
    if environ.get("DATASTORE_TYPE") not in ("etcdv3", "local"):
        return ()
    try:
        with open_session(arguments, environ) as opened:
            session = replace(opened, deadline=Deadline.after(min(arguments.timeout, _REMOVE_S)))
            return tuple(pool.cidr for pool in read_pools(session))
    except (CalicoError, OSError):
        return ()


def _remove_traces(arguments: Namespace, prefixes: tuple[str, ...], pools: tuple[Network, ...]) -> None:
    if others := remove_traces(prefixes, pools, Deadline.after(_REMOVE_S)):
        shown = ", ".join(map(str, others[:5])) + (", ..." if others[5:] else "")
        arguments.say(
            f"left {len(others)} routes of a BIRD, which may be this host's own: {shown} (ip route show proto bird)\n"
        )


def _node_name(environ: Mapping[str, str]) -> str:
    try:
        return Files().read_text(directories.nodename_file(environ)).strip()
    except (OSError, UnicodeDecodeError):
        return environ.get("NODENAME", "")


def _remove_links() -> None:
    directory = host.executables()
    for path in _LINKS:
        if os.path.islink(path) and os.path.dirname(os.readlink(path)) == directory:
            os.unlink(path)


def _remove_tree(directory: str) -> None:
    if os.path.isdir(directory):
        with Doing(f"remove {directory}"):
            shutil.rmtree(directory)
