"""An executable is replaced whole or not at all, whatever fails."""

import pytest

from cni_calico import faults
from cni_calico.errors import InstallFailed
from cni_calico.install import steps


@pytest.mark.parametrize(("when", "left"), [("before", b"old"), ("after", b"new")])
def test_every_fault(tmp_path, when, left):
    source, target = tmp_path / "image" / "portmap", tmp_path / "host" / "portmap"
    for path, content in ((source, b"new"), (target, b"old")):
        path.parent.mkdir()
        path.write_bytes(content)
    faults.install(faults.FaultPlan(f"install.copy:{when}:1:fail"))
    try:
        with pytest.raises(InstallFailed) as caught:
            steps._copy_executable(str(source), str(target))
    finally:
        faults.install(None)
    assert f"cannot install {target}" in str(caught.value)
    assert target.read_bytes() == left
    assert [path.name for path in target.parent.iterdir()] == ["portmap"]
