"""Drivers for tests: a directory of PATH that has the naive driver, and who asks it."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from tests.deadlines import until

ROOT = Path(__file__).parents[2]
NAME = "naive-driver"


def write_driver(directory: Path, script: str = "", name: str = NAME) -> Path:
    """The socket at which it answers, once it runs. ``script``: what runs in its place, of a shell."""
    answers = directory / f"{name}.sock"
    run = f"cd {ROOT} && exec {sys.executable} -m tests.fakes.driver {answers}"
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script or run}\n")
    path.chmod(0o755)
    return answers


class AskedDriver:
    """Asks the naive driver."""

    def __init__(self, answers: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        until(lambda: self._connected(answers), "the driver answers", 60)
        self._lines = self._socket.makefile("rw")

    def _connected(self, answers: Path) -> bool:
        try:
            self._socket.connect(str(answers))
        except OSError:
            return False
        return True

    def ask(self, **what: Any) -> Any:
        self._lines.write(json.dumps(what) + "\n")
        self._lines.flush()
        return json.loads(self._lines.readline() or "null")

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
