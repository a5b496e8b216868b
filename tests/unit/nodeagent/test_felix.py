"""What starts first imports nothing of what starts later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LATER = ("nodeagent.bgp.keeper", "nodeagent.keepers", "nodeagent.recording", "nodeagent.status.metrics", "controllers")


def test_other_parts_are_not_imported_before_policy_is_decided(expanded_tree: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(expanded_tree)!r}); import cni_calico.nodeagent.felix\n"
        "print(*(name.removeprefix('cni_calico.') for name in sys.modules if name.startswith('cni_calico.')))"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "nodeagent.policing.engine" in said and "nodeagent.dataplane.loop" in said
    assert [name for name in said if name.startswith(LATER)] == []
