"""PURE: ``dataplane_options`` of the network configuration: who makes the pod's interface if the kernel does not.

Rule: parsed with the rest of the configuration, before anything is taken. Source: the key as upstream reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cni_calico.cni.fields import JsonFields, wrong
from cni_calico.errors import InvalidConfig

UNIX = "unix://"
PATH_MAX_BYTES = 107  # sockaddr_un's, without the byte that ends it


@dataclass(frozen=True, slots=True)
class ExternalDataplane:
    """A data plane of others, spoken to by gRPC: ``socket`` is the path of its socket, ``options`` are all of the
    section's texts, as they are passed on to it.
    """

    socket: str
    options: Mapping[str, str]


def parse_dataplane(section: JsonFields) -> ExternalDataplane | None:
    """None for the kernel's own data plane. Raises InvalidConfig naming what is wrong."""
    kind = section.values.get("type")
    if kind is None:
        return None
    if kind != "grpc":
        raise InvalidConfig(
            f"Invalid dataplane type: {str(kind)[:80]}",
            details="dataplane_options.type is 'grpc' for an external data plane; without dataplane_options pods are "
            "in the kernel's network",
        )
    options = {name: value for name, value in section.values.items() if isinstance(value, str)}
    for name, value in options.items():
        if not _is_utf8(name) or not _is_utf8(value):
            raise wrong(f"dataplane_options.{_printable(name)}", "a text that can be written as UTF-8", value)
    return ExternalDataplane(_parse_socket(section), options)


def _parse_socket(section: JsonFields) -> str:
    socket = section.text("socket")
    path = socket.removeprefix(UNIX)
    if not socket:
        raise InvalidConfig(
            "cannot use dataplane_options.type 'grpc': dataplane_options.socket is missing",
            details=f"name the data plane's socket, such as {UNIX}/var/run/calico/cni-server.sock",
        )
    if not socket.startswith(f"{UNIX}/") or path.endswith("/") or "\0" in path or len(path.encode()) > PATH_MAX_BYTES:
        expected = f"{UNIX} and the absolute path of a socket, at most {PATH_MAX_BYTES} bytes"
        raise wrong("dataplane_options.socket", expected, socket)
    return path


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _printable(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()
