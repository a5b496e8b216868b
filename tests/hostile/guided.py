"""One parser under atheris, which watches the branches that an input takes: ``guided NAME [libFuzzer's arguments]``."""

from __future__ import annotations

import sys
from importlib import import_module
from random import Random
from typing import Any


def main() -> None:
    """Never returns: libFuzzer ends the process."""
    atheris: Any = import_module("atheris")
    with atheris.instrument_imports(include=["cni_calico"]):
        from tests.hostile.targets import TARGETS
    from tests.hostile.mutation import changed

    target = TARGETS[sys.argv.pop(1)]

    def attempt(data: bytes) -> None:
        try:
            target.parse(data)
        except target.errors:
            pass

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        """Half of the changes keep JSON what it is."""
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, max_size))

        def other(text: str) -> str:
            raw = text.encode("utf-8", "surrogatepass")
            return bytes(atheris.Mutate(raw, len(raw) + 64)).decode("utf-8", "replace")

        found = changed(data, random, other)
        return found if len(found) <= max_size else bytes(atheris.Mutate(data, max_size))

    atheris.Setup(sys.argv, attempt, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
