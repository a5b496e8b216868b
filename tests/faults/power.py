"""Power cuts: what has reached the disk at one moment is copied, mounted, and compared with what had been answered by
then. All processes of the host stand still meanwhile, as they would.

Rule: the copy is one moment's only if the device wrote nothing meanwhile; else it is taken again.
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
from pathlib import Path

from tests.faults import records
from tests.faults.history import ENDS, Operation, read_history
from tests.faults.places import Host

TRIES = 20


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
        """What had been answered at the moment of the copy; None when the device never kept still."""
        stopped = self._stop_all()
        try:
            for _ in range(TRIES):
                before = self._written()
                shutil.copyfile(self.image, copy)
                if self._written() == before:
                    return read_history(self.history)
            return None
        finally:
            for pid in stopped:
                _signal(pid, signal.SIGCONT)

    def _stop_all(self) -> list[int]:
        """The workers first, then what they have started, then the server."""
        found = list(self.workers)
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        found += [child for pid in self.workers for child in _children(pid)]
        if self.host.server is not None:
            found.append(self.host.server.process.pid)
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        return found

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


def _device_of(mounted: Path) -> str:
    source = subprocess.run(
        ["findmnt", "-n", "-o", "SOURCE", str(mounted)], capture_output=True, text=True, check=True
    ).stdout.strip()
    return os.path.basename(source)


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
