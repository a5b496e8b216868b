"""The kernel side of a call imports little in the executables: each of these modules costs milliseconds on every
one-shot ADD or DEL.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"typing", "socket", "selectors", "ctypes", "subprocess", "threading", "logging", "json", "pyroute2", "signal"}


MODULES = ("plugin.network.setup", "plugin.network.teardown", "kernel.lock", "kernel.netns", "kernel.mtu")


@pytest.mark.parametrize("module", MODULES)
def test_light(module: str, expanded_tree: Path) -> None:
    script = f"import sys; sys.path.insert(0, {str(expanded_tree)!r}); import cni_calico.{module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()
