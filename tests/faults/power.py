"""Power cuts: what has reached the disk at one moment is copied, mounted, and compared with what had been answered by
then. All processes of the host stand still meanwhile, as they would.

Rule: the copy is one moment's only if meanwhile the device wrote nothing, no call was answered, and no process ran on
(somebody may continue the whole run from outside); else it is taken again.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.deadlines import until
from tests.faults import records
from tests.faults.history import ENDS, Operation, read_history
from tests.faults.places import Host
from tests.faults.processes import descendants, is_still, send

TRIES = 20
STILL_S = 60.0  # a process that is in the kernel, perhaps waiting for the disk, stops when it leaves it


class PowerCuts:
    """A context: a cut every few seconds while the body runs, of one host with a block device."""

    def __init__(self, host: Host, workers: Sequence[int], history: Path, seed: int) -> None:
        assert host.image is not None
        self.host, self.image, self.workers, self.history = host, host.image, workers, history
        self.random = random.Random(f"{seed}/power")
        self.copies = 0
        self.refused = 0
        self.violations: list[str] = []
        self._device = _device_of(host.disk)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> PowerCuts:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        copy = self.image.with_suffix(".copy")
        while not self._ended.wait(self.random.uniform(1.0, 4.0)):
            taken = self._take(copy)
            if taken is None:
                self.refused += 1
                continue
            self.copies += 1
            try:
                self._check(copy, *taken)
            except Exception as e:
                self.violations.append(f"after a power cut: {e!r}")

    # -- one moment ----------------------------------------------------------------------------------------------------

    def _take(self, copy: Path) -> tuple[list[Operation], set[str]] | None:
        """What had been answered at the moment of the copy; None when nothing could be kept still."""
        stopped: list[int] = []
        try:
            for _ in range(TRIES):
                self._stop_all(stopped)
                before = self._moment()
                shutil.copyfile(self.image, copy)
                told = read_history(self.history)
                if self._moment() == before and _are_still(stopped):
                    return told
            return None
        finally:
            for pid in stopped:
                send(pid, signal.SIGCONT)

    def _stop_all(self, stopped: list[int]) -> None:
        """The workers first, then what they have started, then the server; until nothing new is found."""
        own = [] if self.host.server is None else [self.host.server.process.pid]
        found = [*self.workers]
        while found:
            for pid in found:
                send(pid, signal.SIGSTOP)
            stopped += [pid for pid in found if pid not in stopped]
            until(partial(_are_still, stopped), "all processes stand still", STILL_S)
            now = [*self.workers, *descendants(self.workers), *own, *descendants(own)]
            found = [pid for pid in now if pid not in stopped]

    def _moment(self) -> tuple[str, int]:
        return self._written(), self.history.stat().st_size if self.history.exists() else 0

    def _written(self) -> str:
        """The device's counters of writes (Documentation/block/stat): requests, sectors, those under way."""
        fields = Path(f"/sys/block/{self._device}/stat").read_text().split()
        return " ".join((fields[4], fields[6], fields[8]))

    # -- after it ------------------------------------------------------------------------------------------------------

    def _check(self, copy: Path, history: list[Operation], open_now: set[str]) -> None:
        mounted = self.host.node.root / "after"
        mounted.mkdir(exist_ok=True)
        subprocess.run(["mount", "-o", "loop", str(copy), str(mounted)], check=True)
        try:
            self._compare(mounted, history, open_now)
        finally:
            subprocess.run(["umount", str(mounted)], check=True)

    def _compare(self, mounted: Path, history: list[Operation], open_now: set[str]) -> None:
        store = mounted / "datastore.db"
        if not store.exists():
            assert not any(each.command == "ADD" and each.rc == 0 for each in history), "the datastore is gone"
            return
        try:
            stored = records.read_file(store)
        except (sqlite3.Error, AssertionError) as e:
            self.violations.append(f"after a power cut the datastore is damaged: {e}")
            return
        owed = {
            f"{intent['container_id']}/{intent['ifname']}"
            for path in (mounted / "state" / "cni" / "pending-del").glob("*.json")
            for intent in [json.loads(path.read_text())]
        }
        self._compare_held(stored, history, open_now, owed)

    def _compare_held(
        self, stored: records.Stored, history: list[Operation], open_now: set[str], owed: set[str]
    ) -> None:
        last: dict[str, Operation] = {}
        for operation in sorted(history, key=lambda each: each.began):
            if operation.command in ("ADD", *ENDS):
                last[operation.container] = operation
        for name, operation in last.items():
            if name in open_now or operation.rc != 0 or not name:
                continue
            container = name.partition("/")[0]
            if operation.command == "ADD":
                self.violations += [
                    f"after a power cut {address} of {name} is held by {stored.taken.get(address)!r}"
                    for address in operation.addresses
                    if container not in stored.taken.get(address, "")
                ]
            elif operation.command == "DEL" and name not in owed and not self._has_others(container, last):
                kept = [address for address, handle in stored.taken.items() if handle.endswith(f".{container}")]
                if kept:
                    self.violations.append(f"after a power cut {kept} of {name}, which was deleted, are held")

    @staticmethod
    def _has_others(container: str, last: dict[str, Operation]) -> bool:
        return sum(name.partition("/")[0] == container for name in last) > 1


def _are_still(pids: Sequence[int]) -> bool:
    return all(map(is_still, pids))


def _device_of(mounted: Path) -> str:
    source = subprocess.run(
        ["findmnt", "-n", "-o", "SOURCE", str(mounted)], capture_output=True, text=True, check=True
    ).stdout.strip()
    return os.path.basename(source)
