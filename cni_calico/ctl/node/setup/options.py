"""PURE: what ``node init`` is asked for, validated as a whole.

Rule: every mistake is named before anything is read or written; a combination that would leave a node without its
datastore or without a way to others is one.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from cni_calico.cni.netconf import NODE_NAME_MAX
from cni_calico.daemon.settings_table import parse_as_number
from cni_calico.errors import InvalidConfig
from cni_calico.model.names import valid_identifier
from cni_calico.model.resources import Address

LOCAL, ETCD = "local", "etcd"
DATASTORES = (LOCAL, ETCD)


@dataclass(frozen=True, slots=True)
class WantedPeer:
    """A BGP peer of this node alone."""

    address: Address
    as_number: int


@dataclass(frozen=True, slots=True)
class SetupOptions:
    """``ca``, ``cert``, ``key``: absolute paths, or ""; ``cidrs``: of the default pools; ``as_number`` 0: no BGP."""

    datastore: str
    endpoints: tuple[str, ...] = ()
    ca: str = ""
    cert: str = ""
    key: str = ""
    name: str = ""
    cidrs: tuple[str, ...] = ()
    as_number: int = 0
    peers: tuple[WantedPeer, ...] = ()

    @property
    def is_local(self) -> bool:
        return self.datastore == LOCAL

    @property
    def cidr4(self) -> str:
        return next((cidr for cidr in self.cidrs if ":" not in cidr), "")

    @property
    def cidr6(self) -> str:
        return next((cidr for cidr in self.cidrs if ":" in cidr), "")


def parse_options(arguments: Namespace) -> SetupOptions:
    """Raises InvalidConfig."""
    options = SetupOptions(
        arguments.datastore,
        _listed(arguments.endpoints),
        arguments.ca,
        arguments.cert,
        arguments.key,
        arguments.name.strip(),
        _parse_cidrs(arguments.cidr),
        _parse_as(arguments.as_number, "--as") if arguments.as_number else 0,
        tuple(map(_parse_peer, arguments.peer or ())),
    )
    _require_sense(options)
    return options


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _refuse(why: str, todo: str) -> InvalidConfig:
    return InvalidConfig(f"cannot set this host up: {why}", details=todo)


def _require_sense(options: SetupOptions) -> None:
    if options.name and (not valid_identifier(options.name) or len(options.name) > NODE_NAME_MAX):
        raise _refuse(f"--name is {options.name!r}", "give a name of letters, digits, '_', '.' and '-'")
    of_etcd = {"--endpoints": options.endpoints, "--ca": options.ca, "--cert": options.cert, "--key": options.key}
    if options.is_local:
        if given := [name for name, value in of_etcd.items() if value]:
            raise _refuse(f"{given[0]} is given with --datastore local", "choose --datastore etcd, or leave it out")
    elif not options.endpoints:
        raise _refuse("--datastore etcd needs --endpoints", "for example --endpoints https://10.0.0.10:2379")
    for endpoint in options.endpoints:
        scheme, _, rest = endpoint.partition("://")
        if scheme not in ("http", "https") or not rest or not _is_plain(rest):
            raise _refuse(
                f"--endpoints has {endpoint!r}, which is no URL of etcd", "for example https://10.0.0.10:2379"
            )
    if bool(options.cert) != bool(options.key):
        raise _refuse("--cert and --key belong together", "give both, or none")
    for name, path in (("--ca", options.ca), ("--cert", options.cert), ("--key", options.key)):
        if path and not _is_plain_path(path):
            raise _refuse(f"{name} is {path!r}", "give an absolute path without spaces, quotes and control characters")
    if options.peers and not options.as_number:
        raise _refuse("--peer needs --as, this node's own AS number", "for example --as 64512")


def _is_plain_path(path: str) -> bool:
    """Such as systemd's environment files, and YAML, take as they are."""
    return path.startswith("/") and _is_plain(path)


def _is_plain(text: str) -> bool:
    return text.isprintable() and not set(text) & set(" \"'\\$#%;`")


def _parse_cidrs(texts: Sequence[str] | None) -> tuple[str, ...]:
    found: dict[int, str] = {}
    for text in texts or ():
        try:
            network = ip_network(text)
        except ValueError as e:
            raise _refuse(f"--cidr is {text!r}", "give a network such as 10.65.0.0/16 or fd00:65::/48") from e
        if network.version in found:
            raise _refuse(
                f"--cidr gives two networks of IPv{network.version}", "make further pools with calicoctl apply"
            )
        found[network.version] = str(network)
    return tuple(found[version] for version in sorted(found))


def _parse_as(text: str, where: str) -> int:
    try:
        return int(parse_as_number(text))
    except ValueError as e:
        raise _refuse(f"{where} is {text!r}", "give an AS number: 64512, or 65000.1") from e


def _parse_peer(text: str) -> WantedPeer:
    address, is_complete, number = text.rpartition("@")
    try:
        peer = ip_address(address)
    except ValueError as e:
        raise _refuse(f"--peer is {text!r}", "give ADDRESS@AS, for example 192.0.2.1@64500") from e
    if not is_complete:
        raise _refuse(f"--peer is {text!r}", "give ADDRESS@AS, for example 192.0.2.1@64500")
    return WantedPeer(peer, _parse_as(number, f"the AS number of --peer {text}"))
