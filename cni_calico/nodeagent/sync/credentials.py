"""Reads the files by which the CSI driver says which workload has a volume: ``<prefix>/creds/<volume>.json``.

Rule: the file's name is the volume's, its content says whose it is. A file that cannot be understood opens nothing, is
named, and is read again once it has changed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cni_calico.model.documents.fields import Wrong, parse_object, parse_text
from cni_calico.nodeagent.sync.known import EndpointName
from cni_calico.regular import read_regular

DIRECTORY, _ENDING = "creds", ".json"
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_MOST_BYTES = 64 << 10
_SETTLED_NS = 1_000_000_000  # a directory that changed less than this ago may change again in the same tick
_ORCHESTRATOR, _ENDPOINT = "k8s", "eth0"
_FileStamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class MountedVolume:
    """A pod's volume; ``volume`` is the name of its directory below ``<prefix>/mount/``."""

    volume: str
    namespace: str
    pod: str

    @property
    def endpoint(self) -> EndpointName:
        return _ORCHESTRATOR, f"{self.namespace}/{self.pod}", _ENDPOINT


def parse_credentials(volume: str, data: bytes) -> MountedVolume:
    """Raises Wrong."""
    if not _VOLUME.fullmatch(volume):
        raise Wrong("the file's name", "letters, digits, '.', '_' and '-'", volume)
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as e:
        raise Wrong("the file", "JSON", str(e)) from e
    fields = parse_object(raw, "the file")
    names = []
    for field in ("Namespace", "Workload"):
        name = parse_text(fields.get(field), field)
        if not _NAME.fullmatch(name):
            raise Wrong(field, "a name of Kubernetes", name)
        names.append(name)
    return MountedVolume(volume, *names)


class CredentialFiles:
    """For one thread. ``troubles``: what cannot be understood, as of the last look."""

    def __init__(self, prefix: str) -> None:
        self.troubles: tuple[str, ...] = ()
        self._directory = f"{prefix}/{DIRECTORY}"
        self._looked: tuple[int, int] | None = None  # the directory's change, and when it was listed
        self._files: dict[str, tuple[_FileStamp, MountedVolume | str]] = {}
        self._volumes: dict[str, MountedVolume] = {}

    def look(self) -> Mapping[str, MountedVolume]:
        """The volumes there are, by name."""
        try:
            changed = os.stat(self._directory).st_mtime_ns
        except OSError as e:
            self._looked, self._files, self._volumes = None, {}, {}
            missing = isinstance(e, FileNotFoundError)  # the driver makes it with the first volume
            self.troubles = () if missing else (f"cannot read {self._directory}: {e.strerror}",)
            return self._volumes
        if self._looked is not None and self._looked[0] == changed and self._looked[1] - changed > _SETTLED_NS:
            return self._volumes
        self._looked = changed, time.time_ns()
        self._list()
        return self._volumes

    def _list(self) -> None:
        files: dict[str, tuple[_FileStamp, MountedVolume | str]] = {}
        try:
            entries = sorted(os.listdir(self._directory))
        except OSError as e:
            self.troubles = (f"cannot read {self._directory}: {e.strerror}",)
            self._looked = None
            return
        for entry in entries:
            if not entry.endswith(_ENDING):
                continue
            try:
                found = os.lstat(f"{self._directory}/{entry}")
            except FileNotFoundError:
                continue
            stamp = found.st_ino, found.st_mtime_ns, found.st_size
            known = self._files.get(entry)
            files[entry] = known if known is not None and known[0] == stamp else (stamp, self._read(entry))
        self._files = files
        self._volumes = {one.volume: one for _, one in files.values() if isinstance(one, MountedVolume)}
        self.troubles = tuple(one for _, one in files.values() if isinstance(one, str))

    def _read(self, entry: str) -> MountedVolume | str:
        path = f"{self._directory}/{entry}"
        try:
            return parse_credentials(entry.removesuffix(_ENDING), read_regular(path, _MOST_BYTES, follow=False))
        except OSError as e:
            return f"no policy sync for the volume of {path!r}: cannot read it: {e.strerror}"
        except Wrong as e:
            return f"no policy sync for the volume of {path!r}: {e}"
