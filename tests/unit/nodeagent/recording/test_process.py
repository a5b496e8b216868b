"""What the recorder's process imports."""

from __future__ import annotations

import subprocess
import sys


def test_it_imports_nothing_of_the_agent_or_the_datastore() -> None:
    """12 MB on every node that records."""
    code = "import sys, cni_calico.nodeagent.recording.process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "cni_calico.flows.recorder" in loaded
    others = ("cni_calico.nodeagent.", "cni_calico.datastore", "cni_calico.ipam", "ssl", "grpc")
    allowed = "cni_calico.nodeagent.recording"
    assert [name for name in loaded if name.startswith(others) and not name.startswith(allowed)] == []
