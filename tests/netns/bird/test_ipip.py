"""IPIP needs a kernel that has it: a user-mode one, started for the purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.bird
@pytest.mark.netns
def test_ipip_next_hops() -> None:
    inside = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/netns/inside_uml_bird.py"]
    run = [ROOT / "tests/setup/uml/uml-run.sh", "-t", "280", "-w", ROOT, "--", *inside]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
