"""Makes from a login the server that connections can be opened to: with its certificates and its proxy."""

from __future__ import annotations

from ssl import SSLContext

from cni_calico.datastore.http import Server
from cni_calico.datastore.kubernetes.login import HINT, Login, basic, parse_url
from cni_calico.errors import DatastoreDenied
from cni_calico.redaction import shown_url


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
    from cni_calico.datastore.tls import client_context

    try:
        context = client_context(login.ca, login.certificate, login.key, insecure=login.insecure)
    except (OSError, ValueError) as e:
        raise DatastoreDenied(f"cannot use the certificates for {shown_url(login.url)}: {e}", details=HINT) from e
    if any(login.peer):
        context.check_hostname = False  # its name is checked after the handshake
    return context
