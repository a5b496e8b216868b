"""The commands of calico-node that do one thing and end.

Rule: each returns an exit status; expected failures are raised as CalicoError and printed by main.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

from cni_calico import directories
from cni_calico.daemon.stopping import Stopping
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, IPAMError, KernelError
from cni_calico.kernel.files import Files
from cni_calico.log import Log, open_log_file, wants_json
from cni_calico.model.timestamps import rfc3339
from cni_calico.nodeagent.boot_table import load_boot_table
from cni_calico.nodeagent.context.open import Opened, open_context, open_log
from cni_calico.nodeagent.context.settings import NodeSettings, parse_settings
from cni_calico.nodeagent.keepers.tunnel_addresses import allocate_tunnel_addresses, read_pod_cidrs
from cni_calico.nodeagent.startup.completion import announce_shutdown
from cni_calico.nodeagent.startup.records import shutdown_path
from cni_calico.nodeagent.startup.run import run_startup
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.unit import note_answered
from cni_calico.regular import make_directories

BIRD_S = 2.0


def _open(environ: Mapping[str, str], part: str, *, running: bool = False) -> Opened:
    """A context whose waits end with SIGTERM."""
    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM)
    return open_context(environ, part, stopping.wait, running=running)


def prepare_host(environ: Mapping[str, str], *, best_effort: bool) -> int:
    """-init, -hostpath-init: make the directories, owned by the user that the node runs as. Raises KernelError."""
    settings = parse_settings(environ)
    log = open_log(settings, "init")
    for directory in (settings.run_dir, settings.state_dir, settings.log_dir):
        try:
            make_directories(directory, 0o755)
            os.chown(directory, settings.node_user_id, -1)
        except OSError as e:
            if not best_effort:
                raise KernelError(f"cannot make directory {directory}: {e.strerror}", errno=e.errno or 0) from e
            log.warning(f"cannot make directory {directory}: {e.strerror}")
    return 0


def show_flows(environ: Mapping[str, str], count: int, write: Callable[[str], object]) -> int:
    """-flows, until a signal; negative: for ever. Raises CalicoError."""
    from cni_calico.flows.export.listener import show_flows as show

    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    return show(environ, count, stopping.is_set, write)


def close_workloads(environ: Mapping[str, str]) -> int:
    """-boot-table. Raises KernelError."""
    log = Log("info", context="boot-table: ", as_json=wants_json(environ))
    loaded = load_boot_table(environ, log)
    names = ", ".join(f"{prefix}*" for prefix in loaded.prefixes)
    if loaded.by:
        log.info(f"{names}: closed by {loaded.by} until calico-node has decided what may pass")
    else:
        log.info(f"{names}: not closed: {loaded.why_not}")
    return 0


def start_up(environ: Mapping[str, str]) -> int:
    """-startup. The reason of a failure is stored for the probes and ``calicoctl node status``."""
    run_dir = directories.run_dir(environ)
    try:
        _start_up(environ, lambda what: _note_startup(run_dir, what), lambda: _note_answered(run_dir))
    except CalicoError as e:
        _note_startup(run_dir, str(e))
        raise
    _note_startup(run_dir, "")
    return 0


def _start_up(environ: Mapping[str, str], tell: Callable[[str], None], answered: Callable[[], None]) -> None:
    opened = _open(environ, "startup")
    try:
        run_startup(opened.context, tell, answered)
    finally:
        opened.context.store.close()


def _note_startup(run_dir: str, text: str) -> None:
    try:
        status.write_startup_error(run_dir, text)
    except OSError as e:
        Log("info", context="startup: ").warning(f"cannot write to {run_dir}: {e.strerror or e}")


def _note_answered(run_dir: str) -> None:
    try:
        make_directories(run_dir, 0o755)
        note_answered(run_dir)
    except OSError:
        pass  # the unit is ready sooner, then


def allocate_once(environ: Mapping[str, str], *, best_effort: bool = False) -> int:
    """-allocate-tunnel-addrs-run-once. Raises IPAMError, DatastoreError, unless ``best_effort``, which only reports
    them.
    """
    opened = _open(environ, "tunnel-addrs")
    try:
        if opened.context.settings.backend != "none":
            pod_cidrs = read_pod_cidrs(opened.context)
            allocate_tunnel_addresses(opened.context, opened.node, pod_cidrs=pod_cidrs)
    except CalicoError as e:  # the agent tries it again
        if not best_effort:
            raise
        if not isinstance(e, IPAMError):  # otherwise it has been reported already
            opened.context.log.error(f"cannot put the node's tunnel addresses in order: {e}")
    finally:
        opened.context.store.close()
    return 0


def configure_once(environ: Mapping[str, str]) -> int:
    """-confd-run-once: render, check and put in force BIRD's configuration; 1 if BIRD refuses it.

    A BIRD that was started for it stays on purpose: without BIRD there would be nothing that the configuration is in
    force in, and the next calico-node uses it.
    """
    from cni_calico.nodeagent.bgp.config.snapshot import parse_bgp_environment
    from cni_calico.nodeagent.bgp.keeper import BgpKeeper

    opened = _open(environ, "confd")
    environment = parse_bgp_environment(opened.environ, node_name=opened.node)
    try:
        # not our own stderr: its reader would wait as long as BIRD runs
        with open(_bird_log(opened.context.settings), "ab", opener=open_log_file) as output:
            keeper = BgpKeeper(opened.context, opened.node, environment, output_fd=output.fileno())
            return 0 if keeper.run_once(opened.context.deadline()) else 1
    finally:
        opened.context.store.close()


def _bird_log(settings: NodeSettings) -> str:
    """The log file of a BIRD that outlives us."""
    if settings.disable_file_logging:
        return os.devnull
    make_directories(settings.log_dir, 0o755)
    return f"{settings.log_dir}/bird.log"


def shut_down(environ: Mapping[str, str]) -> int:
    """-shutdown. The file with the time comes first: it needs no datastore."""
    settings = parse_settings(environ)
    path = shutdown_path(settings)
    try:
        Files().write_atomic(path, rfc3339(time.time()).encode(), 0o644)
    except OSError as e:
        open_log(settings, "shutdown").warning(f"cannot write {path}: {e.strerror or e}")
    opened = _open(environ, "shutdown", running=True)
    try:
        announce_shutdown(opened.context)
    finally:
        opened.context.store.close()
    return 0


def describe_status(environ: Mapping[str, str]) -> str:
    """-show-status: what the agent and BIRD report."""
    run_dir = directories.run_dir(environ)
    fields = status.read_status(run_dir)
    why = status.why_not_ready(fields, status.since_boot())
    lines = [f"node:       {fields.get('node', 'unknown')}", f"agent:      {why or 'ready'}"]
    lines.append(f"datastore:  {fields.get('datastore_error') or 'in sync'}")
    devices: Mapping[str, str] = fields.get("devices") or {}
    lines.append("tunnels:    " + (", ".join(f"{name} {address}" for name, address in devices.items()) or "none"))
    lines.append(f"MTU:        {fields.get('mtu', 'unknown')}")
    lines.append(f"routes:     {fields.get('routes', 'unknown')}")
    lines.append(f"BGP:        {fields.get('bgp') or _describe_bird(run_dir, fields.get('backend'))}")
    if fields.get("bird"):
        lines.append(f"BIRD:       {fields['bird']}")
    for heading, topic in (
        ("warning", "environment"),
        ("warning", "doubts"),
        ("warning", "warnings"),
        ("warning", "services"),
        ("BGP", "bgp_problems"),
        ("problem", "problems"),
        ("failed", "failed"),
    ):
        lines += [f"{heading + ':':12}{text}" for text in fields.get(topic) or ()]
    lines += [f"{'failing:':12}{part}: {why}" for part, why in (fields.get("troubles") or {}).items()]
    return "\n".join(lines) + "\n"


def _describe_bird(run_dir: str, backend: object) -> str:
    from cni_calico.nodeagent.bgp.bird.control import read_status

    if backend in ("vxlan", "none"):
        return f"none on this node: CALICO_NETWORKING_BACKEND is {backend}"
    try:
        bird = read_status(f"{run_dir}/{directories.BIRD_SOCKET}", Deadline.after(BIRD_S))
    except CalicoError as e:
        return str(e)
    up = sum(peer.established for peer in bird.peers)
    lines = [f"{up} of {len(bird.peers)} sessions established"]
    lines += [
        f"            {peer.address} {peer.kind}: {peer.state}" + (f" ({peer.last_error})" if peer.last_error else "")
        for peer in bird.peers
    ]
    return "\n".join(lines)
