"""What every suite shares: which tests can run on this machine, and that none is skipped without being noticed.

Rule: a test is skipped for one of three reasons, a marker's need that this machine does not meet, a feature of the
kernel that the marker ``kernel`` names, or one of ``MAY_BE_SKIPPED``. With ``--no-unexpected-skips`` (as ./test.sh
calls pytest) any other skip, and a marker's skip on a machine that has root and network namespaces, is a failure. What
is skipped for the kernel runs in tests/kernels, where such a skip is a failure. A run in which no test ran is one, too,
and a whole run in which one of the tests ran nowhere (tests/everywhere.py).
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings

from tests import deadlines
from tests.again import Again, Recorder
from tests.everywhere import Everywhere
from tests.kernels import features, images
from tests.large_pages import use_large_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from cni_calico.deadline import Deadline

ROOT = Path(__file__).resolve().parent.parent
LAB_CACHE = images.LAB_CACHE

# fixtures that more than one suite uses
pytest_plugins = (
    "tests.fixtures.expanded",
    "tests.fixtures.kubernetes",
    "tests.fixtures.namespaces",
    "tests.fixtures.nodes",
    "tests.fixtures.releases",
    "tests.fixtures.seeds",
)

SUMMARY = "summary"  # the property of a test whose value is a line at the end of the run

# beginnings of reasons that are good ones anywhere: asked for with --slow, not in that datastore, no commits of before
# in this copy of the sources
MAY_BE_SKIPPED = ("slow: ", "backend: ", "history: ", "docker28: ", "docker29: ")
KERNEL = "kernel: "  # of the marker's reasons


@cache
def has_namespaces() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode == 0


def has_tool(*names: str) -> bool:
    return all((LAB_CACHE / name).is_file() for name in names)


def has_program(*names: str) -> bool:
    return all(Path(f"/usr/bin/{name}").exists() for name in names)


ARM64_PROGRAMS = ("aarch64-linux-gnu-gcc", "qemu-aarch64", "qemu-aarch64-static")
# marker -> (is its need met?, the reason when it is not)
NEEDS: dict[str, tuple[Callable[[], bool], str]] = {
    "netns": (has_namespaces, "netns: needs root and network namespaces"),
    "bird": (lambda: Path("/usr/sbin/bird").exists(), "bird: needs BIRD 2 (Debian's bird2)"),
    "old_bird": (lambda: has_tool("old-bird/usr/sbin/bird6"), "old_bird: tests/setup/tests.sh unpacks it"),
    "runit": (lambda: Path("/usr/bin/runsvdir").exists(), "runit: tests/setup/tests.sh installs it"),
    "etcd": (lambda: has_tool("bin/etcd"), "etcd: tests/setup/tests.sh builds it"),
    "kubernetes": (
        lambda: has_tool("bin/etcd", "bin/kube-apiserver", "bin/kubectl"),
        "kubernetes: tests/setup/tests.sh builds it",
    ),
    "iperf3": (lambda: has_program("iperf3"), "iperf3: tests/setup/tests.sh installs it"),
    "flannel": (lambda: has_tool("bin/flanneld"), "flannel: tests/setup/flannel.sh builds it"),
    "helm": (lambda: has_tool("bin/helm"), "helm: tests/setup/tests.sh builds it"),
    "docker": (lambda: has_tool("docker-20.10/usr/sbin/dockerd"), "docker: tests/setup/tests.sh unpacks it"),
    "docker28": (lambda: has_tool("docker-28/usr/sbin/dockerd"), "docker28: Debian's newest suite has another one"),
    "docker29": (
        lambda: has_tool("docker-29/dockerd", "docker-29/runc", "docker-28/usr/sbin/dockerd"),
        "docker29: tests/setup/docker.sh builds it",
    ),
    "npapi": (lambda: has_tool("bin/npapi.test"), "npapi: tests/setup/npapi.sh builds it"),
    "nerdctl": (lambda: has_tool("bin/nerdctl", "bin/containerd/containerd"), "nerdctl: tests/setup/lab.sh builds it"),
    "registries": (
        lambda: (
            has_tool("bin/crane", "bin/cosign", "bin/sigstore-here") and has_program("docker-registry", "skopeo", "jq")
        ),
        "registries: tests/setup/registries.sh makes it",
    ),
    "cnitool": (lambda: has_tool("bin/cnitool", "cni/bin/portmap"), "cnitool: tests/setup/tests.sh builds it"),
    "lab": (
        lambda: has_tool(
            "bin/kubelet", "bin/containerd/containerd", "bin/kube-scheduler", "bin/coredns", "bin/e2e.test"
        ),
        "lab: tests/setup/lab.sh builds it",
    ),
    "arm64": (
        lambda: all(Path(f"/usr/bin/{name}").exists() for name in ARM64_PROGRAMS),
        "arm64: tests/setup/tests.sh installs what it needs",
    ),
    "kernels": (
        lambda: images.find_root() is not None and Path(f"/usr/bin/{images.own_architecture().emulator}").exists(),
        "kernels: tests/setup/kernels.sh fetches it",
    ),
    "arm64_kernel": (
        lambda: (
            images.find_root(images.ARCHITECTURES["arm64"]) is not None
            and Path(f"/usr/bin/{images.ARCHITECTURES['arm64'].emulator}").exists()
        ),
        "arm64_kernel: KERNELS_ARCH=arm64 tests/setup/kernels.sh fetches it",
    ),
    "actionlint": (lambda: has_tool("bin/actionlint"), "actionlint: tests/setup/actionlint.sh builds it"),
    "browser": (lambda: Path("/usr/bin/chromium").exists(), "browser: tests/setup/browser.sh installs it"),
    "bundle": (
        lambda: Path("/usr/bin/objcopy").exists() or features.has("machine"),
        "bundle: tests/setup/python.sh installs what it needs",
    ),
}

# nothing is timed: a busy machine makes every example slow
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("cni-calico")
    group.addoption("--slow", action="store_true", help="run the tests marked slow too")
    group.addoption(
        "--no-unexpected-skips", action="store_true", help="fail for a skip without one of the good reasons"
    )
    group.addoption(
        "--kernel", choices=images.SERIES, default=images.DEFAULT_SERIES, help="the stock kernel to run tests on"
    )
    group.addoption("--again", action="store_true", help="run what failed once more, alone, and count that")
    group.addoption("--reports", type=Path, metavar="FILE", help="write every test's reports (what --again calls)")


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job: programs would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--reports"):
        config.pluginmanager.register(Recorder(config, config.getoption("--reports")))
    elif config.getoption("--again") and not is_worker(config):
        config.pluginmanager.register(Again(config))
    if config.getoption("--no-unexpected-skips") and not is_worker(config):
        config.pluginmanager.register(Everywhere(config))


def is_worker(config: pytest.Config) -> bool:
    """True in a process that another one (pytest -n) sends its tests to."""
    return hasattr(config, "workerinput")


def is_slow(item: pytest.Item) -> bool:
    """Marked slow, or slow_on a value that one of its parameters has, if none has a value that ``but`` excepts."""
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return bool(
        item.get_closest_marker("slow")
        or any(
            any(value in marker.args for value in values)
            and not any(value in marker.kwargs.get("but", ()) for value in values)
            for marker in item.iter_markers("slow_on")
        )
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        names = {marker.name for marker in item.iter_markers()}  # asking for each of them takes ten times as long
        names |= {"bundle"}.intersection(getattr(item, "fixturenames", ()))
        if not names:
            continue
        if not config.getoption("--slow") and is_slow(item):
            item.add_marker(pytest.mark.skip(reason="slow: only with ./test.sh --all"))
        for marker, (met, reason) in NEEDS.items():
            if marker in names and not met():
                item.add_marker(pytest.mark.skip(reason=reason))
        if "kernel" in names and not item.get_closest_marker("skip"):
            for name in missing_features(item):
                item.add_marker(pytest.mark.skip(reason=f"{KERNEL}no {name} here; tests/kernels has kernels with it"))
    if is_worker(config):
        # files are handed out in this order; the last ones should not keep a single worker busy
        cost: dict[Path, float] = defaultdict(float)
        for item in items:
            cost[item.path] += estimated_seconds(item)
        items.sort(key=lambda item: (-cost[item.path], item.path))


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Of what is made meanwhile next to nothing is garbage, and looking for it takes a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was collected stays until the end. The children that tests fork would copy all of it, the memory of ten
    thousand tests, as soon as their garbage collector looked at it.
    """
    gc.collect()
    gc.freeze()
    if is_worker(session.config):
        use_large_pages()


def missing_features(item: pytest.Item) -> list[str]:
    """What the test's markers ``kernel`` name and this kernel lacks."""
    wanted = [name for marker in item.iter_markers("kernel") for name in marker.args]
    return [name for name in wanted if not features.has(name)]


# how long a test takes, about; the first marker it has decides, if it is not marked takes(SECONDS)
SECONDS = {"skip": 0.0, "lab": 60.0, "bird": 5.0, "kubernetes": 1.0, "etcd": 1.0, "netns": 0.7}


def estimated_seconds(item: pytest.Item) -> float:
    found = {marker.name: marker for marker in reversed(list(item.iter_markers()))}
    if "takes" in found and "skip" not in found:
        return float(found["takes"].args[0])
    return next((seconds for marker, seconds in SECONDS.items() if marker in found), 0.03)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests run in one process, and all labs in one: they borrow the same settings of the machine. Each
    virtual machine is anybody's: of several in a file the last ones would keep a single processor busy.
    """
    from xdist.scheduler import LoadFileScheduling

    def split_scope(self: Any, nodeid: str) -> Any:
        if nodeid.startswith(("tests/kernels/test_stock_kernels.py", "tests/kernels/test_reboots.py")):
            return nodeid
        return "tests/lab" if nodeid.startswith("tests/lab/") else LoadFileScheduling._split_scope(self, nodeid)

    by_file: Any = type("ByFile", (LoadFileScheduling,), {"_split_scope": split_scope})
    return by_file(config, log) if config.getoption("dist") == "loadfile" else None


def unexpected(reason: str, item: pytest.Item | None = None) -> bool:
    """True for a skip that hides something: not a good reason anywhere, and not one on this machine. That the kernel
    lacks something is none in a machine of tests/kernels, and none without the marker, by which those find their tests.
    """
    if reason.startswith(KERNEL):
        return features.has("machine") or item is None or item.get_closest_marker("kernel") is None
    if reason.startswith(MAY_BE_SKIPPED):
        return False
    return has_namespaces() or not reason.startswith(tuple(f"{marker}: " for marker in NEEDS))


def _fail_if_unexpected(config: pytest.Config, report: Any, item: pytest.Item | None = None) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or not config.getoption("--no-unexpected-skips"):
        return
    reason = (
        report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else str(report.longrepr)
    )
    if unexpected(reason, item):
        report.outcome = "failed"
        report.longrepr = f"skipped, but has to run on this machine: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_unexpected(item.config, report, item)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_unexpected(collector.config, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    clusters = sys.modules.get("tests.e2e.kubernetes.cluster")
    if clusters is not None and (item.get_closest_marker("kubernetes") or "kubernetes" in item.nodeid):
        clusters.resume_shared()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Between files nobody asks an API server; the next file may be long, and about something else."""
    clusters = sys.modules.get("tests.e2e.kubernetes.cluster")
    if clusters is not None and (nextitem is None or nextitem.path != item.path):
        clusters.pause_shared()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run in which every test was skipped has shown nothing."""
    terminal: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or session.config.option.collectonly or session.exitstatus != pytest.ExitCode.OK:
        return
    if not any(terminal.getreports(category) for category in ("passed", "xfailed", "xpassed")):
        session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """What tests record as SUMMARY is shown when they pass, too."""
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    lines = [str(value) for report in reports for name, value in report.user_properties if name == SUMMARY]
    for line in sorted(set(lines)):
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def bundle() -> Path:
    """The directory with the frozen executables of the sources as they are."""
    if features.has("machine"):  # frozen before it was started
        return ROOT / "dist" / "bin"
    done = subprocess.run([ROOT / "build" / "build.sh"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return ROOT / "dist" / "bin"


@pytest.fixture
def soon() -> Deadline:
    """For tests that make their calls within half a minute."""
    return deadlines.soon()
