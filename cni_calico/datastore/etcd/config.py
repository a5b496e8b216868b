"""PURE: where an etcd cluster is, and the identity we use there.

Rule: an invalid endpoint raises InvalidConfig before anything is contacted; error texts never contain the password.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv6Address

from cni_calico.errors import InvalidConfig

DEFAULT_PORT = 2379


@dataclass(frozen=True, slots=True)
class EtcdEndpoint:
    """A member's client address; ``host`` is a name or a bare IP address."""

    host: str
    port: int
    tls: bool

    @property
    def authority(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """``endpoints`` as users write them ("https://10.0.0.1:2379"); ``discovery_srv`` a domain whose SRV records name
    more. Files are read when a connection is made, and again when they change.
    """

    endpoints: tuple[str, ...] = ()
    discovery_srv: str = ""
    key_file: str = ""
    cert_file: str = ""
    ca_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)

    @property
    def files(self) -> tuple[str, str, str]:
        return self.ca_file, self.cert_file, self.key_file


def _refused(text: str, why: str) -> InvalidConfig:
    shown = text if "@" not in text else "(with a user or password)"
    return InvalidConfig(
        f"cannot use etcd endpoint {shown!r}: {why}", details="write http(s)://HOST:PORT, several separated by commas"
    )


def parse_endpoint(text: str, *, tls: bool) -> EtcdEndpoint:
    """An endpoint from ``[http[s]://]HOST[:PORT][/]``; ``tls`` applies if no scheme is given. Raises InvalidConfig."""
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        scheme, rest = "https" if tls else "http", scheme
    if scheme.lower() not in ("http", "https"):
        raise _refused(text, "its scheme is neither http nor https")
    rest = rest.removesuffix("/")
    if "@" in rest or "/" in rest or "?" in rest or any(c.isspace() for c in rest):
        raise _refused(text, "it may only contain a host and a port")
    host, port = _host_and_port(text, rest)
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise _refused(text, "a host name or address and a port from 1 to 65535 are expected")
    return EtcdEndpoint(host, int(port), scheme.lower() == "https")


def _host_and_port(text: str, rest: str) -> tuple[str, str]:
    if rest.startswith("["):
        host, closed, after = rest[1:].partition("]")
        if not closed or (after and not after.startswith(":")):
            raise _refused(text, "its brackets do not match")
        _require_ipv6(text, host)
        return host, after[1:] if after else str(DEFAULT_PORT)
    if rest.count(":") > 1:
        _require_ipv6(text, rest)
        return rest, str(DEFAULT_PORT)
    host, colon, port = rest.partition(":")
    return host, port if colon else str(DEFAULT_PORT)


def _require_ipv6(text: str, host: str) -> None:
    try:
        IPv6Address(host)
    except ValueError as e:
        raise _refused(text, "it has no valid IPv6 address") from e


def parse_endpoints(config: EtcdConfig) -> tuple[EtcdEndpoint, ...]:
    """The configured endpoints, each once, in their order. Raises InvalidConfig if there is neither an endpoint nor a
    discovery domain.
    """
    tls = any(config.files)
    found = dict.fromkeys(
        parse_endpoint(part, tls=tls) for text in config.endpoints for part in text.split(",") if part.strip()
    )
    if not found and not config.discovery_srv:
        raise InvalidConfig(
            "cannot open the etcdv3 datastore: no etcd endpoints specified",
            details="set etcd_endpoints in the network configuration, or ETCD_ENDPOINTS",
        )
    if bool(config.cert_file) != bool(config.key_file):
        raise InvalidConfig(
            "cannot open the etcdv3 datastore: a client certificate needs etcd_cert_file and etcd_key_file"
        )
    return tuple(found)


def cluster_name(config: EtcdConfig, endpoints: tuple[EtcdEndpoint, ...]) -> str:
    """What messages call the cluster."""
    return ",".join(map(str, endpoints)) or f"srv:{config.discovery_srv}"
