"""ADD and DEL of this build's executables and of another build's, call by call in turns.

    .venv/bin/python -m tests.bench.other_build DIR [--store local|etcd] [--runs 150]     as root

DIR: another build's dist/bin. Without a server, so that each call is all of its own build's. Prints the medians, and
how much of the other's this build needs: the processor's time says something on a busy machine, too, the wall's does
not.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tests.bench.contest import in_turn, ours
from tests.bench.table import NODES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--store", choices=sorted(NODES), default="local")
    parser.add_argument("--runs", type=int, default=150)
    chosen = parser.parse_args()
    with NODES[chosen.store]() as node:
        mine = ours(node)
        other = replace(mine, name="other", directory=chosen.directory.resolve())
        for verb, found in in_turn(node, (mine, other), chosen.runs).items():
            now, then = found["ours"], found["other"]
            print(
                f"{verb.upper()}, {chosen.store}: {now.cpu:.1f} ms of the processor ({then.cpu:.1f}: "
                f"{now.cpu / then.cpu:.3f}), {now.median:.1f} ms in all ({then.median:.1f}: "
                f"{now.median / then.median:.3f})"
            )


if __name__ == "__main__":
    main()
