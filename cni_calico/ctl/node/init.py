"""``calicoctl node init``: sets this host up, from files to a network that works, and says what it does.

Rule: everything is parsed, read and compared before anything is changed; a second run changes only what differs, and
restarts calico-node only then.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from cni_calico import directories
from cni_calico.ctl.node.setup import host, podman
from cni_calico.ctl.node.setup.options import SetupOptions, WantedPeer, parse_options
from cni_calico.ctl.node.setup.plan import ENVIRONMENT, NETWORK, PlannedFile, SetupFacts, plan_files
from cni_calico.ctl.node.setup.units import DOCKER, DOCKER_SOCKET, NODE
from cni_calico.ctl.node.setup.written import KEPT, MOVED, WrittenFiles, read_written
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.resources import operations
from cni_calico.ctl.session import CommandFailed, ResourceMissing, Session
from cni_calico.ctl.settings import DEFAULT_PATH
from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_BIN_DIR
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.status import file as agent_status

PODMAN, PEERS = "podman networks", "BGPPeers"
DOCKER_NETWORK = "docker network create --driver calico --ipam-driver calico-ipam"
_PAUSE_S = 0.5
_CHECK_PAUSE_S = 3.0


def init(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises InvalidConfig, CommandFailed, KernelError, DatastoreError."""
    options = parse_options(arguments)
    for path in filter(None, (options.ca, options.cert, options.key)):
        if not os.path.isfile(path):
            raise InvalidConfig(f"cannot set this host up: there is no file {path}", details="copy it here first")
    facts = podman.with_podman(host.read_facts())
    files = plan_files(options, facts, without_podman=arguments.force)
    written = read_written()
    network = _plan_network(options, written) if facts.netavark else ""
    if arguments.show_only:
        return _shown(options, files, written, network, facts)
    host.require_root()
    host.require_systemd()
    _require_ours(files, written, force=arguments.force)
    deadline = Deadline.after(arguments.timeout)
    gone = written.remove_others(files)
    for path in gone:
        arguments.say(f"removed {path}\n")
    changed = [one.path for one in files if written.write(one)]
    for path in changed:
        arguments.say(f"wrote   {path}\n")
    for path in written.kept:
        arguments.say(f"kept    {path}\n")
    _start(gone + changed)
    arguments.say("started calico-node, and with every start of this host before the containers\n")
    _until_ready(environ, deadline)
    if facts.docker:
        _start_docker(gone + changed)
        arguments.say("started Docker's network driver and IPAM driver\n")
    with _configured(arguments):
        _add_peers(options, arguments, environ, written)
        _add_network(options, written, network)
        _check(arguments, deadline, facts.executables)
    lines = ["This host is set up."]
    lines += [f"Podman has no network of it: {facts.outdated}."] if facts.outdated else []
    lines += [f"A network for Docker: {DOCKER_NETWORK} NAME (docs/docker.md)."] if facts.docker else []
    return "\n".join([*lines, ""])


def _require_ours(files: Sequence[PlannedFile], written: WrittenFiles, *, force: bool) -> None:
    if force:
        return
    if conflicts := list(written.conflicts(files)):
        raise CommandFailed(
            f"cannot set this host up: somebody else wrote {', '.join(conflicts)}, or changed it",
            details=f"--force keeps it beside itself: as NAME{KEPT}, until node uninstall puts it back; what node init "
            f"wrote and somebody changed as NAME{MOVED}",
        )


def _shown(
    options: SetupOptions, files: Sequence[PlannedFile], written: WrittenFiles, network: str, facts: SetupFacts
) -> str:
    """What a run would do. ``network``: with podman's, "" if it gets none."""
    lines = []
    for one in files:
        what = written.compare(one)
        lines.append(f"{what} {one.path}" + (f" -> {one.target}" if one.target else f" (mode {one.mode:04o})"))
        lines += [f"    {line}" for line in one.text.splitlines()] if what != "keep" else []
    conflicts = list(written.conflicts(files))
    lines += [f"refuse {path}: somebody else wrote it, or changed it (--force keeps it aside)" for path in conflicts]
    lines.append(f"systemctl enable {NODE}, and start or restart it")
    lines += [f"systemctl enable {DOCKER_SOCKET} {DOCKER}, and start or restart them"] if facts.docker else []
    lines += [f"BGPPeer {peer.address}, AS {peer.as_number}" for peer in options.peers]
    if network:
        lines += [f"podman network rm {NETWORK}"] if network == podman.CHANGED else []
        words = [NETWORK] if network == podman.SAME else podman.network_words(options)
        lines.append(
            f"{'keep podman network' if network == podman.SAME else 'podman network create'} {' '.join(words)}"
        )
    lines.append("calicoctl cluster check --host, until it passes")
    return "\n".join([*lines, "Nothing was changed: --dry-run."]) + "\n"


# -- from files to a node ---------------------------------------------------------------------------------------------


def _start(changed: Sequence[str]) -> None:
    host.systemctl("daemon-reload")
    host.systemctl("enable", NODE)
    matters = any(path == ENVIRONMENT or path.endswith(".service") for path in changed)
    if matters or not host.is_active(NODE):
        host.systemctl("restart" if matters else "start", NODE)


def _start_docker(changed: Sequence[str]) -> None:
    """The sockets first: they are there while the service starts."""
    host.systemctl("enable", DOCKER_SOCKET, DOCKER)
    matters = any(path == ENVIRONMENT or path.endswith((DOCKER, DOCKER_SOCKET)) for path in changed)
    if not host.is_active(DOCKER_SOCKET):
        host.systemctl("stop", DOCKER)  # systemd does not open sockets that a running service has opened itself
        host.systemctl("start", DOCKER_SOCKET)
    if matters or not host.is_active(DOCKER):
        host.systemctl("restart" if matters else "start", DOCKER)


def _until_ready(environ: Mapping[str, str], deadline: Deadline) -> None:
    """Raises CommandFailed."""
    run_dir = directories.run_dir(environ)
    while why := agent_status.why_not_ready(agent_status.read_status(run_dir), agent_status.since_boot()):
        if deadline.expired():
            raise CommandFailed(
                f"the files are written, but calico-node is not ready: {why}",
                details="journalctl -u calico-node says more; run the same command again afterwards",
            )
        time.sleep(_PAUSE_S)


@contextmanager
def _configured(arguments: Namespace) -> Iterator[None]:
    """With the datastore of the node that was just set up, whatever the options say."""
    before = arguments.config
    arguments.config = DEFAULT_PATH
    try:
        yield
    finally:
        arguments.config = before


def _add_peers(options: SetupOptions, arguments: Namespace, environ: Mapping[str, str], written: WrittenFiles) -> None:
    node = str(agent_status.read_status(directories.run_dir(environ)).get("node"))
    wanted = {peer_key(node, peer): peer for peer in options.peers}
    stale = [name for name in written.extra.get(PEERS, ()) if ResourceKey("BGPPeer", name) not in wanted]
    if not wanted and not stale:
        return
    with open_session(arguments, environ) as session:
        for key, peer in wanted.items():
            written.note_extra(PEERS, key.name)
            spec = {"node": node, "peerIP": str(peer.address), "asNumber": peer.as_number}
            document = {"apiVersion": API_VERSION, "kind": key.kind, "metadata": {"name": key.name}, "spec": spec}
            operations.apply(session, key, document)
        for name in stale:
            remove_peer(session, name)
            written.forget_extra(PEERS, name)


def peer_key(node: str, peer: WantedPeer) -> ResourceKey:
    """The name says whose it is: other hosts have the same peer."""
    address = str(peer.address).replace(":", "-")
    return ResourceKey("BGPPeer", f"init.{node}.{address}")


def remove_peer(session: Session, name: str) -> None:
    """Absent is success. Raises DatastoreError."""
    with suppress(ResourceMissing):
        operations.delete(session, ResourceKey("BGPPeer", name))


def _plan_network(options: SetupOptions, written: WrittenFiles) -> str:
    """Raises CommandFailed if podman's network is not ours, or in use, and has to be another one; KernelError."""
    return podman.plan_network(podman.read_network(), options, is_noted=NETWORK in written.extra.get(PODMAN, ()))


def _add_network(options: SetupOptions, written: WrittenFiles, planned: str) -> None:
    """The network of podman's netavark, with the same datastore."""
    if planned not in ("", podman.SAME):
        written.note_extra(PODMAN, NETWORK)
        podman.ensure_network(options, planned)


def _check(arguments: Namespace, deadline: Deadline, executables: str) -> None:
    """``cluster check`` until it passes. Raises CommandFailed with what it found last."""
    # packages have links there, beside the plugins of others that the network configuration names
    plugins = CNI_BIN_DIR if os.access(f"{CNI_BIN_DIR}/calico", os.X_OK) else executables
    argv = [f"{executables}/calicoctl", "cluster", "check", "--host", "--plugins", plugins]
    while True:
        done = host.ask(argv, max(_CHECK_PAUSE_S, deadline.remaining_s()))
        found, said = (text.decode(errors="replace") for text in (done.stdout, done.stderr))
        if done.rc == 0:
            arguments.say(found)
            return
        if deadline.remaining_s() <= _CHECK_PAUSE_S:
            why = " ".join(said.split())
            raise CommandFailed(f"the host is set up, but its network does not work: {why}", output=found)
        time.sleep(_CHECK_PAUSE_S)
