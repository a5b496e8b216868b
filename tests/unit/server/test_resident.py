"""What the resident server remembers of callers' places is bounded, and never believed too long."""

from types import SimpleNamespace

import pytest

from cni_calico.log import SILENT
from cni_calico.server.metrics import CniMetrics
from cni_calico.server.resident import PLACES_KEPT, Resident


class Memory:
    """Counts how often a backend forgot what it knew."""

    def __init__(self):
        self.forgotten = 0
        self.endpoints = SimpleNamespace(forget=self._forget)
        self.deleted = set()

    def _forget(self):
        self.forgotten += 1


@pytest.fixture
def resident(monkeypatch):
    made = Resident(SILENT, CniMetrics())
    memory = Memory()
    monkeypatch.setattr(made.backends, "open_now", lambda: [memory])
    yield made, memory
    made.close()


def test_it_forgets_when_somebody_was_at_work(resident, tmp_path):
    made, memory = resident
    beside = tmp_path / "cni-beside"
    asked = []
    for text in (None, None, ".", ".", ".."):
        if text is not None:
            beside.write_text(text)
        made.forget_after(str(beside), "here")
        asked.append(memory.forgotten)
    assert asked == [1, 1, 2, 2, 3]


def test_places_that_are_not_met_any_more_are_dropped(resident, tmp_path):
    made, memory = resident
    beside = str(tmp_path / "cni-beside")
    for number in range(3 * PLACES_KEPT):
        made.forget_after(beside, number)
        made.forget_after(beside, "busy")
    assert len(made._beside) == PLACES_KEPT
    assert memory.forgotten == 3 * PLACES_KEPT + 1, "the one that is met all the time is not dropped"
    made.forget_after(beside, 0)
    assert memory.forgotten == 3 * PLACES_KEPT + 2, "of one that was dropped nothing is known"
