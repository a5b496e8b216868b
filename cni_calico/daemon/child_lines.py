"""Turns what child processes print (BIRD's lines, tracebacks, messages of the C library) into records of our log. Rule:
a line that is a record already is passed on unchanged, so that everything on standard error has one form, text or JSON.
The lines are always read at once, so that no child has to wait.
"""

from __future__ import annotations

import os
import re
from copy import copy
from threading import Thread

from cni_calico.log import Log

# ours in text, its continuation, ours in JSON
_RECORD = re.compile(rb'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[[A-Z]+\]\[\d+\] |\t|\{"time": ')
_BIRD = re.compile(r"(?:\S+ \S+ )?<(DEBUG|TRACE|INFO|REMOTE|WARN|ERR|AUTH|FATAL|BUG)> (.*)|bird: (.*)")
_LEVELS = {"DEBUG": "debug", "TRACE": "debug", "INFO": "info", "REMOTE": "info", "WARN": "warning", "AUTH": "warning"}
_ORDERLY = "Shutdown completed"  # BIRD calls it fatal, also when it was asked to end
_CHUNK, _LONGEST = 65536, 32768
_LAST_S = 1.0


class ChildLines:
    """``fd`` is the children's standard output and error; their lines go to standard error in the form of ``log``."""

    def __init__(self, log: Log) -> None:
        self._bird, self._other = copy(log), copy(log)
        self._bird.context, self._other.context = "bird: ", "output: "
        # BIRD's own configuration says how much it prints
        self._bird.threshold = self._other.threshold = 0
        self._reading, self.fd = os.pipe2(os.O_CLOEXEC)
        self._rest = b""
        self._thread = Thread(target=self._read, name="child-lines", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what was printed before. The output of a child that outlives this process is lost."""
        os.close(self.fd)
        self._thread.join(_LAST_S)

    def _read(self) -> None:
        while chunk := os.read(self._reading, _CHUNK):
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._pass(line)
            if len(self._rest) > _LONGEST:
                self._pass(self._rest)
                self._rest = b""
        if self._rest:
            self._pass(self._rest)

    def _pass(self, line: bytes) -> None:
        if _RECORD.match(line):
            try:
                os.write(2, line + b"\n")
            except OSError:
                Log.failures += 1
            return
        text = line.decode("utf-8", "replace")
        if found := _BIRD.fullmatch(text):
            level, said, before = found.groups()
            written = "info" if said == _ORDERLY else _LEVELS.get(level or "WARN", "error")
            self._bird.write(written, said if before is None else before)
        elif text.strip():
            self._other.info(text)
