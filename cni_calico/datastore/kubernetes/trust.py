"""Makes from a login the server that connections can be opened to: with its certificates and its proxy.

Rule: keys are passed to OpenSSL through memory that no other process can open, never through a file on disk.
"""

from __future__ import annotations

import os

from cni_calico.datastore.kubernetes.http import Server
from cni_calico.datastore.kubernetes.login import HINT, Login, basic, parse_url
from cni_calico.errors import DatastoreDenied
from cni_calico.redaction import shown_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ssl import SSLContext


def server_of(login: Login) -> Server:
    """The server to open connections to. Raises DatastoreDenied."""
    scheme, host, port, base = parse_url(login.url)
    proxy, proxy_login = None, ""
    if login.proxy_url:
        from cni_calico.datastore.kubernetes.proxy import parse_proxy

        proxy_host, proxy_port, credentials = parse_proxy(login.proxy_url)
        proxy = (proxy_host, proxy_port)
        proxy_login = basic(credentials) if credentials else ""
    tls = _tls_of(login) if scheme == "https" else None
    return Server(
        host,
        port,
        base=base,
        tls=tls,
        server_name=login.server_name,
        peer=login.peer,
        proxy=proxy,
        proxy_authorization=proxy_login,
    )


def _tls_of(login: Login) -> SSLContext:
    import ssl

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if login.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif login.ca is None:
            context.load_default_certs()
        else:
            context.load_verify_locations(cadata=login.ca.decode("ascii", "replace"))
        if any(login.peer):
            context.check_hostname = False  # its name is checked after the handshake
        if login.certificate:
            _load_certificate(context, login)
    except (ssl.SSLError, OSError, ValueError) as e:
        raise DatastoreDenied(f"cannot use the certificates for {shown_url(login.url)}: {e}", details=HINT) from e
    return context


def _load_certificate(context: SSLContext, login: Login) -> None:
    """Load the certificate through a file in memory, because OpenSSL's interface needs a file and no other process may
    open it.
    """
    fd = os.memfd_create("certificate")
    try:
        data = login.certificate.rstrip() + b"\n" + login.key
        while data:
            data = data[os.write(fd, data) :]
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
