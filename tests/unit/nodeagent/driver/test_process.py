"""Real children: what they get, and what becomes of those that end, say nonsense or cannot be started."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.nodeagent.driver.messages import encode_config
from cni_calico.nodeagent.driver.process import MOST_BYTES, DriverFailed, DriverProcess, Frames, find_driver, frame
from cni_calico.nodeagent.sync.felix_pb2 import ToDataplane
from tests.deadlines import until
from tests.fakes.driven import write_driver


class Started:
    """``said``: what the driver has said; ``woken``: something is to be looked at."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.said: list[bytes] = []
        self.woken = threading.Event()
        self.running: list[DriverProcess] = []

    def start(self, script: str) -> DriverProcess:
        write_driver(self.directory, script, "driver")
        self.running.append(DriverProcess("driver", self.receive, self.woken.set))
        return self.running[-1]

    def receive(self, message: bytes) -> None:
        if message == b"nonsense":
            raise ValueError("it is no message")
        self.said.append(message)
        self.woken.set()


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("cni_calico.nodeagent.driver.process._END_S", 0.5)
    found = Started(tmp_path)
    yield found
    for process in found.running:
        process.stop()


def always() -> bool:
    return False


def failure(process: DriverProcess) -> str:
    found: list[str] = []

    def failed() -> bool:
        try:
            process.require_alive()
        except DriverFailed as e:
            found.append(str(e))
        return bool(found)

    until(failed, "it has failed", 60)
    return found[0]


def test_what_is_sent_is_framed_and_numbered(started: Started, tmp_path: Path) -> None:
    process = started.start(f"head -c 0 <&0; cat <&3 >{tmp_path}/got")
    messages = [encode_config({"A": str(i)}) for i in range(200)]
    for message in messages:
        process.send(message, always)
    process.stop()
    started.running.clear()
    read = Frames().receive((tmp_path / "got").read_bytes())
    found = [ToDataplane.FromString(one) for one in read]
    assert [one.sequence_number for one in found] == list(range(200))
    assert [dict(one.config_update.config) for one in found] == [{"A": str(i)} for i in range(200)]


def test_what_it_says_comes_in_whatever_the_pieces(started: Started) -> None:
    started.start(
        "printf '\\003\\000\\000\\000' >&4; sleep 0.05; printf '\\000\\000\\000\\000ab' >&4; printf c >&4; cat <&3"
    )
    until(lambda: started.said, "a message", 60)
    assert started.said == [b"abc"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 3", "the data plane driver driver has ended with status 3"),
        ("kill -9 $$", "the data plane driver driver has ended by signal 9"),
        (r"printf '\010\000\000\000\000\000\000\000nonsense' >&4; cat <&3", "cannot be understood: it is no message"),
        (r"printf 'GET / HTTP/1.1\r\n' >&4; cat <&3", "cannot be understood: a message of "),
        ("exec 4>&-; cat <&3", "says nothing any more"),
    ],
)
def test_one_that_fails(started: Started, script: str, why: str) -> None:
    process = started.start(script)
    assert why in failure(process)
    assert started.woken.wait(60)
    with pytest.raises(DriverFailed):
        process.send(b"", always)


def test_one_that_does_not_read_holds_nobody_who_is_stopping(started: Started) -> None:
    process = started.start("sleep 600 3<&-")
    process = started.start("exec sleep 600")
    stopping = threading.Event()
    timer = threading.Timer(0.3, stopping.set)
    timer.start()
    process.send(bytes(4 << 20), stopping.is_set)  # more than a pipe holds
    assert stopping.is_set()


def test_one_that_does_not_end_is_ended(started: Started) -> None:
    process = started.start("trap '' TERM; echo >&4; while :; do sleep 1; done")
    until(lambda: Path(f"/proc/{process.pid}").exists(), "it runs")
    process.stop()
    started.running.clear()
    assert not Path(f"/proc/{process.pid}").exists()


def test_it_has_no_other_descriptors(started: Started, tmp_path: Path) -> None:
    with (tmp_path / "secret").open("w") as secret:
        os.set_inheritable(secret.fileno(), False)
        started.start(f"ls -l /proc/$$/fd >{tmp_path}/list; mv {tmp_path}/list {tmp_path}/fds; cat <&3")
        until((tmp_path / "fds").exists, "its descriptors", 60)
    listed = (tmp_path / "fds").read_text()
    assert "secret" not in listed and "/dev/null" in listed
    assert sum("pipe:" in line for line in listed.splitlines()) >= 2


def test_what_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "odd").write_text("\0\1\2")
    (tmp_path / "odd").chmod(0o755)
    with pytest.raises(DriverFailed, match="no directory of PATH has it"):
        find_driver("plain")
    with pytest.raises(DriverFailed, match="is no executable file"):
        find_driver(f"{tmp_path}/plain")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DriverFailed, match=r"cannot start the data plane driver .*/odd: Exec format error"):
        DriverProcess("odd", print, print)
    assert len(os.listdir("/proc/self/fd")) == len(before)


@given(st.lists(st.binary(max_size=20)), st.lists(st.integers(1, 9)))
def test_frames_in_any_pieces(messages: list[bytes], pieces: list[int]) -> None:
    data, frames, found = b"".join(map(frame, messages)), Frames(), []
    for length in pieces:
        found += frames.receive(data[:length])
        data = data[length:]
    found += frames.receive(data)
    assert found == messages


def test_a_frame_that_is_too_long() -> None:
    with pytest.raises(ValueError, match="expected at most"):
        Frames().receive((MOST_BYTES + 1).to_bytes(8, "little"))
