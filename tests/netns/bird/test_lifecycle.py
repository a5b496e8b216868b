"""BIRD as a process: crashes, restarts, refusals, faults; what the kernel keeps and what the status says."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import BirdUnavailable, BirdUnsupported, CalicoError
from cni_calico.nodeagent.bgp.bird import controller as controller_module
from cni_calico.nodeagent.bgp.bird.controller import BirdController
from cni_calico.nodeagent.bgp.bird.probes import read_alive, read_ready
from cni_calico.nodeagent.bgp.bird.process import BirdPaths, has_bird_routes, parse_version
from cni_calico.nodeagent.bgp.config.render import BirdConfig
from tests.deadlines import until
from tests.netns.bird.cluster import BirdNode, Lab
from tests.netns.namespaces import Namespace
from tests.unit.nodeagent.bgp.config.clusters import BIRD, document, node

pytestmark = [pytest.mark.netns, pytest.mark.bird]


def pair(lab: Lab) -> list[Any]:
    """Two nodes with a pod each, converged."""
    documents: list[Any] = [document("IPPool", "p4", cidr="10.65.0.0/16")]
    for i in (1, 2):
        lab.node(f"n{i}", f"172.31.0.{i}/24", blocks=[f"10.65.{i}.0/26"])
        documents.append(node(f"n{i}", f"172.31.0.{i}/24"))
    lab.apply_all(documents)
    lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2})
    return documents


ROUTES_1, ROUTES_2 = {"10.65.2.0/26": "172.31.0.2"}, {"10.65.1.0/26": "172.31.0.1"}


class Ping:
    """A steady ping from pod to pod; ``lost`` ends it and counts."""

    def __init__(self, source: Namespace, address: str) -> None:
        command = ["nsenter", f"--net={source.path}", "ping", "-n", "-i", "0.05", "-W", "1", address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def lost(self) -> int:
        self.process.send_signal(signal.SIGINT)
        text, _ = self.process.communicate(timeout=20)
        (line,) = [line for line in text.splitlines() if "transmitted" in line]
        sent, received = int(line.split()[0]), int(line.split()[3])
        assert received > 10, text
        return sent - received


def ping_between(lab: Lab) -> Ping:
    pods = [lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", make=lab.namespace) for i in (1, 2)]
    until(lambda: pods[0].run("ping", "-c1", "-W1", "10.65.2.2", check=False).returncode == 0, "the first answer")
    return Ping(pods[0], "10.65.2.2")


def is_later_boot(reboot: str, before: str) -> bool:
    """BIRD computes the time again whenever it is asked: it wanders by milliseconds."""
    return datetime.fromisoformat(reboot) - datetime.fromisoformat(before) > timedelta(seconds=0.1)


def await_new_session(bird: BirdNode, before: str) -> None:
    """A session that came up after ``before``, and no graceful restart under way any more."""

    def renewed() -> bool:
        try:
            status = bird.status()
        except BirdUnavailable:
            return False
        again = is_later_boot(status.last_reboot, before)
        return again and not status.recovering and all(p.established for p in status.peers)

    until(renewed, "the session after the restart", 60.0)


def test_a_crash_loses_no_ping(lab: Lab) -> None:
    pair(lab)
    ping = ping_between(lab)
    for name in ("n1", "n2"):
        bird = lab.nodes[name]
        reboot, old = bird.status().last_reboot, bird.kill()
        await_new_session(bird, reboot)
        assert bird.pid() != old
        assert bird.controller.process.restarts == 1
        assert "ended with status -9" in bird.controller.process.last_failure
    lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2})
    assert ping.lost() == 0


def test_an_agent_that_stops_loses_no_ping(lab: Lab) -> None:
    """BIRD ends with its agent and starts with the next one; nobody's kernel lets go of a route meanwhile."""
    documents = pair(lab)
    ping = ping_between(lab)
    first = lab.nodes["n1"]
    reboot = first.status().last_reboot
    first.controller.close()
    with pytest.raises(BirdUnavailable):
        first.status()
    assert first.remote() == ROUTES_1
    first.controller = lab.controller(first.ns, first.controller.paths)
    assert first.apply(documents).outcome == "started"
    await_new_session(first, reboot)
    lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2})
    assert ping.lost() == 0


def test_an_agent_that_is_killed_finds_its_bird(lab: Lab) -> None:
    documents = pair(lab)
    first = lab.nodes["n1"]
    pid, reboot = first.pid(), first.status().last_reboot
    orphan = first.controller
    successor = lab.controller(first.ns, orphan.paths)
    first.controller = successor
    assert first.apply(documents).outcome == "configured", "it cannot know what BIRD has read"
    assert first.pid() == pid and not is_later_boot(first.status().last_reboot, reboot)
    assert first.apply(documents).outcome == "unchanged"
    orphan.process._stopping.set()  # the dead agent's watcher must not restart what the living one owns
    first.kill()
    await_new_session(first, reboot)
    lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2})


def test_a_fresh_node_does_not_wait_for_the_dead(lab: Lab) -> None:
    """A graceful restart holds new routes back for peers that are gone; the first start of a node is none."""
    documents = [document("IPPool", "p4", cidr="10.65.0.0/16")]
    for i in (1, 2):
        lab.node(f"n{i}", f"172.31.0.{i}/24", blocks=[f"10.65.{i}.0/26"])
        documents.append(node(f"n{i}", f"172.31.0.{i}/24"))
    documents.append(node("n3", "172.31.0.3/24"))
    lab.apply_all(documents)
    assert lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2}) < 20.0
    assert not lab.nodes["n1"].status().recovering


def test_only_a_changed_text_is_work(lab: Lab) -> None:
    documents = pair(lab)
    first = lab.nodes["n1"]
    before = first.status().last_reconfiguration
    sessions = [p.since for p in first.status().peers]
    assert first.apply(documents).outcome == "unchanged"
    assert first.status().last_reconfiguration == before
    first.blocks.append("10.65.8.0/26")
    assert first.apply(documents).outcome == "configured"
    assert first.status().last_reconfiguration > before
    assert [p.since for p in first.status().peers] == sessions, "no session was restarted"


def test_a_refused_configuration_is_set_aside(lab: Lab) -> None:
    documents = pair(lab)
    first = lab.nodes["n1"]
    directory = Path(first.controller.paths.config_directory)
    before = {name: (directory / name).read_text() for name in ("bird.cfg", "bird_aggr.cfg", "bird_ipam.cfg")}
    assert first.config is not None
    broken = BirdConfig({**first.config.files, "bird_ipam.cfg": "function broken() { evil }\n"})
    applied = first.controller.apply(broken, Deadline.after(10.0))
    assert applied.outcome == "refused"
    assert "bird_ipam.cfg" in applied.detail
    assert "syntax error" in applied.detail
    assert first.controller.refusal == applied.detail
    assert {name: (directory / name).read_text() for name in before} == before
    assert (directory / "refused" / "bird_ipam.cfg").read_text() == "function broken() { evil }\n"
    assert "syntax error" in (directory / "refused" / "reason.txt").read_text()
    assert first.remote() == ROUTES_1
    assert first.established() == {"Mesh_172_31_0_2"}
    # a crash now: BIRD comes back with what it had
    reboot = first.status().last_reboot
    first.kill()
    await_new_session(first, reboot)
    assert first.remote() == ROUTES_1
    # and the next good one clears it all
    first.blocks.append("10.65.8.0/26")
    assert first.apply(documents).outcome == "configured"
    assert first.controller.refusal == ""
    assert not list((directory / "refused").iterdir())


def test_a_refusal_at_the_start(lab: Lab) -> None:
    """Without anything of before BIRD stays off; with a good old configuration it runs with that."""
    first = lab.node("n1", "172.31.0.1/24")
    broken = BirdConfig({"bird.cfg": "evil;\n"})
    assert first.controller.apply(broken, Deadline.after(10.0)).outcome == "refused"
    assert not first.controller.process.running
    assert first.apply([node("n1", "172.31.0.1/24")]).outcome == "started"
    first.controller.close()
    first.controller = lab.controller(first.ns, first.controller.paths)
    assert first.controller.apply(broken, Deadline.after(10.0)).outcome == "refused"
    assert first.status().running


def test_passwords_are_for_root_alone(lab: Lab) -> None:
    pair(lab)
    directory = Path(lab.nodes["n1"].controller.paths.config_directory)
    for path in directory.rglob("*.cfg"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_bgp_is_turned_off(lab: Lab) -> None:
    """CALICO_NETWORKING_BACKEND changes to vxlan: the sessions end, and BIRD's routes leave the kernel with it."""
    documents = pair(lab)
    first = lab.nodes["n1"]
    first.env["CALICO_NETWORKING_BACKEND"] = "vxlan"
    assert first.apply(documents).outcome == "off"
    assert first.learned() == {}
    assert read_alive(first.controller.paths.socket) != ""
    lab.await_routes({"n2": {}})
    assert first.apply(documents).outcome == "unchanged"
    del first.env["CALICO_NETWORKING_BACKEND"]
    assert first.apply(documents).outcome == "started"
    lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2})


def test_another_birds_routes_stay_when_bgp_is_turned_off(lab: Lab, tmp_path: Path) -> None:
    """One that the host runs for itself, with a socket and a configuration of its own."""
    first = lab.node("n1", "172.31.0.1/24")
    documents = [document("IPPool", "p4", cidr="10.65.0.0/16"), node("n1", "172.31.0.1/24")]
    first.apply(documents)
    first.controller.close()
    first.env["CALICO_NETWORKING_BACKEND"] = "vxlan"
    config = tmp_path / "mine.conf"
    config.write_text(
        "router id 192.0.2.7;\nprotocol device { }\nprotocol kernel { ipv4 { export all; }; }\n"
        "protocol static { ipv4; route 198.51.100.0/24 blackhole; }\n"
    )
    words = [BIRD, "-f", "-c", str(config), "-s", str(tmp_path / "mine.ctl")]
    with subprocess.Popen(["nsenter", f"--net={first.ns.path}", *words]) as theirs:
        try:
            until(lambda: "198.51.100.0/24" in first.learned(), "its route", 20.0)
            assert first.apply(documents).outcome == "off"
            assert first.learned() == {"198.51.100.0/24": "blackhole"}
        finally:
            theirs.terminate()


@pytest.mark.parametrize("point", ["file.write", "file.rename", "bird.connect", "bird.command"])
def test_a_fault_is_repaired_by_the_next_try(lab: Lab, point: str) -> None:
    """At every step: an error of ours, BIRD running with the old or the new text, and the retry brings the new one."""
    documents = pair(lab)
    first = lab.nodes["n1"]
    reached = 0
    for when in ("before", "after"):
        for nth in range(1, 20):
            block = f"10.65.{100 + reached}.0/26"
            first.blocks = ["10.65.1.0/26", block]
            plan = faults.FaultPlan(f"{point}:{when}:{nth}:fail")
            faults.install(plan)
            try:
                first.apply(documents)
            except CalicoError as e:
                assert "injected" in str(e), e
            finally:
                faults.install(None)
            if plan.seen[0] < nth:
                break
            reached += 1
            assert first.status().running
            first.apply(documents)
            lab.await_routes({"n2": {**ROUTES_2, block: "172.31.0.1"}})
    assert reached >= 2
    assert first.established() == {"Mesh_172_31_0_2"}


def test_bird_that_is_absent_or_old(tmp_path: Path) -> None:
    config = BirdConfig({"bird.cfg": "protocol device { }\n"})

    def apply(binary: Path) -> None:
        paths = BirdPaths(str(tmp_path / "cfg"), str(tmp_path / "ctl"), str(tmp_path / "pid"), str(binary))
        BirdController(paths).apply(config, Deadline.after(10.0))

    with pytest.raises(BirdUnsupported, match=r"cannot find BIRD: none of .*nobird"):
        apply(tmp_path / "nobird")
    old = tmp_path / "oldbird"
    for says in ("BIRD version 2.0.7", "BIRD version 1.6.8", "v0.3.3+birdv1.6.8", ""):
        old.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
        old.chmod(0o755)
        with pytest.raises(BirdUnsupported, match=r"2\.0\.12 is the oldest"):
            apply(old)
    assert parse_version("BIRD version 2.0.12\n") == (2, 0, 12)
    assert parse_version("BIRD version 3.1.0") > (2, 0, 12)


def test_bird_that_ends_at_once(tmp_path: Path) -> None:
    """Started and gone: said so, nothing left behind."""
    bad = tmp_path / "bird"
    bad.write_text('#!/bin/sh\ncase "$1" in --version) echo BIRD version 2.0.12 ;; -p) ;; *) exit 7 ;; esac\n')
    bad.chmod(0o755)
    paths = BirdPaths(str(tmp_path / "cfg"), str(tmp_path / "ctl"), str(tmp_path / "pid"), str(bad))
    made = BirdController(paths, left_routes=lambda deadline: False)
    with pytest.raises(BirdUnavailable, match="status 7"):
        made.apply(BirdConfig({"bird.cfg": ""}), Deadline.after(10.0))
    assert not made.process.running
    made.close()


def test_a_bird_that_keeps_dying_is_restarted_ever_more_slowly(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    pair(lab)
    first = lab.nodes["n1"]
    starts: list[float] = []
    launch = first.controller.process._launch

    def counted(*arguments: Any, **keywords: Any) -> Any:
        starts.append(time.monotonic())
        raise BirdUnavailable("cannot start BIRD: a test says no")

    monkeypatch.setattr(first.controller.process, "_launch", counted)
    first.kill()
    until(lambda: len(starts) >= 3, "three attempts", 20.0)
    assert starts[2] - starts[1] > 1.5 * (starts[1] - starts[0]) > 0.5
    assert "a test says no" in first.controller.process.last_failure
    monkeypatch.setattr(first.controller.process, "_launch", launch)
    until(lambda: first.controller.process.running, "BIRD again", 20.0)
    lab.await_routes({"n1": ROUTES_1, "n2": ROUTES_2})


def test_readiness(lab: Lab, tmp_path: Path) -> None:
    documents = pair(lab)
    first = lab.nodes["n1"]
    socket, nodename = first.controller.paths.socket, tmp_path / "nodename"
    assert read_alive(socket) == ""
    nodename.write_text("n1")
    assert read_ready(socket, str(nodename)).ready
    lab.nodes["n2"].controller.close()
    first.apply([*documents, node("n3", "172.31.0.3/24")])
    until(lambda: not any(p.established for p in first.status().peers), "the session's end")
    told = first.ns.call(read_ready, socket, str(nodename))
    assert not told.ready
    assert "172.31.0.2 (node n2) is " in told.text
    assert "172.31.0.3 (node n3) is " in told.text
    assert "TCP port 179: Connection refused" in told.text
    os.utime(nodename, (0, 0))
    assert not read_ready(socket, str(nodename)).ready, "old, and no session at all"
    lab.nodes["n2"].apply(documents)
    until(lambda: first.established() == {"Mesh_172_31_0_2"}, "one session", 30.0)
    told = read_ready(socket, str(nodename))
    assert told.ready, "old: one is enough"
    assert "1 of 2" in told.text
    os.utime(nodename)
    assert not read_ready(socket, str(nodename)).ready, "young: all are needed"
    first.controller.close()
    told = read_ready(socket, str(nodename))
    assert not told.ready
    assert socket in told.text


def test_routes_left_in_the_kernel_are_seen(lab: Lab) -> None:
    pair(lab)
    empty = lab.namespace("empty")
    assert lab.nodes["n1"].ns.call(_left_routes)
    assert not empty.call(_left_routes)


def _left_routes() -> bool:
    return has_bird_routes(Deadline.after(5.0))


def test_the_kernel_can_be_told_again(lab: Lab) -> None:
    pair(lab)
    first = lab.nodes["n1"]
    first.ns.do("route", "del", "10.65.2.0/26")
    first.controller.reload_kernel(Deadline.after(5.0))
    lab.await_routes({"n1": ROUTES_1})


def test_the_points_of_the_module_are_known() -> None:
    assert {"bird.connect", "bird.command", "child.start", "child.signal"} <= faults.POINTS
    assert controller_module.UNCHANGED == "unchanged"
