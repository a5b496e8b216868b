"""What several files of this folder ask for."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernels.features import has
from tests.netns.policing.agents import BEFORE, EARLIER, unpack, write_earlier
from tests.netns.policing.lab import Lab, lab
from tests.netns.policing.reported import asked_records
from tests.netns.policing.uplinked import Uplinked, uplinked_lab


@pytest.fixture(autouse=True)
def ask_for_records(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every packet that goes through policy, unless the marker ``unrecorded`` says why a test cannot. The machines
    of tests/kernels are too slow for it: there tests/netns/flows/test_decisions.py asks, on each stock kernel; and
    the user-mode kernel, which has no nfnetlink_log, reports nothing.
    """
    excused = request.node.get_closest_marker("unrecorded")
    assert excused is None or len(excused.args) == 1, "the marker says why"
    if excused is None and not has("machine") and not has("user-mode"):
        monkeypatch.setattr(Lab, "watched_by", staticmethod(asked_records))


@pytest.fixture
def two_workloads(tmp_path: Path) -> Iterator[Lab]:
    """Workloads a and b, whose profile allows what no policy of theirs decides; no engine is started."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


@pytest.fixture
def uplinked(tmp_path: Path) -> Iterator[Uplinked]:
    with uplinked_lab(tmp_path) as made:
        yield made


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the version before."""
    made: Path = tmp_path_factory.mktemp("earlier")
    archive = Path(os.environ.get(EARLIER, made / "earlier.tar"))
    if EARLIER not in os.environ and not write_earlier(archive):
        pytest.skip(f"history: commit {BEFORE[:8]} is not here, so there is no version to upgrade from")
    unpack(archive, made / "earlier")
    return made / "earlier"
