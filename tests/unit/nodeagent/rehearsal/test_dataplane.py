"""A rehearsal leaves out no part of the data plane; encryption's two are one there."""

from __future__ import annotations

import time
from pathlib import Path

from cni_calico.kernel.files import Files
from cni_calico.log import SILENT
from cni_calico.nodeagent.dataplane.apply import data_plane
from cni_calico.nodeagent.dataplane.parts.encryption import AfterRoutes
from cni_calico.nodeagent.dataplane.parts.takeover import Takeover
from cni_calico.nodeagent.rehearsal.dataplane import PARTS


def test_each_part_is_rehearsed(tmp_path: Path) -> None:
    parts = data_plane(SILENT, Files(), str(tmp_path), str(tmp_path), time.monotonic)
    assert {*PARTS, Takeover.name, AfterRoutes.name} == {part.name for part in parts}
