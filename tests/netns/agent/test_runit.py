"""BIRD as a service of its own: run by a real runit, or by anybody, found by its control socket."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import BirdUnavailable
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.bgp.bird.adoption import KEPT_SUFFIX, parse_greeting
from cni_calico.nodeagent.bgp.bird.control import BirdControl
from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.netns.nodes import ROOT, Node
from tests.unit.nodeagent.fabric import NODES, pool

pytestmark = [pytest.mark.netns, pytest.mark.bird]

BIRD = "/usr/sbin/bird"
OLD = LAB_CACHE / "old-bird/usr/sbin"  # BIRD 1.6: bird and bird6
PEER = "10.0.0.254"
EMPTY = "log stderr all;\nrouter id 10.0.0.1;\nprotocol device { }\n"


def peer(address: str = PEER) -> Resource:
    return Resource("BGPPeer", Metadata("router"), {"peerIP": address, "asNumber": 65000})


def ask(node: Node, command: str, socket_name: str = "bird.ctl") -> str:
    deadline = Deadline.after(5.0)
    with BirdControl(f"{node.root}/run/{socket_name}", deadline) as control:
        return "\n".join(text for _, text in control.tell(command, deadline).lines)


def has_session(node: Node, address: str = PEER) -> bool:
    return address.replace(".", "_") in ask_if_there(node, "show protocols")


@contextmanager
def bird(
    node: Node, config: Path, *more: str, socket_name: str = "bird.ctl", program: str | Path = BIRD
) -> Iterator[subprocess.Popen[bytes]]:
    """A BIRD that the test runs, as another service would."""
    (node.root / "run").mkdir(exist_ok=True)
    words = [program, "-c", str(config), "-s", f"{node.root}/run/{socket_name}", *more, "-f"]
    process = subprocess.Popen(["nsenter", f"--net={node.ns.path}", *words], stderr=subprocess.DEVNULL)
    try:
        until(lambda: "running" in ask_if_there(node, "show status", socket_name), "BIRD answers", 20)
        yield process
    finally:
        process.kill()
        process.wait()


def ask_if_there(node: Node, command: str, socket_name: str = "bird.ctl") -> str:
    try:
        return ask(node, command, socket_name)
    except BirdUnavailable:
        return ""


@pytest.fixture
def bgp_node(agent_node: Node) -> Node:
    """Set up, with a session to a router."""
    agent_node.more = {"CALICO_NETWORKING_BACKEND": "bird", "SVDIR": f"{agent_node.root}/service"}
    agent_node.calico_node("-startup")
    agent_node.store.put(peer())
    return agent_node


# -- runit ------------------------------------------------------------------------------------------------------------


class Runit:
    """runsvdir in a node's namespace, over what the image's /etc/rc.local has put there."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.directory = node.root / "service"
        tree = node.root / "image"
        subprocess.run([ROOT / "build/image/tree.sh", tree], check=True, timeout=20)
        program = node.root / "calico-node"
        program.write_text(f'#!/bin/sh\ncd {ROOT}\nexec {sys.executable} -m cni_calico.nodeagent.main "$@"\n')
        program.chmod(0o755)
        places = {"/opt/cni/bin/calico-node": str(program), "/etc/service": f"{tree}/etc/service"}
        for script in (tree / "etc/rc.local", *tree.glob("etc/service/available/*/run"), *tree.glob("usr/local/bin/*")):
            text = script.read_text()
            for place, here in places.items():
                text = text.replace(place, here)
            script.write_text(text)
        self.image = tree
        environ = {**node.environ(), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        rc_local = ["nsenter", f"--net={node.ns.path}", tree / "etc/rc.local"]
        subprocess.run(rc_local, env=environ, check=True, timeout=120, capture_output=True)
        argv = ["nsenter", f"--net={node.ns.path}", "runsvdir", "-P", str(self.directory)]
        with open(node.root / "log.txt", "a") as log:
            self.process = subprocess.Popen(argv, env=environ, stderr=log, stdout=log)

    def sv(self, *words: str) -> str:
        """runit's own sv."""
        *options, name = words
        done = subprocess.run(["sv", *options, str(self.directory / name)], capture_output=True, text=True, timeout=60)
        return done.stdout

    def pid(self, name: str) -> int:
        found = re.match(r"run: \S+ \(pid (\d+)\)", self.sv("status", name))
        return int(found[1]) if found else 0

    def end(self) -> None:
        self.process.send_signal(signal.SIGHUP)  # it ends its services, too
        self.process.wait(60)
        until(lambda: not any(self.pid(path.name) for path in self.directory.iterdir()), "all have ended", 60)


@pytest.fixture
def runit(bgp_node: Node) -> Iterator[Runit]:
    made = Runit(bgp_node)
    try:
        yield made
    finally:
        made.end()


@pytest.mark.runit
def test_services_of_runit(bgp_node: Node, runit: Runit) -> None:
    """felix, confd, bird and bird6, each a service; sv restarts one without the others."""
    until(lambda: has_session(bgp_node), "runit's BIRD starts once confd has written its configuration", 90)
    before = until(lambda: runit.pid("bird"), "runit says so", 20)
    until(lambda: f"(process {before}), which another service runs" in bgp_node.log(), f"it ({before}) is used", 20)
    assert runit.pid("bird6") and not [line for line in bgp_node.log().splitlines() if "BIRD started" in line]
    bgp_node.store.put(peer("10.0.0.253"))
    until(lambda: has_session(bgp_node, "10.0.0.253"), "a changed record", 30)
    assert runit.pid("bird") == before
    # ours, by runit's names, finds it too
    assert f"(pid {before})" in bgp_node.calico_node("sv", "status", "bird").stdout
    felix = runit.pid("felix")
    environ = {"PATH": "/usr/bin:/bin", "SVDIR": str(runit.directory)}
    images = [str(runit.image / "usr/local/bin/sv"), "-w", "20"]
    for words in (["status", "felix"], ["restart", "felix"]):
        said = subprocess.run([*images, *words], env=environ, capture_output=True, text=True, timeout=60).stdout
        assert re.match(r"(ok: )?run: felix: \(pid \d+\)", said), said
    assert runit.pid("felix") != felix and runit.pid("bird") == before
    runit.sv("-w", "20", "restart", "bird")
    after = runit.pid("bird")
    assert after != before
    until(lambda: f"(process {after}), which another service runs" in bgp_node.log(), "adopted again", 60)
    until(lambda: has_session(bgp_node, "10.0.0.253"), "configured", 30)
    assert f"(process {before}), which another service runs is gone: calico-node waits for it" in bgp_node.log()
    # confd goes: BIRD stays as it is
    runit.sv("-w", "20", "down", "confd")
    assert runit.pid("bird") == after and has_session(bgp_node, "10.0.0.253")


# -- anybody ----------------------------------------------------------------------------------------------------------


def test_its_configuration_is_where_its_command_line_says(bgp_node: Node, tmp_path: Path) -> None:
    """Relative to its directory; what somebody else wrote there is kept; it outlives the agent."""
    (tmp_path / "mine").mkdir()
    config = tmp_path / "mine" / "routing.conf"
    config.write_text(EMPTY)
    with bird(bgp_node, config) as process:
        bgp_node.run("-felix", "-confd")
        until(lambda: has_session(bgp_node), "it is configured", 60)
        assert PEER in config.read_text() and (tmp_path / "mine" / "bird_ipam.cfg").exists()
        assert Path(f"{config}{KEPT_SUFFIX}").read_text() == EMPTY
        until(lambda: "which another service runs" in bgp_node.status().get("bird", ""), "the status names it", 20)
        assert f"process {process.pid}" in bgp_node.calico_node("-show-status").stdout
        assert bgp_node.stop()[0] == 0
        assert has_session(bgp_node) and process.poll() is None
        # off: it goes on as it is
        bgp_node.more["CALICO_NETWORKING_BACKEND"] = "vxlan"
        bgp_node.run("-felix", "-confd")
        until(lambda: "BGP is off here, and BIRD" in bgp_node.log(), "it says so", 60)
        bgp_node.stop()
        assert has_session(bgp_node) and process.poll() is None


def test_when_it_goes_the_agent_waits_or_starts_its_own(bgp_node: Node, tmp_path: Path) -> None:
    config = tmp_path / "bird.conf"
    config.write_text(EMPTY)
    bgp_node.store.put(NODES["n2"], pool("10.65.0.0/16", ipip="Always"))
    with bird(bgp_node, config) as process:
        bgp_node.run("-felix", "-confd")
        until(lambda: has_session(bgp_node), "it is configured", 60)
        process.kill()
        process.wait()
        gone = "another service runs it, and it is not there"
        until(lambda: gone in str(bgp_node.status().get("bgp_unmet")), "the node is not ready, and says why", 60)
        assert bgp_node.log().count("is gone: calico-node waits for it") == 1
        assert bgp_node.calico_node("-bird-live", check=False).returncode == 1
    bgp_node.stop()
    bgp_node.more["CALICO_BIRD_SERVICE"] = "own"
    with bird(bgp_node, config) as process:
        bgp_node.run("-felix", "-confd")
        until(lambda: bgp_node.log().count("using BIRD") == 2, "it is used", 60)
        process.kill()
        process.wait()
        until(lambda: "BIRD started (process" in bgp_node.log(), "one of its own", 60)
        until(lambda: has_session(bgp_node), "configured", 30)


def test_two_daemons_are_refused_by_name(bgp_node: Node, tmp_path: Path) -> None:
    config = tmp_path / "bird.conf"
    config.write_text(EMPTY)
    with bird(bgp_node, config) as first:
        with bird(bgp_node, config, socket_name="bird6.ctl") as second:
            bgp_node.run("-felix", "-confd")
            why = until(lambda: bgp_node.status().get("bgp"), "it says why there is no BGP", 60)
            assert why.startswith("cannot use two daemons: BIRD 2.") and f"(process {first.pid})" in why
            assert f"(process {second.pid}), which answers at {bgp_node.root}/run/bird6.ctl" in why
            assert config.read_text() == EMPTY and not has_session(bgp_node)
        until(lambda: has_session(bgp_node), "the one that is left is used", 60)
        until(lambda: (bgp_node.root / "run" / "bird6.ctl").is_symlink(), "the name leads to it", 30)


@pytest.mark.old_bird
def test_a_bird_of_the_old_kind_is_refused_by_name(bgp_node: Node, tmp_path: Path) -> None:
    """BIRD 1.6 by itself, with its second daemon, and that one beside a BIRD 2; none of them is touched."""
    configs = [tmp_path / "bird.conf", tmp_path / "bird6.conf"]
    for config in configs:
        config.write_text(EMPTY)
    run = bgp_node.root / "run"

    def refused(text: str) -> str:
        said = until(lambda: re.match(f"{text}.*", bgp_node.status().get("bgp") or ""), text, 60)
        return str(said[0])

    with bird(bgp_node, configs[1], socket_name="bird6.ctl", program=OLD / "bird6") as second:
        with bird(bgp_node, configs[0], program=OLD / "bird") as first:
            bgp_node.run("-felix", "-confd")
            why = refused("cannot use BIRD 1")
            assert f"BIRD 1.6.8 (process {first.pid}), which answers at {run}/bird.ctl: 2.0.12 is the oldest" in why
            assert first.poll() is None and second.poll() is None
            assert f"(process {first.pid})" in bgp_node.calico_node("-show-status").stdout
        with bird(bgp_node, configs[0]) as first:
            why = refused("cannot use two daemons: BIRD 2")
            assert f"(process {first.pid}), which answers at {run}/bird.ctl, and BIRD 1.6.8 (" in why
            assert f"(process {second.pid}), which answers at {run}/bird6.ctl" in why
            assert first.poll() is None and second.poll() is None
        assert [config.read_text() for config in configs] == [EMPTY, EMPTY]


def test_upstreams_bird_is_refused_by_name(bgp_node: Node) -> None:
    """Its program cannot be had here: its greeting."""
    (bgp_node.root / "run").mkdir(exist_ok=True)
    path = bgp_node.root / "run" / "bird.ctl"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(8)
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        bgp_node.run("-felix", "-confd")
        why = until(lambda: bgp_node.status().get("bgp"), "it says why there is no BGP", 60)
        assert why.startswith(f"cannot use BIRD v0.3.3+birdv1.6.8 (process {os.getpid()}), which answers at") or (
            why.startswith("cannot use BIRD v0.3.3+birdv1.6.8, which answers at")
        ), why
        assert "2.0.12 is the oldest that works" in why
        listener.shutdown(socket.SHUT_RDWR)


def greet(listener: socket.socket) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"0001 BIRD v0.3.3+birdv1.6.8 ready.\n")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("BIRD 2.0.12 ready.", (2, 0, 12)),
        ("BIRD 1.6.8 ready.", (1, 6, 8)),  # Debian's bird and bird6
        ("BIRD v0.3.3+birdv1.6.8 ready.", (1, 6, 8)),  # upstream's
        ("BIRD 3.0-alpha2 ready.", (3, 0)),
        ("Hello", ()),
    ],
)
def test_versions_in_greetings(text: str, version: tuple[int, ...]) -> None:
    assert parse_greeting(text) == version


def test_a_bird_in_the_background_is_found(bgp_node: Node, tmp_path: Path) -> None:
    """It has opened its socket as another process."""
    config = tmp_path / "bird.conf"
    config.write_text(EMPTY)
    (bgp_node.root / "run").mkdir(exist_ok=True)
    words = [BIRD, "-c", str(config), "-s", f"{bgp_node.root}/run/bird.ctl"]
    bgp_node.ns.run("sh", "-c", shlex.join(words))
    try:
        until(lambda: "running" in ask_if_there(bgp_node, "show status"), "BIRD answers", 20)
        assert bgp_node.calico_node("-confd-run-once").returncode == 0
        assert has_session(bgp_node) and PEER in config.read_text()
    finally:
        ask(bgp_node, "down")


def test_one_that_is_not_root(bgp_node: Node) -> None:
    """As Debian's service starts it; it can read what is written for it, and nobody else can."""
    base = Path("/run") / f"cni-calico-{os.getpid()}"
    config = base / "conf" / "bird.conf"
    config.parent.mkdir(parents=True)
    config.write_text(EMPTY)
    user = pwd.getpwnam("bird")
    for path in (config.parent, config):
        os.chown(path, user.pw_uid, user.pw_gid)
    bgp_node.more["CALICO_BIRD_CONFIG_DIR"] = f"{base}/bird"
    try:
        with bird(bgp_node, config, "-u", "bird", "-g", "bird"):
            assert bgp_node.calico_node("-confd-run-once").returncode == 0
            assert has_session(bgp_node) and PEER in config.read_text()
            found = config.stat()
            assert (found.st_uid, found.st_mode & 0o777) == (user.pw_uid, 0o600)
    finally:
        shutil.rmtree(base)
