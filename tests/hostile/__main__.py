"""Coverage-guided inputs for one parser, or for all of them in turn; needs atheris, which is no dependency.

    python -m tests.hostile TARGET|all [libFuzzer's options, e.g. -max_total_time=600] [a directory to keep inputs in]

Without a target their names are printed. It begins with the target's example. An input that breaks a parser is left
beside, in a file "crash-..."; the exit status then is not 0.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.hostile.targets import TARGETS


def main() -> int:
    asked, options = sys.argv[1:2], sys.argv[2:]
    names = list(TARGETS) if asked == ["all"] else asked
    if not names or names[0] not in TARGETS:
        print("\n".join(TARGETS))
        return 2
    return max([fuzz(name, options) for name in names])


def fuzz(name: str, options: list[str]) -> int:
    """In a process of its own, which libFuzzer ends."""
    print(f"== {name}", flush=True)
    with TemporaryDirectory(prefix="cct-hostile-") as examples:
        Path(examples, "example").write_bytes(TARGETS[name].example)
        argv = [sys.executable, "-m", "tests.hostile.guided", name, *options, examples]
        return abs(subprocess.run(argv).returncode)


if __name__ == "__main__":
    sys.exit(main())
