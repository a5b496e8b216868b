"""One parser under atheris, which watches the branches that an input takes: ``guided NAME [libFuzzer's arguments]``."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["cni_calico"]):
        from tests.hostile.targets import TARGETS
    target = TARGETS[sys.argv.pop(1)]

    def attempt(data: bytes) -> None:
        try:
            target.parse(data)
        except target.errors:
            pass

    atheris.Setup(sys.argv, attempt)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
