"""The recorder's process is started, started again and ended, and is told who has which address."""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.daemon.stopping import Stopping
from cni_calico.flows.host_parameters import HostParameters
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.flows.names import ENDS, EndName, EndsHere, parse_ends
from cni_calico.log import Log
from cni_calico.model.resources import Metadata, WorkloadEndpoint
from cni_calico.nodeagent.context.recording import WantedRecording
from cni_calico.nodeagent.recording.keeper import RecorderKeeper, most_bytes, name_of
from cni_calico.policy.failsafe import INBOUND, OUTBOUND
from tests.deadlines import until

# notes that it runs, with its argument, and whether it is told of rules, until it is ended
PROGRAM = """import os, sys, signal, stat
told = stat.S_ISSOCK(os.fstat(0).st_mode)
open(sys.argv[1], 'a').write(f"{os.getpid()} {sys.argv[2]} {os.environ['CALICO_FLOWS_RECORDED']} {told}\\n")
signal.pause()"""
ENDPOINT = WorkloadEndpoint(
    Metadata("n1-k8s-web-eth0", "shop"), "k8s", "n1", "eth0", "cali1", pod="web", ip_networks=(ip_network("10.0.0.1"),)
)


BY_DEFAULT = WantedRecording("Denied", judges=False, asked=False)


@pytest.fixture
def in_force() -> list[bool]:
    """Whether rules report that nobody has asked to."""
    return [False]


@pytest.fixture
def keeper(tmp_path: Path, in_force: list[bool]) -> Iterator[RecorderKeeper]:
    threads: list[threading.Thread] = []
    stopping = Stopping()

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "ran")]
    log = Log("error", str(tmp_path / "log"), stderr=False)
    made = RecorderKeeper(
        *("n1", str(tmp_path), log, command, os.environ, start, stopping),
        may_begin=lambda wanted: wanted.asked or in_force[0],
    )
    yield made
    stopping.set()
    for thread in threads:
        thread.join()


def ran(root: Path) -> list[list[str]]:
    try:
        return [line.split() for line in (root / "ran").read_text().splitlines()]
    except FileNotFoundError:
        return []


def is_there(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_nothing_is_started_or_written_while_it_is_off(keeper: RecorderKeeper, tmp_path: Path) -> None:
    keeper.use(WantedRecording("Disabled"), [ENDPOINT])
    assert not list(tmp_path.iterdir())


def test_it_is_started_again_and_ended(keeper: RecorderKeeper, tmp_path: Path) -> None:
    keeper.use(WantedRecording("Denied"), [ENDPOINT])
    until(lambda: len(ran(tmp_path)) == 1, "it runs")
    os.kill(int(ran(tmp_path)[0][0]), 9)
    until(lambda: len(ran(tmp_path)) == 2, "it runs again")
    assert {arguments[1] for arguments in ran(tmp_path)} == {"-flow-recorder"}
    keeper.use(WantedRecording("Disabled"), [])
    until(lambda: not is_there(ran(tmp_path)[1][0]), "it has ended")
    keeper.use(WantedRecording("Enabled"), [])
    until(lambda: len(ran(tmp_path)) == 3, "it runs once more")


def test_what_nobody_asked_for_begins_with_the_rules_that_report(
    keeper: RecorderKeeper, tmp_path: Path, in_force: list[bool]
) -> None:
    keeper.use(BY_DEFAULT, [ENDPOINT])
    keeper.heard()
    keeper.use(BY_DEFAULT, [ENDPOINT])
    assert not list(tmp_path.iterdir())
    in_force[0] = True
    keeper.heard()
    until(lambda: len(ran(tmp_path)) == 1, "it runs")
    assert (tmp_path / ENDS).exists()
    in_force[0] = False
    keeper.heard()
    os.kill(int(ran(tmp_path)[0][0]), 9)
    until(lambda: len(ran(tmp_path)) == 2, "what was recorded can still be read")


def test_only_who_judges_is_told_which_rules_are_in_force(
    keeper: RecorderKeeper, tmp_path: Path, in_force: list[bool]
) -> None:
    in_force[0] = True
    hosts = HostParameters(INBOUND, OUTBOUND, ())
    keeper.use(BY_DEFAULT, [ENDPOINT], hosts=hosts)
    until(lambda: len(ran(tmp_path)) == 1, "it runs")
    assert parse_ends((tmp_path / ENDS).read_bytes()).hosts is None
    keeper.use(WantedRecording("Denied"), [ENDPOINT], hosts=hosts)
    until(lambda: len(ran(tmp_path)) == 2, "another one runs")
    assert [arguments[2:] for arguments in ran(tmp_path)] == [["Denied", "False"], ["Denied", "True"]]
    assert parse_ends((tmp_path / ENDS).read_bytes()).hosts == hosts


def test_it_is_the_first_to_go_when_memory_runs_out(keeper: RecorderKeeper, tmp_path: Path) -> None:
    keeper.use(WantedRecording("Enabled"), [ENDPOINT])
    until(lambda: ran(tmp_path), "it runs")
    score = Path(f"/proc/{ran(tmp_path)[0][0]}/oom_score_adj")
    until(lambda: int(score.read_text()) > int(Path("/proc/self/oom_score_adj").read_text()) + 100, "it would go first")


def test_its_memory_has_a_limit_which_follows_the_parameter(keeper: RecorderKeeper, tmp_path: Path) -> None:
    def most() -> int:
        return resource.prlimit(int(ran(tmp_path)[0][0]), resource.RLIMIT_DATA)[0]

    keeper.use(WantedRecording("Enabled"), [ENDPOINT])
    until(lambda: ran(tmp_path) and most() == most_bytes(USUAL_LIMITS), "it is limited")
    larger = FlowLimits(live=10_000_000)
    keeper.use(WantedRecording("Enabled"), [ENDPOINT], limits=larger)
    until(lambda: most() == most_bytes(larger) > 10 << 30, "it has room for more connections")
    assert len(ran(tmp_path)) == 1  # without beginning anew


def test_who_has_which_address(keeper: RecorderKeeper, tmp_path: Path) -> None:
    keeper.use(WantedRecording("Enabled"), [ENDPOINT])
    path = tmp_path / ENDS
    web = EndName("pod", "shop", "web")
    labels = dict(ENDPOINT.metadata.labels)
    assert parse_ends(path.read_bytes()) == EndsHere("n1", {bytes((10, 0, 0, 1)): web}, {web: labels}, 86400)
    before = os.stat(path).st_ino
    keeper.use(WantedRecording("Enabled"), [ENDPOINT])
    assert os.stat(path).st_ino == before
    keeper.use(WantedRecording("Enabled"), [ENDPOINT], 3600.0)
    assert parse_ends(path.read_bytes()).kept_s == 3600
    keeper.use(WantedRecording("Enabled"), [ENDPOINT], 3600.0, HostParameters(INBOUND, OUTBOUND, ("kube-ipvs0",)))
    assert parse_ends(path.read_bytes()).hosts == HostParameters(INBOUND, OUTBOUND, ("kube-ipvs0",))
    assert parse_ends(path.read_bytes()).limits == USUAL_LIMITS
    keeper.use(WantedRecording("Enabled"), [ENDPOINT], limits=FlowLimits(500, 2000))
    assert parse_ends(path.read_bytes()).limits == FlowLimits(500, 2000)
    path.unlink()
    path.mkdir()
    keeper.use(WantedRecording("Enabled"), [])
    assert str(path) in keeper.troubles["names of flows"]


def test_a_container_without_a_pod_has_its_own_name() -> None:
    endpoint = WorkloadEndpoint(Metadata("n1-cni-abc-eth0", "podman"), "cni", "n1", "eth0", "cali1", workload="abc")
    assert name_of(endpoint) == EndName("workload", "podman", "abc")


def test_a_recorder_that_ends_at_once_is_told(tmp_path: Path) -> None:
    told: dict[str, str] = {}
    stopping = Stopping()
    log = Log("error", str(tmp_path / "log"), stderr=False)
    threads: list[threading.Thread] = []

    def start(work: Callable[[], None]) -> None:
        threads.append(threading.Thread(target=work))
        threads[-1].start()

    command = [sys.executable, "-c", "raise SystemExit(1)"]
    keeper = RecorderKeeper("n1", str(tmp_path), log, command, os.environ, start, stopping, told.__setitem__)
    keeper.use(WantedRecording("Enabled"), [])
    try:
        until(lambda: "not recorded" in told.get("the flow recorder", ""), "it is told")
        (tmp_path / ENDS).unlink()
        (tmp_path / ENDS).mkdir()
        keeper.use(WantedRecording("Enabled"), [ENDPOINT])
        assert told["names of flows"]
        keeper.use(WantedRecording("Disabled"), [])
        until(lambda: not any(told.values()), "nothing is wrong with what is not wanted")
        keeper.use(WantedRecording("Enabled"), [ENDPOINT])
        assert told["names of flows"], "it still cannot be written"
    finally:
        stopping.set()
        threads[0].join()
