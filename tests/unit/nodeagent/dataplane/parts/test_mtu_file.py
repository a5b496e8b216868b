"""The file with the MTU of workloads, and a node that must not be ready without it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.mtu_file import MtuFile
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.unit.nodeagent.fabric import FELIX


def apply(path: Path, mtu: int, *, required: bool) -> Pass:
    done = Pass()
    desired, felix = Desired(mtu=mtu), replace(FELIX, require_mtu_file=required)
    try:
        MtuFile(Files(), str(path)).apply(desired, felix, Deadline.after(10), done, True)
    except OSError as e:
        done.failed.append(str(e))
    return done


@pytest.mark.parametrize("required", [True, False])
def test_a_file_that_cannot_be_written(tmp_path: Path, required: bool) -> None:
    done = apply(tmp_path / "gone" / "mtu", 1450, required=required)
    assert len(done.failed) == 1 and bool(done.refused) == required
    assert all("which RequireMTUFile demands" in text for text in done.refused)


def test_an_mtu_that_is_not_known_yet(tmp_path: Path) -> None:
    assert apply(tmp_path / "mtu", 0, required=False).refused == []
    assert len(apply(tmp_path / "mtu", 0, required=True).refused) == 1
    assert apply(tmp_path / "mtu", 1450, required=True).refused == []
    assert (tmp_path / "mtu").read_text() == "1450"
    assert apply(tmp_path / "mtu", 0, required=True).refused == []  # the file of before is there
