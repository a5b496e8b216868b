"""The datastore is away for ten minutes while encryption is mandatory: nothing is lost, and nothing is readable."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.encryption.test_datastore import pair_on_etcd

pytestmark = [pytest.mark.netns, pytest.mark.slow, pytest.mark.etcd, pytest.mark.timeout(1500)]
AWAY_S = 600.0


def test_ten_minutes_without_the_datastore(tmp_path: Path) -> None:
    """Sessions are renewed five times meanwhile, and what is stored afterwards takes effect."""
    with pair_on_etcd(tmp_path) as (pair, etcd):
        stream = pair.stream()
        stream.arrive(20)
        until(lambda: all(pair.handshake(name) for name in pair.nodes), "both have a session", 60)
        begun, lost, shaken = time.monotonic(), stream.outstanding(), pair.handshake("n1")
        etcd.stop()
        until(lambda: time.monotonic() - begun > AWAY_S, "ten minutes have passed", 2 * AWAY_S, pause_s=1)
        assert stream.outstanding() == lost and stream.readable() == 0
        assert pair.handshake("n1") > shaken
        etcd.start(f"etcd={etcd.peer_url}")
        etcd.wait_serving()
        second = pair.add_pod("n2", "b")
        until(lambda: pair.pods["n1"].can_ping(second), "a pod of afterwards is reached", 120, pause_s=0.2)
        assert stream.readable() == 0
