"""The plugin executable's side of a call to the resident server.

Rule: import nothing beyond what a frozen start has loaded (``_socket``, not ``socket``, which takes 6 ms).
``call_server`` returns None if the call must run in this process instead: no server is listening, or one of another
user, the request is too large for it, or it went away before it answered. docs/protocol.md describes both sides.
"""

from __future__ import annotations

import _socket
import os
from sys import byteorder

from cni_calico.plugin.call import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLES = (
    "CNI_COMMAND CNI_CONTAINERID CNI_NETNS CNI_IFNAME CNI_ARGS CNI_PATH CNI_NETNS_OVERRIDE PATH HOSTNAME NODENAME "
    "FELIX_INTERFACEPREFIX DATASTORE_TYPE DATASTORE_PATH ETCD_ENDPOINTS ETCD_AUTHORITY ETCD_SCHEME ETCD_DISCOVERY_SRV "
    "ETCD_KEY_FILE ETCD_CERT_FILE ETCD_CA_CERT_FILE ETCD_USERNAME ETCD_PASSWORD KUBECONFIG K8S_API_ENDPOINT "
    "K8S_API_TOKEN KUBERNETES_SERVICE_HOST KUBERNETES_SERVICE_PORT HTTPS_PROXY https_proxy NO_PROXY no_proxy "
    "CALICO_RUN_DIR CALICO_STATE_DIR CALICO_DATASTORE_TYPE CALICO_DATASTORE_PATH CALICO_ETCD_ENDPOINTS "
    "CALICO_ETCD_DISCOVERY_SRV CALICO_ETCD_KEY_FILE CALICO_ETCD_CERT_FILE CALICO_ETCD_CA_CERT_FILE "
    "CALICO_ETCD_USERNAME CALICO_ETCD_PASSWORD CALICO_KUBECONFIG CALICO_API_GROUP"
)


class ServerStuck(Exception):
    """The server took the request and did not answer in time: it may still be working on it."""


def call_server(path: str, executable: str, environ: Mapping[str, str], stdin: bytes) -> tuple[int, bytes] | None:
    """(exit status, stdout) from the server at ``path``; None if there is no server. Raises ServerStuck."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    opened: list[int] = []
    try:
        connection.settimeout(protocol.CONNECT_S)
        try:
            connection.connect(path)
        except OSError:
            return None
        if not _is_trusted(connection):
            return None
        connection.settimeout(_patience_s(environ))
        names = _open_descriptors(environ, opened)
        if protocol.ROOT not in names or protocol.MOUNTS not in names:
            return None
        variables = [(name, environ[name]) for name in VARIABLES.split() if name in environ]
        data = protocol.frame(protocol.request_fields(executable, variables, stdin, names))
        if len(data) > protocol.HEADER_BYTES + protocol.BODY_MAX:
            return None
        try:
            try:
                _send(connection, data, opened)
            except ConnectionError:
                pass  # an overloaded server answers without reading
            return _receive_answer(connection)
        except TimeoutError as e:
            raise ServerStuck from e
        except (OSError, protocol.Malformed):
            return None
    finally:
        connection.close()
        for fd in opened:
            os.close(fd)


def _is_trusted(connection: _socket.socket) -> bool:
    """Whether the listening process belongs to root or to this process's user: nobody else may see what a call
    carries.
    """
    peer = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
    return int.from_bytes(peer[4:8], byteorder) in (0, os.geteuid())


def _patience_s(environ: Mapping[str, str]) -> float:
    try:
        chosen = float(environ.get(protocol.PATIENCE_VARIABLE) or protocol.PATIENCE_S)
    except ValueError:
        return protocol.PATIENCE_S
    return max(protocol.PATIENCE_MIN_S, chosen)


def _open_descriptors(environ: Mapping[str, str], opened: list[int]) -> list[bytes]:
    """Open what the server needs of this process: the network namespace in CNI_NETNS, its root, its mount namespace."""
    names = []
    for name, path, flags in (
        (protocol.NETNS, environ.get("CNI_NETNS", ""), os.O_RDONLY | os.O_NONBLOCK),
        (protocol.ROOT, "/", os.O_PATH),
        (protocol.MOUNTS, "/proc/self/ns/mnt", os.O_RDONLY),
    ):
        if not path:
            continue
        try:
            opened.append(os.open(path, flags | os.O_CLOEXEC))
        except OSError:
            continue  # the server reports the problem, with the path
        names.append(name)
    return names


def _send(connection: _socket.socket, data: bytes, descriptors: list[int]) -> None:
    rights = b"".join([fd.to_bytes(4, byteorder) for fd in descriptors])
    sent = connection.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if rights else [])
    while sent < len(data):
        sent += connection.send(data[sent:])


def receive_exactly(connection: _socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise protocol.Malformed("the connection ended in the middle of an answer")
        parts += part
    return parts


def _receive_answer(connection: _socket.socket) -> tuple[int, bytes] | None:
    """Returns None if a server of the previous version refuses a request that it does not know: the call then runs
    here.
    """
    version, length = protocol.parse_header(receive_exactly(connection, protocol.HEADER_BYTES))
    answer = protocol.parse_answer(protocol.parse_fields(receive_exactly(connection, length)))
    return None if version == protocol.VERSION - 1 else answer
