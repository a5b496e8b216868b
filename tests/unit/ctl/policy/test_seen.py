"""What is said beside an explanation while the recorder looks for long, or is not there."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.ctl.policy.seen import describe_seen
from cni_calico.directories import FLOW_SOCKET
from cni_calico.policy.explain import Packet

PACKET = Packet(ip_address("10.0.0.1"), ip_address("10.0.0.2"), 6, 1, 80)


def test_a_recorder_that_looks_for_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALICO_RUN_DIR", str(tmp_path))
    assert describe_seen(PACKET) == ""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / FLOW_SOCKET))
        silent.listen()
        said = describe_seen(PACKET, answer_s=0.2)
        assert said == "Seen on this host in the last hour: unknown, its flow recorder did not answer within 0.2 s."
    assert describe_seen(PACKET) == ""
