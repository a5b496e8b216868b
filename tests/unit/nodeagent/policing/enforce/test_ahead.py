"""The kernel is asked while the agent is imported; the answer is used once, for the parameters it was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cni_calico.errors import KernelError
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.policing.enforce import ahead
from cni_calico.nodeagent.policing.enforce.filters import DataPlane

FELIX = parse_felix({}).settings
OTHER = replace(FELIX, mark_mask=0xF0000)


class Kernel:
    """Fails so many times, then answers with the number of the question."""

    def __init__(self, failures: int = 0) -> None:
        self.asked: list[FelixSettings] = []
        self._failures = failures

    def look(self, felix: FelixSettings) -> DataPlane:
        self.asked.append(felix)
        if len(self.asked) <= self._failures:
            raise KernelError("no answer")
        return DataPlane(report_group=len(self.asked))


@pytest.fixture
def asked_kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    found = Kernel()
    monkeypatch.setattr(ahead, "look", found.look)
    return found


def test_the_answer_is_used_once(asked_kernel: Kernel) -> None:
    look = ahead.look_ahead(FELIX, policed=True)
    assert look(FELIX).report_group == 1 and len(asked_kernel.asked) == 1
    assert look(FELIX).report_group == 2, "by then it may have another packet filter"


def test_other_parameters_are_another_question(asked_kernel: Kernel) -> None:
    assert ahead.look_ahead(FELIX, policed=True)(OTHER).report_group == 2
    assert asked_kernel.asked == [FELIX, OTHER]


def test_a_failure_is_told_to_whoever_needs_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_kernel = Kernel(failures=2)
    monkeypatch.setattr(ahead, "look", asked_kernel.look)
    look = ahead.look_ahead(FELIX, policed=True)
    with pytest.raises(KernelError, match="no answer"):
        look(FELIX)
    assert look(FELIX).report_group == 3


@pytest.mark.parametrize(
    ("felix", "policed"),
    [(FELIX, False), (replace(FELIX, internal_driver=False), True), (replace(FELIX, standing_rules="Disabled"), True)],
)
def test_who_needs_no_answer_asks_nothing(asked_kernel: Kernel, felix: FelixSettings, policed: bool) -> None:
    look = ahead.look_ahead(felix, policed=policed)
    assert asked_kernel.asked == []
    assert look(felix).report_group == 1
