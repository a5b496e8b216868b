"""The last valid versions of records that became unreadable, in a file, so that a restart of the agent keeps them.

Rule: the file has exactly the versions that are in force although their records cannot be read now: a record that is
valid again, or gone, is not in it. A damaged file is never used, and the status says so for as long as the agent runs.
The file is replaced as a whole, has mode 0600 and a limited size: records that do not fit are named in the log, and
stay in force until the restart.
"""

from __future__ import annotations

import json
from _blake2 import blake2b  # hashlib would load libcrypto
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import IPPool, Node
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.preserved import BadPreserved, parse_value, render_value
from cni_calico.regular import READ_LIMIT

FILE = "last-valid-policies.json"  # of what policies are made of
VIEW_FILE = "last-valid-nodes.json"  # of Nodes, pools and FelixConfigurations
_FORMAT = 1
_LIMIT = READ_LIMIT - 4096
_FIRST = ("Tier", "Profile", "FelixConfiguration", "IPPool")  # others depend on them; members of sets come last
_LAST = ("WorkloadEndpoint", "EndpointSlice", "GlobalNetworkSet", "NetworkSet", "HostEndpoint")

KeptRecord = GraphRecord | Node | IPPool
LastVersions = Mapping[ResourceKey, KeptRecord]


def render_versions(versions: LastVersions) -> tuple[bytes, tuple[ResourceKey, ...]]:
    """The file's content, and the records that do not fit or cannot be written."""
    records, left, size = [], [], 0
    for key in sorted(versions, key=_rank):
        try:
            entry = [key.kind, key.namespace, key.name, render_value(versions[key])]
        except TypeError:  # a value that cannot be written must not end the policies of all
            left.append(key)
            continue
        more = len(json.dumps(entry)) + 2
        if size + more > _LIMIT:
            left.append(key)
        else:
            records.append(entry)
            size += more
    return json.dumps({"format": _FORMAT, "digest": _digest(records), "records": records}).encode(), tuple(left)


def parse_versions(content: bytes) -> dict[ResourceKey, Any]:
    """Raises BadPreserved if nothing in the file can be trusted."""
    try:
        document = json.loads(content)
        records = document["records"]
        if document["format"] != _FORMAT:
            raise BadPreserved("it is another version's")
        if document["digest"] != _digest(records):
            raise BadPreserved("its digest does not fit its content")
        return {ResourceKey(kind, name, namespace): parse_value(raw) for kind, namespace, name, raw in records}
    except BadPreserved:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as e:
        raise BadPreserved(f"it is not what was written ({type(e).__name__})") from e


def _digest(records: list[Any]) -> str:
    return blake2b(json.dumps(records).encode(), digest_size=16).hexdigest()


def _rank(key: ResourceKey) -> tuple[int, str, str, str]:
    return 0 if key.kind in _FIRST else 2 if key.kind in _LAST else 1, key.kind, key.namespace, key.name


class LastValid:
    """For one thread. Two users that run side by side need a ``file`` each."""

    def __init__(self, files: Files, log: Log, state_dir: str, file: str = FILE) -> None:
        self._files = files
        self._log = log
        self._directory, self._path = state_dir, f"{state_dir}/{file}"
        self._stored: dict[ResourceKey, Any] | None = None  # of an earlier run; None: not read yet
        self._written: dict[ResourceKey, KeptRecord] = {}
        self._unsure = True  # whether the file may hold something else
        self._troubles: dict[str, str] = {}

    @property
    def troubles(self) -> tuple[str, ...]:
        return tuple(self._troubles.values())

    def pop(self, key: ResourceKey) -> Any:
        """The version that an earlier run had; it is returned once."""
        if self._stored is None:
            self._stored = self._read()
        return self._stored.pop(key, None)

    def drop(self, key: ResourceKey) -> None:
        """The record has a valid version again, or is gone: the version of an earlier run does not count any more."""
        if self._stored:
            self._stored.pop(key, None)

    def forget(self) -> None:
        """Everything has been read: what an earlier run had and nobody has asked for does not count any more."""
        self._stored = {}

    def _read(self) -> dict[ResourceKey, Any]:
        try:
            return parse_versions(self._files.read_bytes(self._path))
        except FileNotFoundError:
            return {}
        except (OSError, BadPreserved) as e:
            why = e.strerror if isinstance(e, OSError) else str(e)
            text = (
                f"{self._path} cannot be used: {why}: records that were unreadable before this start count as absent, "
                "not as their last valid versions"
            )
            self._troubles["read"] = text
            self._log.error(text)
            return {}

    def keep(self, unreadable: Iterable[ResourceKey], version: Callable[[ResourceKey], Any]) -> None:
        """Everything has been read: from now on the file has the versions of these records."""
        wanted = {key: held for key in unreadable if (held := version(key)) is not None}
        same = wanted.keys() == self._written.keys() and all(wanted[key] is self._written[key] for key in wanted)
        if same and not self._unsure:
            return
        try:
            self._write(wanted)
        except OSError as e:
            text = f"cannot write {self._path}: {e.strerror}: a restart of the agent would lose last valid versions"
            if "write" not in self._troubles:
                self._log.error(text)
            self._troubles["write"] = text
            self._unsure = True
        else:
            self._troubles.pop("write", None)
            self._written, self._unsure = wanted, False

    def _write(self, wanted: LastVersions) -> None:
        self._troubles.pop("room", None)
        if not wanted:
            self._files.remove(self._path)
            return
        content, left = render_versions(wanted)
        if left:
            names = ", ".join(f"{key.kind} {key.name}" for key in left[:3])
            self._troubles["room"] = (
                f"the last valid versions of {len(left)} records ({names}, ...) do not fit into {self._path}: "
                "a restart of the agent would lose them"
            )
        self._files.make_directory(self._directory, 0o755)
        self._files.write_atomic(self._path, content, 0o600)
