"""Random calls by many processes while things are killed, stopped, filled and cut off; an independent judge afterwards.

    python -m tests.faults [--store local|etcd|kubernetes] [--mode one-shot|served|agent] [--hosts N] [--members N]
                           [--operations N] [--workers N] [--seed S] [--bundle DIR] [--power] [--only WORD]
                           [--also limits|host-end|leader]... [--pace SECONDS] [--hold FILE] [--record FILE]

Prints one JSON object: operations and faults by kind, outcomes, violations, and the seed, with which the same decisions
are taken again. The exit status is 1 when anything was violated, or when the run broke or hung.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from tests.faults.run import Asked, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--store", choices=("local", "etcd", "kubernetes"), default="local")
    parser.add_argument("--mode", choices=("one-shot", "served", "agent"), default="served")
    parser.add_argument("--hosts", type=int, choices=(1, 2, 3), default=1)
    parser.add_argument("--members", type=int, choices=(1, 3), default=1)
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--bundle", type=Path, help="a directory with the frozen executables")
    parser.add_argument("--power", action="store_true", help="power cuts; with --store local")
    parser.add_argument("--only", default="", help="a word in the names of all that goes wrong around the calls")
    parser.add_argument(
        "--also",
        action="append",
        default=[],
        choices=("limits", "host-end", "leader"),
        help="calls with few descriptors, no threads or little memory; host ends renamed; etcd's leader cut off",
    )
    parser.add_argument("--pace", dest="pace_s", type=float, default=0.85, help="seconds between two things gone wrong")
    parser.add_argument("--hold", type=Path, help="nothing begins while this file exists")
    parser.add_argument("--record", type=Path, help="append the result to this file, as a line of JSON")
    given = vars(parser.parse_args())
    record, given["also"] = given.pop("record"), tuple(given["also"])
    verdict, about = run(Asked(**given))
    print(json.dumps(about, indent=1))
    if record is not None:
        with record.open("a") as f:
            f.write(json.dumps(about) + "\n")
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
