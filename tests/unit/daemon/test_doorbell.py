"""A bell is heard by its owner only, and nobody waits for it."""

from __future__ import annotations

from pathlib import Path

from cni_calico.daemon.doorbell import hang_bell, ring_bell
from cni_calico.kernel.monitor import FORWARD, Monitor


def test_who_rings_is_heard(tmp_path: Path) -> None:
    path = str(tmp_path / "bell.sock")
    assert not ring_bell(path)
    first = hang_bell(path)
    assert first is not None and Path(path).stat().st_mode & 0o777 == 0o600
    first.close()
    assert not ring_bell(path), "nobody has it any more"
    bell = hang_bell(path)
    monitor = Monitor(bell=bell)
    try:
        for _ in range(2000):
            assert ring_bell(path), "nobody waits where nobody comes"
        assert monitor.wait(0) and FORWARD in monitor.take_changed()
        assert not monitor.wait(0), "once is enough"
    finally:
        monitor.close()
    assert not ring_bell(path)


def test_a_place_where_there_can_be_none(tmp_path: Path) -> None:
    assert hang_bell(str(tmp_path / "nowhere" / "bell")) is None
    assert hang_bell(str(tmp_path / ("x" * 200))) is None
