"""The driver's own files: what was written is read again, and what cannot be read is reported and not used."""

from __future__ import annotations

import threading
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.deadline import Deadline
from cni_calico.docker.state import DockerEndpoint, DockerState, EntryLocks, HeldAddress
from cni_calico.errors import DeadlineExceeded
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT

NAME = "ab12"


def opened(root: Path) -> DockerState:
    state = DockerState(Files(), str(root), SILENT)
    state.read()
    return state


def test_what_is_written_is_there_after_a_restart(tmp_path: Path) -> None:
    state = opened(tmp_path)
    endpoint = DockerEndpoint(NAME, "net", "boot", 1.5, ["10.65.0.1"], "02:00:00:00:00:01", {"k": "v"})
    state.endpoints.put(endpoint, durable=True)
    state.endpoints.change(NAME, owed=True)
    state.endpoints.change("absent", owed=True)
    state.addresses.put(HeldAddress(NAME, "boot", "pool", "10.65.0.1"))
    again = opened(tmp_path)
    found = again.endpoint_with("10.65.0.1")
    assert found is not None and asdict(found) == {**asdict(endpoint), "owed": True}
    assert again.holding("10.65.0.1") == HeldAddress(NAME, "boot", "pool", "10.65.0.1")
    again.endpoints.remove(NAME)
    again.endpoints.remove(NAME)
    assert not opened(tmp_path).endpoints.all()
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "docker").rglob("*.json")} == {0o600}


@given(st.binary(max_size=40) | st.sampled_from([b'{"format": 1}', b'{"format": 1, "id": "ab12", "boot": 3}', b"{}"]))
def test_what_cannot_be_read_is_reported_and_stays(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.mktemp("state")
    opened(root)
    path = root / "docker" / "addresses" / f"{NAME}.json"
    path.write_bytes(data)
    state = opened(root)
    assert state.addresses.all() == [] and len(list(state.unreadable())) == 1 and path.read_bytes() == data


def test_a_file_under_another_name_is_not_used(tmp_path: Path) -> None:
    state = opened(tmp_path)
    state.addresses.put(HeldAddress(NAME, "boot"))
    directory = tmp_path / "docker" / "addresses"
    (directory / "cd34.json").write_bytes((directory / f"{NAME}.json").read_bytes())
    assert [held.id for held in opened(tmp_path).addresses.all()] == [NAME]


def test_changes_of_one_entry_take_turns(tmp_path: Path) -> None:
    """Whoever says that an interface is open does not undo what a call has written meanwhile, or fail it."""
    state, failed, both = opened(tmp_path), list[Exception](), threading.Barrier(2)
    state.endpoints.put(DockerEndpoint(NAME, "net", "boot", 1.5))

    def act(name: str) -> None:
        both.wait()
        try:
            for number in range(300):
                state.endpoints.change(NAME, **{name: [str(number)]})
        except Exception as e:
            failed.append(e)

    threads = [threading.Thread(target=act, args=(name,)) for name in ("ports", "left_out")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = opened(tmp_path).endpoints.get(NAME)
    assert not failed and found is not None and found.ports == found.left_out == ["299"]


def test_one_name_s_lock_is_another_name_s_not() -> None:
    locks, inside = EntryLocks(), threading.Event()
    with locks.hold("a", Deadline.after(60)):
        with pytest.raises(DeadlineExceeded), locks.hold("a", Deadline.after(0)):
            pass
        held = locks.hold("a", Deadline.after(60))
        thread = threading.Thread(target=lambda: [inside.set() for _ in (1,) if held.__enter__() is None])
        with locks.hold("b", Deadline.after(60)):
            thread.start()
            assert not inside.is_set()
    thread.join()
    assert inside.is_set()
