"""When the engine tries to take the boot table away, and what it says while it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.directories import BOOT_TABLE
from cni_calico.errors import KernelError
from cni_calico.log import Log
from cni_calico.nodeagent.policing.enforce import boot
from cni_calico.nodeagent.policing.enforce.boot import PART, BootTable


def test_it_is_tried_until_it_is_gone_and_then_never_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, answers, asked = [100.0], [KernelError("no memory"), KernelError("no memory"), True], list[float]()

    def remove(deadline: Deadline) -> bool:
        asked.append(now[0])
        answer = answers.pop(0)
        if isinstance(answer, KernelError):
            raise answer
        return answer

    monkeypatch.setattr(boot, "remove_boot_table", remove)
    (tmp_path / BOOT_TABLE).touch()
    log, troubles = Log("info", str(tmp_path / "log"), stderr=False), dict[str, str]()
    table = BootTable(str(tmp_path), log, troubles, lambda: now[0])
    table.remove()
    assert "still closes workloads: no memory" in troubles[PART] and "boot-table off" in troubles[PART]
    for _ in range(1000):  # a hundred seconds
        now[0] += 0.1
        table.remove()
    assert len(asked) == 3 and asked[1] - asked[0] >= 0.5 and troubles == {}
    assert not (tmp_path / BOOT_TABLE).exists()
    said = (tmp_path / "log").read_text()
    assert said.count("no memory") == 1 and said.count("is gone") == 1
