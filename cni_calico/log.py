"""The log of a call: stderr and, when configured, a rotating file; never stdout, never a secret.

Rule: one line per record, written with a single O_APPEND write, so lines of several processes never mix. Rotation
renames under a lock file after checking that the file is still the one that was too large (Python's own
RotatingFileHandler loses lines across processes). A log that cannot be written never fails a call.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Mapping

from cni_calico.redaction import without_secrets
from cni_calico.regular import make_directories, require_regular

LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "fatal": 50, "panic": 50, "none": 99}


FORMATS = ("text", "json")
FORMAT_VARIABLE = "CALICO_LOG_FORMAT"


def open_log_file(path: str, flags: int = 0) -> int:
    """A descriptor to append to; raises OSError. Whatever the path leads to must not block us: a FIFO without a
    reader, a terminal. A link in the file's place would have us write elsewhere; its directory may be one.
    """
    safely = os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW
    return os.open(path, flags | os.O_WRONLY | os.O_APPEND | os.O_CREAT | safely, 0o644)


def wants_json(environ: Mapping[str, str]) -> bool:
    """Whether the environment asks for records as JSON objects; unknown formats mean text."""
    return environ.get(FORMAT_VARIABLE, "").strip().lower() == "json"


def _as_json(stamp: str, level: str, context: str, text: str) -> bytes:
    """One record as a line of JSON; ``time`` is RFC 3339 in UTC."""
    import json  # calls have imported it already

    record = {"time": stamp.replace(" ", "T") + "Z", "level": level, "pid": os.getpid()}
    if context:
        record["context"] = context.removesuffix(": ")
    return json.dumps({**record, "message": text}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class Log:
    """Where a call's records go. ``context`` precedes every record (container ID, verb).

    ``failures``: how many records could not be written, in this process.
    """

    failures = 0

    def __init__(
        self,
        level: str = "info",
        file_path: str = "",
        *,
        max_size_mb: int = 100,
        max_age_days: int = 30,
        max_count: int = 10,
        context: str = "",
        stderr: bool = True,
        as_json: bool = False,
    ) -> None:
        self.threshold = LEVELS.get(level, 20)
        self.file_path = file_path
        self.max_bytes = max_size_mb * 1024 * 1024
        self.max_age_s = max_age_days * 86400
        self.max_count = max_count
        self.context = context
        self.stderr = stderr
        self.as_json = as_json
        self.usual_file_path = file_path  # without a parameter that names another
        self.file_threshold: int | None = None  # None: as ``threshold``
        self.debug_files: re.Pattern[str] | None = None  # source files whose debug records are written; None: all

    def debug(self, text: str) -> None:
        if self.debug_files is None or self.debug_files.search(sys._getframe(1).f_code.co_filename):
            self.write("debug", text)

    def info(self, text: str) -> None:
        self.write("info", text)

    def warning(self, text: str) -> None:
        self.write("warning", text)

    def error(self, text: str) -> None:
        self.write("error", text)

    def failure(self, text: str, error: BaseException) -> None:
        """An error that nobody expected, with its trace; with its class and text where no trace can be made."""
        try:
            import traceback
        except (ImportError, OSError):  # no free descriptor, for instance
            trace = f"{type(error).__name__}: {error}"
        else:
            trace = "".join(traceback.format_exception(error))
        self.error(f"{text}\n{trace}")

    def write(self, level: str, text: str) -> None:
        """Write one record; a line break inside it becomes a continuation."""
        severity = LEVELS[level]
        to_stderr = self.stderr and severity >= self.threshold
        of_file = self.threshold if self.file_threshold is None else self.file_threshold
        to_file = self.file_path and severity >= of_file
        if not to_stderr and not to_file:
            return
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}"
        body = without_secrets(text)
        if self.as_json:
            line = _as_json(stamp, level, self.context, body)
        else:
            indented = body.replace("\n", "\n\t")
            line = f"{stamp} [{level.upper()}][{os.getpid()}] {self.context}{indented}\n".encode("utf-8", "replace")
        try:
            if to_stderr:
                os.write(2, line)
        except OSError:
            Log.failures += 1
        if to_file:
            try:
                self._append(line)
            except (OSError, ValueError):  # ValueError: no file can have that name
                Log.failures += 1

    def file_only(self) -> Log:
        """The same log without standard error."""
        from copy import copy  # with weakref: programs that run for months never come here

        other = copy(self)
        other.stderr = False
        return other

    def _append(self, line: bytes) -> None:
        directory = os.path.dirname(self.file_path)
        # whatever the path leads to must not block us: a FIFO that nobody reads, a terminal
        try:
            fd = open_log_file(self.file_path)
        except FileNotFoundError:
            make_directories(directory, 0o755)
            fd = open_log_file(self.file_path)
        try:
            size = require_regular(
                fd, self.file_path
            )  # a line written to a disk device, or into another program's pipe, would do damage
            os.write(fd, line)
        finally:
            os.close(fd)
        if size + len(line) > self.max_bytes:
            self._rotate()

    def _rotate(self) -> None:
        name = self.file_path + ".lock"
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
        try:
            require_regular(lock, name)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.stat(self.file_path).st_size <= self.max_bytes:
                return  # another process has rotated it
            base, suffix = os.path.splitext(self.file_path)
            now = time.time()
            stamp = time.strftime("%Y-%m-%dT%H-%M-%S", time.gmtime(now)) + f".{int(now * 1e6) % 1000000:06d}"
            os.rename(self.file_path, f"{base}-{stamp}{suffix}")
            self._remove_old(base, suffix, now)
        finally:
            os.close(lock)

    def _remove_old(self, base: str, suffix: str, now: float) -> None:
        directory, stem = os.path.split(base)
        pattern = re.compile(re.escape(stem) + r"-\d{4}-\d\d-\d\dT[\d.-]+" + re.escape(suffix) + "$")
        backups = sorted(name for name in os.listdir(directory or ".") if pattern.match(name))
        for position, name in enumerate(reversed(backups)):
            path = os.path.join(directory, name)
            if position >= self.max_count or now - os.stat(path).st_mtime > self.max_age_s:
                os.unlink(path)


SILENT = Log("none", stderr=False)
