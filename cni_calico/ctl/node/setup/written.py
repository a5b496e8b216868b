"""What ``node init`` has written on this host, so that a second run knows its own files, and ``node uninstall`` takes
all of them away.

Rule: a file that somebody else wrote is never lost: it is refused, or kept beside as FILE.before-init and put back; one
of ours that was changed is kept as FILE.changed. What is about to be written is noted before anything is moved; what
was there as wanted is not ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cni_calico.bounded import read_bytes, read_text
from cni_calico.ctl.node.setup.plan import PlannedFile
from cni_calico.directories import STATE_DIR
from cni_calico.doing import Doing
from cni_calico.errors import InvalidConfig, KernelError
from cni_calico.kernel.files import Files
from cni_calico.regular import make_directories

NOTES = f"{STATE_DIR}/node-init.json"
KEPT, MOVED = ".before-init", ".changed"
_DPKG = "/var/lib/dpkg/status"
_LIMIT_BYTES = 64 << 20
_KEPT_MAX = 100
_NEW, _SAME, _CHANGED = "write", "keep", "change"


@dataclass(slots=True)
class WrittenFiles:
    """``digests``: of what was written, by path, two with a space between while it is replaced; ``extra``: other things
    to undo, by their kind. ``root`` is put before every path. ``kept``: the names under which files were kept.
    """

    digests: dict[str, str] = field(default_factory=dict)
    extra: dict[str, list[str]] = field(default_factory=dict)
    root: str = ""
    kept: list[str] = field(default_factory=list)

    # -- what is there ------------------------------------------------------------------------------------------------

    def compare(self, planned: PlannedFile) -> str:
        """_NEW, _SAME or _CHANGED: what writing it would do."""
        there = self._digest(planned.path)
        if there is None:
            return _NEW
        same_mode = bool(planned.target) or self._mode(planned.path) == planned.mode
        return _SAME if there == digest_of(planned) and same_mode else _CHANGED

    def conflicts(self, planned: Sequence[PlannedFile]) -> Iterator[str]:
        """The paths at which somebody else's files are, which are not those that a package installed unchanged."""
        for one in planned:
            there = self._digest(one.path)
            if there in (None, digest_of(one)) or self._is_ours(one.path, there) or self._is_packaged(one.path):
                continue
            yield one.path

    def _is_ours(self, path: str, there: str | None) -> bool:
        """Whether it is as an earlier run has written it."""
        return there in self.digests.get(path, "").split()

    def _is_packaged(self, path: str) -> bool:
        """Whether it is a package's settings file, as the package installed it."""
        try:
            content = read_bytes(self.root + path, limit=_LIMIT_BYTES)
            known = read_text(self.root + _DPKG, limit=_LIMIT_BYTES)
        except (OSError, ValueError):
            return False
        return f"\n {path} {hashlib.md5(content, usedforsecurity=False).hexdigest()}\n" in known

    def _digest(self, path: str) -> str | None:
        """None: there is nothing."""
        real = self.root + path
        with Doing(f"read {path}"):
            if os.path.islink(real):
                return _hash(b"link", os.readlink(real).encode("utf-8", "surrogateescape"))
            if not os.path.exists(real):
                return None
            return _hash(b"file", read_bytes(real, limit=_LIMIT_BYTES))

    def _mode(self, path: str) -> int:
        return stat.S_IMODE(os.stat(self.root + path).st_mode)

    # -- changes ------------------------------------------------------------------------------------------------------

    def write(self, planned: PlannedFile) -> bool:
        """Returns whether anything changed. Raises KernelError."""
        if self.compare(planned) == _SAME:
            return False
        before, now = self.digests.get(planned.path, ""), digest_of(planned)
        self._note(planned.path, f"{before} {now}".strip())
        self._keep_aside(planned.path, MOVED if before else KEPT)
        real = self.root + planned.path
        with Doing(f"write {planned.path}"):
            make_directories(os.path.dirname(real), 0o755)
            if planned.target:
                temporary = f"{real}.new"
                if os.path.lexists(temporary):
                    os.unlink(temporary)
                os.symlink(planned.target, temporary)
                os.rename(temporary, real)
            else:
                Files().write_atomic(real, planned.text.encode(), planned.mode)
        self._note(planned.path, now)
        return True

    def note_extra(self, kind: str, what: str) -> None:
        """Note that this is to be undone, too. Raises KernelError."""
        if what not in self.extra.get(kind, []):
            self.extra.setdefault(kind, []).append(what)
            self._save()

    def forget_extra(self, kind: str, what: str) -> None:
        """It is undone. Raises KernelError."""
        self.extra[kind].remove(what)
        self._save()

    def remove_all(self, but: Sequence[str] = ()) -> Iterator[str]:
        """Take away what was written except ``but``, the last first, and put back what was there before; yields the
        paths.

        Raises KernelError.
        """
        for path in reversed(tuple(self.digests)):
            if path not in but:
                self._remove(path)
                yield path

    def remove_others(self, planned: Sequence[PlannedFile]) -> list[str]:
        """Take away what an earlier run wrote, and this one does not; returns the paths. Raises KernelError."""
        return list(self.remove_all([one.path for one in planned]))

    def remove(self, path: str) -> None:
        """Without putting back what was there before. What is not as an earlier run has written it is kept. Absent is
        success. Raises KernelError.
        """
        real, there = self.root + path, self._digest(path)
        if there is None:
            return
        if not self._is_ours(path, there):
            self._keep_aside(path, MOVED)
            return
        with Doing(f"remove {path}"):
            os.unlink(real)

    def remove_notes(self) -> None:
        """Raises KernelError."""
        with Doing(f"remove {NOTES}"):
            if os.path.lexists(self.root + NOTES):
                os.unlink(self.root + NOTES)

    def _remove(self, path: str) -> None:
        self.remove(path)
        real = self.root + path
        with Doing(f"remove {path}"):
            if os.path.lexists(real + KEPT):
                os.rename(real + KEPT, real)
            else:
                _remove_empty(os.path.dirname(real))
        del self.digests[path]
        self._save()

    def _keep_aside(self, path: str, suffix: str) -> None:
        """If it is not what an earlier run wrote; under a name that is free."""
        real, there = self.root + path, self._digest(path)
        if there is None or self._is_ours(path, there):
            return
        names = (suffix, MOVED, *(f"{MOVED}.{number}" for number in range(2, _KEPT_MAX)))
        free = next((name for name in names if not os.path.lexists(real + name)), "")
        if not free:
            raise KernelError(f"cannot keep {path}: {path}{MOVED} and {_KEPT_MAX - 2} more are there; remove them")
        with Doing(f"keep {path} as {path}{free}"):
            os.rename(real, real + free)
        self.kept.append(path + free)

    def _note(self, path: str, digests: str) -> None:
        self.digests[path] = digests
        self._save()

    def _save(self) -> None:
        path = self.root + NOTES
        document = json.dumps({"files": self.digests, **self.extra}, indent=1)
        with Doing(f"write {NOTES}"):
            make_directories(os.path.dirname(path), 0o755)
            Files().write_atomic(path, document.encode(), 0o600)


def _remove_empty(directory: str) -> None:
    """One that has nothing in it any more, of those that are ours alone."""
    if directory.endswith((".service.d", "/etc/calico")):
        with suppress(OSError):  # something else is in it
            os.rmdir(directory)


def digest_of(planned: PlannedFile) -> str:
    """PURE"""
    if planned.target:
        return _hash(b"link", planned.target.encode())
    return _hash(b"file", planned.text.encode())


def _hash(kind: bytes, content: bytes) -> str:
    return hashlib.sha256(kind + b"\0" + content).hexdigest()


def read_written(root: str = "") -> WrittenFiles:
    """What earlier runs noted; nothing if there was none. Raises InvalidConfig."""
    try:
        document: Any = json.loads(read_text(root + NOTES, limit=_LIMIT_BYTES))
    except FileNotFoundError:
        return WrittenFiles(root=root)
    except (OSError, ValueError, RecursionError) as e:
        raise _unreadable(str(e)) from e
    files = document.pop("files", {}) if isinstance(document, dict) else None
    if not isinstance(files, Mapping) or not all(isinstance(path, str) and path.startswith("/") for path in files):
        raise _unreadable("it has no list of files")
    extra = {str(kind): [str(one) for one in found] for kind, found in document.items() if isinstance(found, list)}
    return WrittenFiles({path: str(digest) for path, digest in files.items()}, extra, root)


def _unreadable(why: str) -> InvalidConfig:
    return InvalidConfig(
        f"cannot read {NOTES}, where node init notes what it has written: {why}",
        details="move it away; what it named is then no longer known (docs/runbook.md lists what a host has)",
    )
