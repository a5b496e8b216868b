"""Policies on a kernel without nf_tables: a user-mode one, started for the purpose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.netns
@pytest.mark.takes(60)
@pytest.mark.timeout(1800)
def test_policies_without_nf_tables() -> None:
    inside = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/netns/policing/inside_uml.py"]
    run = [ROOT / "tests/setup/uml/uml-run.sh", "-m", "1024", "-t", "1740", "-w", ROOT, "--", *inside]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=1770)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
