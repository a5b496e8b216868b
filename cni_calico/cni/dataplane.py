"""PURE: ``dataplane_options`` of the network configuration: selects an external data plane for the pod's interface.

Rule: parsed with the rest of the configuration, before anything is taken. Source: upstream's handling of the key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cni_calico.cni.fields import JsonFields, wrong
from cni_calico.directories import RUN_DIR
from cni_calico.errors import InvalidConfig

UNIX = "unix://"
PATH_MAX_BYTES = 107  # the size of sockaddr_un's path, less the terminating byte


@dataclass(frozen=True, slots=True)
class ExternalDataplane:
    """An external data plane, reached over gRPC: ``socket`` is the path of its socket, ``options`` are all strings of
    the section, passed on to it as they are.
    """

    socket: str
    options: Mapping[str, str]


def parse_dataplane(section: JsonFields) -> ExternalDataplane | None:
    """None for the kernel's own data plane. Raises InvalidConfig naming what is wrong."""
    if "type" not in section.values:
        return None
    kind = section.values["type"]
    if kind != "grpc":
        raise InvalidConfig(
            f"Invalid dataplane type: {str(kind)[:80]}",
            details="dataplane_options.type is 'grpc' for an external data plane; without dataplane_options pods are "
            "in the kernel's network",
        )
    options = {name: value for name, value in section.values.items() if isinstance(value, str)}
    for name, value in options.items():
        if not _is_utf8(name) or not _is_utf8(value):
            raise wrong(f"dataplane_options.{_printable(name)}", "a text that UTF-8 can encode", value)
    return ExternalDataplane(_parse_socket(section), options)


def _parse_socket(section: JsonFields) -> str:
    socket = section.text("socket")
    path = socket.removeprefix(UNIX)
    if not socket:
        raise InvalidConfig(
            "cannot use dataplane_options.type 'grpc': dataplane_options.socket is missing",
            details=f"name the data plane's socket, such as {UNIX}{RUN_DIR}/cni-server.sock",
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
