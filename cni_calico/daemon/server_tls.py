"""TLS for what we serve: a certificate from files, and whether clients must show one.

Rule: files are read again when they have changed, at the next connection; while new ones cannot be used the former stay
in use, and ``trouble`` says why. Nothing is ever served without TLS because its files cannot be read.
"""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import suppress

from cni_calico.daemon.http_server import ServerFiles

Stamp = tuple[tuple[int, int, int], ...]


def server_context(certificate: str, key: str, ca: str = "", clients: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
    """A context of TLS 1.2 or newer from PEM files. With ``clients`` their certificates are verified by ``ca``, "" for
    the system's authorities. Raises OSError (ssl.SSLError is one).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # strangers could have it done over and over
    context.num_tickets = 0  # clients resume no TLS sessions, and each stored session costs memory
    context.load_cert_chain(certificate, key)
    if clients is not ssl.CERT_NONE:
        if ca:
            context.load_verify_locations(ca)
        else:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = clients
    return context


_CLIENTS = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}


class ContextTls:
    """The context that is given, which may be replaced: it counts for the next connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """For one thread, whose connection does not block. Raises OSError."""
        return self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)

    def receive(self, connection: socket.socket, size: int) -> bytes:
        """What has come; goes on with the handshake, too. Raises BlockingIOError, OSError."""
        assert isinstance(connection, ssl.SSLSocket)
        try:
            part = connection.recv(size)
            return part + connection.recv(connection.pending()) if connection.pending() else part
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as e:
            raise BlockingIOError from e


class ServerTls(ContextTls):
    """The context of some files."""

    def __init__(self, files: ServerFiles) -> None:
        """Raises OSError with the files' names."""
        self.trouble = ""
        self._files = files
        self._stamp = self._read_stamp()
        super().__init__(self._make())

    def wrap(self, connection: socket.socket) -> ssl.SSLSocket:
        """For one thread, whose connection does not block. Raises OSError."""
        self._look()
        return super().wrap(connection)

    def _look(self) -> None:
        stamp = self._read_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self.context = self._make()
                self.trouble = ""
            except OSError as e:
                self.trouble = f"{e}; the former ones are used"

    def _make(self) -> ssl.SSLContext:
        files = self._files
        try:
            return server_context(files.certificate, files.key, files.ca, _CLIENTS[files.clients])
        except (OSError, ValueError) as e:
            names = ", ".join(filter(None, (files.certificate, files.key, files.ca)))
            raise OSError(f"cannot use the certificates in {names or 'no file'}: {e}") from e

    def _read_stamp(self) -> Stamp:
        found = []
        for path in filter(None, (self._files.certificate, self._files.key, self._files.ca)):
            with suppress(OSError):  # a file that is gone changes the stamp too
                status = os.stat(path)
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)
