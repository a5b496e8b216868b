"""Makes what TLS connections of a client need: whom to trust, and what to show.

Rule: keys are passed to OpenSSL through memory that no other process can open, never through a file on disk.
"""

from __future__ import annotations

import os
from ssl import SSLContext


def client_context(
    ca: bytes | None, certificate: bytes = b"", key: bytes = b"", *, insecure: bool = False
) -> SSLContext:
    """A context that trusts the authorities in ``ca`` (PEM; None: the system's), or any server at all if ``insecure``.

    Raises OSError (ssl.SSLError is one), ValueError.
    """
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(cadata=ca.decode("ascii", "replace"))
    if certificate:
        _load_certificate(context, certificate, key)
    return context


def _load_certificate(context: SSLContext, certificate: bytes, key: bytes) -> None:
    """Load it through a file in memory, because OpenSSL's interface needs a file."""
    fd = os.memfd_create("certificate")
    try:
        data = certificate.rstrip() + b"\n" + key
        while data:
            data = data[os.write(fd, data) :]
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
