"""dockerd that stops, or starts again without its containers; a driver that is not there when Docker asks."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from functools import partial

import pytest

from tests.deadlines import until
from tests.netns.docker.machine import Machine
from tests.netns.docker.test_driver import LISTEN, answers, deny, start_agent
from tests.netns.docker.test_ports import HOST, knock, outside, published

pytestmark = [pytest.mark.netns, pytest.mark.docker, pytest.mark.slow]

WAYS = ("run", "connect", "stop")


def restart_docker(box: Machine, *options: str) -> None:
    box.end("dockerd")
    box.start_docker(*options)


def test_live_restore(box: Machine) -> None:
    """dockerd joins nothing again: what was made has to be there still, and goes when the containers go."""
    deny(box, "jailed", "Egress")
    start_agent(box)
    restart_docker(box, "--live-restore")
    for name in ("web", "zz"):
        box.network(name)
    address = box.run("server", "web", "-p", "8080:80", command=LISTEN)
    for name in ("client", "jailed"):
        box.run(name, "web")
    with outside(box) as other:
        pid = box.inspect("server")["State"]["Pid"]
        restart_docker(box, "--live-restore")
        assert box.inspect("server")["State"]["Pid"] == pid and box.address("server", "web") == address
        assert knock(other, HOST, 8080) and answers(box, "client", address) and not answers(box, "jailed", address)
        assert len(box.records()) == len(box.handles()) == len(box.veths()) == 3
        box.docker("network", "connect", "zz", "client")
        box.docker("network", "disconnect", "zz", "client")
        box.end("driver", signal.SIGKILL)
        box.start_driver()
        assert knock(other, HOST, 8080) and published(box, "server")
        box.age("endpoints", "addresses", "networks")
        box.docker("rm", "-f", "client", "jailed", "server")
        assert not knock(other, HOST, 8080)
        until(box.is_clean, "nothing is left")
    assert "calico-published" not in box.lab.host.run("nft", "list", "tables").stdout
    restart_docker(box)


def test_a_dockerd_that_stops_and_starts(box: Machine) -> None:
    deny(box, "jailed", "Egress")
    start_agent(box)
    box.network("web")
    box.run("server", "web", "--restart", "always", "-p", "8080:80", command=LISTEN)
    box.end("dockerd")
    until(box.is_clean, "it has ended its containers, and said so")
    box.start_docker()
    until(lambda: set(box.records()) == {"server"}, "it is up again")
    assert len(box.handles()) == len(box.veths()) == 1
    for name in ("client", "jailed"):
        box.run(name, "web")
    until(lambda: answers(box, "client", box.address("server", "web")), "its program listens")
    assert not answers(box, "jailed", box.address("server", "web"))
    assert [each["hostPort"] for each in published(box, "server")] == [8080]


def test_no_driver_when_containers_are_removed(box: Machine) -> None:
    """Docker waits for a minute, and then it has forgotten them; we find out."""
    box.network("web")
    for name in ("gone", "stays"):
        box.run(name, "web", "-p", "80")
    box.end("driver", signal.SIGKILL)
    box.docker("rm", "-f", "gone")
    assert len(box.veths()) == 2, "what nobody was told to remove"
    refused = box.refused("run", "--name", "late", "--network", "web", "box", "true")
    assert "calico-ipam" in refused, "a start is refused, after 15 s, and says who is missing"
    box.age("endpoints", "addresses")
    box.start_driver()
    until(lambda: set(box.records()) == {"stays"} and len(box.handles()) == len(box.veths()) == 1, "one is left")
    assert len(published(box, "stays")) == 1


def test_no_driver_when_docker_starts(box: Machine) -> None:
    """Nobody holds its sockets, either: containers stay down, and nothing of the boot before is left."""
    box.network("web")
    box.run("server", "web", "--restart", "always", command=LISTEN)
    box.power_off()
    box.power_on()
    box.start_docker(wait=False)
    until(lambda: box.docker("version", check=False).returncode == 0, "dockerd serves", 240, pause_s=1)
    assert not box.inspect("server")["State"]["Running"]
    box.start_driver()
    until(box.is_clean, "what the boot before has left")
    box.docker("start", "server")
    assert set(box.records()) == {"server"} and len(box.handles()) == len(box.veths()) == 1


def steps(box: Machine) -> int:
    """How many steps with effects the driver has behind it."""
    trace = box.root / "trace"
    return sum(line.endswith(":after") for line in trace.read_text().splitlines()) if trace.exists() else 0


def begin_again(box: Machine, *, may_end: bool = False, **environ: str) -> None:
    if box.is_running("driver"):
        box.end("driver")
    box.start_driver(may_end=may_end, **environ)


def die_at_every_step(box: Machine, what: str, is_clean: Callable[[], bool]) -> None:
    """Whatever is half done is undone, or owed; the next container starts."""
    for name in ("web", "zz"):
        box.network(name)
    commands = {
        "run": ("run", "-d", "--name", "one", "--network", "web", "-p", "8080:80", "box", "sleep", "1000"),
        "connect": ("network", "connect", "zz", "one"),
        "stop": ("stop", "-t", "0", "one"),
    }

    def prepare() -> None:
        if what != "run":
            box.run("one", "web", "-p", "8080:80")

    def is_over(begun: subprocess.Popen[str]) -> bool:
        """What ends has steps also after the last answer."""
        return not box.is_running("driver") or (begun.poll() is not None and (what != "stop" or is_clean()))

    prepare()
    (box.root / "trace").unlink(missing_ok=True)
    begin_again(box, CALICO_FAULT_TRACE=str(box.root / "trace"))
    first = step = steps(box)
    box.docker(*commands[what])
    assert steps(box) - first > 5
    box.docker("rm", "-f", "one")
    died = True
    while died:
        step += 1
        prepare()
        # a start has more steps where something is left
        begin_again(box, may_end=True, CALICO_FAULT=f"*:after:{step}:kill")
        begun = box.begin(*commands[what])
        until(partial(is_over, begun), "it dies, or is done")
        died = not box.is_running("driver")
        if not died:  # the command has fewer steps
            box.end("driver", signal.SIGKILL)
        box.make_well()
        begun.communicate(timeout=60)
        box.docker("rm", "-f", "one", check=False)
        if not is_clean():  # what Docker does not ask about is found when it is old
            box.end("driver")
            box.age("endpoints", "addresses")
            box.start_driver()
            until(is_clean, f"step {step} leaves nothing")
    assert step - first > 5
    assert box.run("two", "web", "-p", "8080:80")


@pytest.mark.takes(300)
@pytest.mark.parametrize("what", WAYS)
def test_the_driver_dies_at_every_step(box: Machine, what: str) -> None:
    die_at_every_step(box, what, box.is_clean)
