"""Pairs of ADD and DEL as fast as a resident server takes them, without a process for each.

``python -m tests.e2e.pairs`` reads a JSON object on stdin: ``path`` (the socket), ``environ``, ``conf``, ``netns`` (one
caller for each), ``pairs`` (of each caller), ``first`` (number of the first container). It prints how many calls
failed, and what the first of them said.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cni_calico.plugin.call.client import call_server


def work(task: dict[str, Any], number: int) -> list[str]:
    """What went wrong for one caller."""
    failures = []
    stdin = json.dumps(task["conf"]).encode()
    for i in range(task["pairs"]):
        environ = {
            **task["environ"],
            "CNI_CONTAINERID": f"p{task['first'] + i:06}-{number}",
            "CNI_NETNS": task["netns"][number],
        }
        for command in ("ADD", "DEL"):
            answer = call_server(task["path"], "calico", {**environ, "CNI_COMMAND": command}, stdin)
            if answer is None or answer[0] != 0:
                failures.append(f"{command}: {answer}")
    return failures


def main() -> None:
    task = json.load(sys.stdin)
    callers = range(len(task["netns"]))
    with ThreadPoolExecutor(len(callers)) as pool:
        failures = [failure for found in pool.map(lambda number: work(task, number), callers) for failure in found]
    print(json.dumps([len(failures), failures[:1]]))


if __name__ == "__main__":
    main()
