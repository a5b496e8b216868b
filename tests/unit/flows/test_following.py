"""What is new, for somebody else: it ends with him, and with the recorder."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.errors import CalicoError
from cni_calico.flows import following
from cni_calico.flows.following import FollowedFlows
from cni_calico.flows.query import FlowQuery, parse_query
from tests.deadlines import soon


@pytest.fixture
def silent_recorder(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "s.sock"))
        made.listen()
        yield made


def test_until_the_asker_has_gone(silent_recorder: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "PULSE_S", 0.01)
    asker, browser = socket.socketpair()
    with asker, browser, FollowedFlows(silent_recorder.getsockname(), FlowQuery(last=3), soon()) as flows:
        recorder, _ = silent_recorder.accept()
        with recorder:
            assert parse_query(recorder.recv(4096)) == FlowQuery(last=3, follow=True)
            told = flows.documents(asker)
            assert next(told) == {}
            recorder.sendall(b'{"lost":1}\n{"lost"')
            assert next(one for one in told if one) == {"lost": 1}
            recorder.sendall(b":2}\n")
            assert next(one for one in told if one) == {"lost": 2}
            threading.Thread(target=browser.close).start()
            assert list(filter(None, told)) == []


@pytest.mark.parametrize(
    ("sends", "raises"),
    [
        (b'{"error":"too many"}\n', "cannot read flows: too many"),
        (b"nonsense\n", "no JSON"),
        (b"[]\n", "no JSON object"),
        (b'{"verdict":"allowed"}\n', "another form: what it says is no flow"),
        (b"", ""),
    ],
)
def test_what_the_recorder_says(silent_recorder: socket.socket, sends: bytes, raises: str) -> None:
    asker, browser = socket.socketpair()
    with asker, browser, FollowedFlows(silent_recorder.getsockname(), FlowQuery(), soon()) as flows:
        recorder, _ = silent_recorder.accept()
        assert recorder.recv(4096)
        recorder.sendall(sends)
        recorder.close()
        if raises:
            with pytest.raises(CalicoError, match=raises):
                list(flows.documents(asker))
        else:
            assert list(flows.documents(asker)) == []


def test_nobody_records(tmp_path: Path) -> None:
    with pytest.raises(CalicoError, match=r"cannot follow flows at .*: No such file"):
        FollowedFlows(str(tmp_path / "none"), FlowQuery(), soon())
