"""Opens and closes HTTP servers as the settings require."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.daemon.http_server import Page, PageServer, ServerFiles
from cni_calico.daemon.said import Said
from cni_calico.daemon.server_tls import ServerTls
from cni_calico.log import Log


@dataclass(frozen=True, slots=True)
class _Open:
    """A server with what it was opened for."""

    wanted: tuple[str, int]
    files: ServerFiles | None
    tls: ServerTls | None
    server: PageServer


class HttpServers:
    """The HTTP servers that the parameters ask for, opened and closed as the parameters change."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._open: dict[str, _Open] = {}
        self._said = Said(log)

    def keep(
        self,
        name: str,
        wanted: tuple[str, int] | None,
        pages: Callable[[], dict[str, Page]],
        files: ServerFiles | None = None,
    ) -> None:
        """Make server ``name`` listen at ``wanted`` (None: not at all), with ``files`` over TLS only; a failure is
        logged once and tried again.
        """
        current = self._open.get(name)
        if current is not None and (current.wanted, current.files) != (wanted, files):
            current.server.close()
            del self._open[name]
            current = None
        if current is not None and current.tls is not None:
            self._said.say(name, [current.tls.trouble] if current.tls.trouble else [], "error")
        if wanted is None or current is not None:
            return
        at = f"{wanted[0] or '*'}:{wanted[1]}"
        try:
            tls = None if files is None else _tls(files)
            opened = PageServer(*wanted, pages(), tls)
            self._open[name] = _Open(wanted, files, tls, opened)
            without = f", not on {opened.missing}" if opened.missing else ""
            self._log.info(f"serving {name} on {at}{' over TLS' if tls else ''}{without}")
            self._said.say(name, [])
        except OSError as e:
            self._said.say(name, [f"cannot serve {name} on {at}: {e.strerror or e}"], "error")

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].server.close()


def _tls(files: ServerFiles) -> ServerTls:
    from cni_calico.daemon.server_tls import ServerTls  # with ssl, which not every agent has

    return ServerTls(files)
