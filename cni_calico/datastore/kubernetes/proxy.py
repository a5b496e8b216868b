"""PURE: whether an API server is reached through a proxy from the environment, by the rules of client-go.

Rule: HTTPS_PROXY applies to https servers, but never to this host itself and never to what NO_PROXY names: domains
(including what is below them; ".domain" or "*.domain": only what is below), addresses and CIDRs, each with a port if
given. Source: Go's golang.org/x/net/http/httpproxy, which client-go uses.
"""

from __future__ import annotations

from cni_calico.errors import DatastoreDenied
from cni_calico.model.resources import Address

_HINT = "http://[USER:PASSWORD@]HOST[:PORT] is what HTTPS_PROXY, or proxy-url in a kubeconfig, may be"


def is_direct(host: str, port: int, no_proxy: str) -> bool:
    """Whether a host is reached without a proxy."""
    host = host.lower()
    address = _parse_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    entries = [entry for entry in (text.strip().lower() for text in no_proxy.split(",")) if entry]
    return any(entry == "*" or _matches(entry, host, address, port) for entry in entries)


def parse_proxy(text: str) -> tuple[str, int, str]:
    """(host, port, credentials "USER:PASSWORD" or "") of an HTTP proxy's URL. Raises DatastoreDenied."""
    scheme, _, rest = (text if "://" in text else f"http://{text}").partition("://")
    login, _, authority = rest.rpartition("@")  # a password may have a slash in it
    authority = authority.partition("/")[0]
    host, port = _split_port(authority)
    if scheme.lower() != "http" or not host or (port and not (port.isascii() and port.isdecimal())):
        raise DatastoreDenied(
            f"cannot use the proxy {scheme}://{authority}: it is not the address of an HTTP proxy", details=_HINT
        )
    number = int(port) if port else 80
    if not 0 < number < 65536:
        raise DatastoreDenied(f"cannot use the proxy {scheme}://{authority}: it has no such port", details=_HINT)
    return host, number, _unquote(login)


def _matches(entry: str, host: str, address: Address | None, port: int) -> bool:
    if "/" in entry:
        return address is not None and _is_within(address, entry)
    name, wanted_port = _split_port(entry)
    if wanted_port and wanted_port != str(port):
        return False
    own = _parse_address(name)
    if own is not None or address is not None:
        return own == address
    name = name.removeprefix("*") if name.startswith("*.") else name
    if name.startswith("."):
        return host.endswith(name)
    return host == name or host.endswith(f".{name}")


def _is_within(address: Address, cidr: str) -> bool:
    from ipaddress import ip_network

    try:
        network = ip_network(cidr, strict=False)
    except ValueError:
        return False
    return address.version == network.version and address in network


def _parse_address(text: str) -> Address | None:
    from ipaddress import ip_address

    try:
        return ip_address(text)
    except ValueError:
        return None


def _split_port(authority: str) -> tuple[str, str]:
    """A host, without brackets, and its port or ""."""
    if authority.startswith("["):
        host, _, rest = authority[1:].partition("]")
        return host, rest.removeprefix(":")
    if authority.count(":") > 1:  # an IPv6 address
        return authority, ""
    host, _, port = authority.partition(":")
    return host, port


def _unquote(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text)
