"""Opens and closes HTTP servers as the settings require."""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.daemon.http_server import Page, PageServer
from cni_calico.daemon.said import Said
from cni_calico.log import Log


class HttpServers:
    """The HTTP servers that the parameters ask for, opened and closed as the parameters change."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._open: dict[str, tuple[tuple[str, int], PageServer]] = {}
        self._said = Said(log)

    def keep(self, name: str, wanted: tuple[str, int] | None, pages: Callable[[], dict[str, Page]]) -> None:
        """Make server ``name`` listen at ``wanted`` (None: not at all); a failure is logged once and tried again."""
        current = self._open.get(name)
        if current is not None and current[0] != wanted:
            current[1].close()
            del self._open[name]
            current = None
        if wanted is None or current is not None:
            return
        try:
            opened = PageServer(*wanted, pages())
            self._open[name] = (wanted, opened)
            without = f", not on {opened.missing}" if opened.missing else ""
            self._log.info(f"serving {name} on {wanted[0] or '*'}:{wanted[1]}{without}")
            self._said.say(name, [])
        except OSError as e:
            text = f"cannot serve {name} on {wanted[0] or '*'}:{wanted[1]}: {e.strerror or e}"
            self._said.say(name, [text], "error")

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][1].close()
