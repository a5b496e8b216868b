"""A resident server that stands still at one of its steps for as long as a file exists.

held_server.py POINT FILE     one thread at a time gets as far as POINT; the others wait in a batch behind it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cni_calico import faults
from cni_calico.server.run import run_server
from tests.deadlines import until
from tests.e2e.host import Node


@contextmanager
def held_server(node: Node, point: str) -> Iterator[Path]:
    """The file; it need not exist yet."""
    file = node.root / "held"
    program = (sys.executable, "-m", "tests.e2e.held_server", point, str(file))
    with node.server(program=program):
        yield file


def main() -> int:
    point, file = sys.argv[1], Path(sys.argv[2])

    def hook(reached: str, when: str) -> None:
        if (reached, when) == (point, "before"):
            until(lambda: os.getppid() == 1 or not file.exists(), "it may go on", 600)

    faults.install(hook)
    return run_server(os.environ)


if __name__ == "__main__":
    sys.exit(main())
