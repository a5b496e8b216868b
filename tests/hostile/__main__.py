"""Coverage-guided inputs for one parser, for as long as wanted; needs atheris, which is no dependency of the project.

    python -m tests.hostile TARGET [libFuzzer's options, e.g. -max_total_time=600]

Without a target their names are printed. An input that breaks a parser is left beside, in a file "crash-...".
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


def main() -> int:
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["cni_calico"]):
        from tests.hostile.targets import TARGETS
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        print("\n".join(TARGETS))
        return 2
    target = TARGETS[sys.argv.pop(1)]

    def attempt(data: bytes) -> None:
        try:
            target.parse(data)
        except target.errors:
            pass

    atheris.Setup(sys.argv, attempt)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
