"""Runs PyInstaller on one of the .spec files.

Rule: it writes only below the given directory, writes the same bytes for the same input, and prints nothing unless it
fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

BUILD = Path(__file__).resolve().parent


def source_date() -> str:
    """SOURCE_DATE_EPOCH: the caller's, else a constant, because names distinguish versions."""
    return os.environ.get("SOURCE_DATE_EPOCH") or "1577836800"


def run_pyinstaller(spec: str, work: Path, **variables: str | Path) -> Path:
    """The directory with what the .spec file collects; ``variables`` become CALICO_BUNDLE_<NAME>."""
    log = work / "log"
    command = [sys.executable, "-m", "PyInstaller", "--noconfirm", "--log-level=WARN"]
    command += ["--workpath", str(work / "work"), "--distpath", str(work / "dist"), str(BUILD / f"{spec}.spec")]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "SOURCE_DATE_EPOCH": source_date(),
        "PYINSTALLER_CONFIG_DIR": str(work / "config"),
        **{f"CALICO_BUNDLE_{name.upper()}": str(value) for name, value in variables.items()},
    }
    with log.open("wb") as output:
        status = subprocess.run(command, cwd=BUILD.parent, env=environment, stdout=output, stderr=output).returncode
    if status != 0:
        raise SystemExit(f"cannot freeze: PyInstaller failed\n{log.read_text()}")
    return work / "dist" / spec
