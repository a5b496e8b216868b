"""IPIP needs a kernel that has it: a user-mode one, started for the purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.bird
@pytest.mark.etcd
@pytest.mark.bundle
@pytest.mark.netns
@pytest.mark.timeout(1800)
def test_pods_reach_one_another_over_ipip(bundle: Path) -> None:
    assert bundle == ROOT / "dist" / "bin"  # where the other kernel looks for them
    inside = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/netns/inside_uml_agent.py"]
    run = [ROOT / "tests/setup/uml/uml-run.sh", "-m", "1536", "-t", "1740", "-w", ROOT, "--", *inside]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=1770)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
