"""Which containers that hold addresses without attributes have run on this host: no other node can judge those.

Rule: a container's ID is random, so one that has run here runs nowhere else; only what this kernel showed counts, and
it is kept across restarts and reboots. A file that cannot be read names nobody, and one that cannot be written costs
what was seen after a restart: then less is released, never more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from cni_calico.daemon.said import Said
from cni_calico.kernel.container_traces import runs_here
from cni_calico.kernel.files import Files
from cni_calico.log import Log

FILE = "containers-seen.json"
_TOPIC = "containers seen"


class SeenRunning:
    """For one thread."""

    def __init__(self, files: Files, log: Log, state_dir: str, runs: Callable[[str], bool] = runs_here) -> None:
        self._files, self._said, self._runs = files, Said(log), runs
        self._directory, self._path = state_dir, f"{state_dir}/{FILE}"
        self._seen: frozenset[str] | None = None
        self._written: frozenset[str] = frozenset()

    def among(self, containers: Collection[str]) -> frozenset[str]:
        """Those that run on this host or have run here; others are forgotten. Raises KernelError."""
        if self._seen is None:
            self._seen = self._written = self._read()
        known = self._seen.intersection(containers)
        self._seen = known | {each for each in containers if each not in known and self._runs(each)}
        if self._seen != self._written:
            self._write(self._seen)
        return self._seen

    def _read(self) -> frozenset[str]:
        try:
            listed = json.loads(self._files.read_bytes(self._path))
            return frozenset(each for each in listed if isinstance(each, str))
        except FileNotFoundError:
            return frozenset()
        except (OSError, ValueError, TypeError, RecursionError) as e:
            self._said.say(_TOPIC, [f"cannot use {self._path}: {e}: which containers have run here is not known"])
            return frozenset()

    def _write(self, seen: frozenset[str]) -> None:
        failed = []
        try:
            if seen:
                self._files.make_directory(self._directory, 0o755)
                self._files.write_atomic(self._path, json.dumps(sorted(seen)).encode(), 0o600)
            else:
                self._files.remove(self._path)
            self._written = seen
        except OSError as e:
            failed = [f"cannot write {self._path}: {e.strerror or e}: after a restart less is released"]
        self._said.say(_TOPIC, failed)
