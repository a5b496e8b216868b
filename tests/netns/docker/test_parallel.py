"""Two hundred containers that start at once; sixty with newer releases of Docker, whose starts are the same calls."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.deadlines import until
from tests.netns.docker.machine import IMAGE, OLDEST, Machine
from tests.netns.docker.test_driver import deny, start_agent, waiting

pytestmark = [pytest.mark.netns, pytest.mark.docker, pytest.mark.slow, pytest.mark.takes(200)]

COUNT, WITH_NEWER = 200, 60


def at_once(box: Machine, *commands: tuple[str, ...]) -> list[str]:
    """What Docker says of those that fail."""
    failed: list[str] = []

    def act(command: tuple[str, ...]) -> None:
        done = box.docker(*command, check=False, timeout_s=600)
        if done.returncode:
            failed.append(done.stderr)

    threads = [threading.Thread(target=act, args=(command,)) for command in commands]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_many_starts(box: Machine) -> None:
    count = COUNT if box.release == OLDEST else WITH_NEWER
    deny(box, "jailed", "Egress")
    start_agent(box)
    box.network("web")
    names = [f"c{number}" for number in range(count)]
    for name in names:
        box.docker("create", "--init=false", "--name", name, "--network", "web", IMAGE, "sleep", "1000")
    assert not at_once(box, *(("start", name) for name in names))
    assert set(box.records()) == set(names)
    addresses = Counter(address for record in box.records().values() for address in record["spec"]["ipNetworks"])
    assert len(addresses) == len(box.handles()) == len(box.veths()) == count
    until(lambda: not waiting(box), "each policy is in force")
    for first in range(0, count, 50):
        box.docker("rm", "-f", *names[first : first + 50], timeout_s=600)
    until(box.is_clean, "nothing is left")
    if box.release == OLDEST:  # it miscounts a network's endpoints when many end at once, until it starts again
        box.end("dockerd")
        box.start_docker()
    box.docker("network", "rm", "web")
