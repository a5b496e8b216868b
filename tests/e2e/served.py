"""Calls through the plugin executable's own start (server first, else this process), and a server to torment."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cni_calico import faults
from cni_calico.ipam import protocol
from cni_calico.ipam.commands import serve as serve_ipam
from cni_calico.ipam.shim import serve_call
from cni_calico.plugin.commands import serve as serve_plugin
from tests.e2e.calls import Node, Reply

SERVES = {"calico": serve_plugin, "calico-ipam": serve_ipam}


def call(node: Node, command: str, container: str, netns: str = "", *, plugin: str = "calico", **changes: Any) -> Reply:
    """One call as the executable makes it; ``environ`` among the changes adds to its environment."""
    environ = {**node.env(command, container, netns, "eth0", ""), **changes.pop("environ", {})}
    data = json.dumps(node.conf(**changes)).encode()
    rc, out = node.host.call(_serve, plugin, environ, data, timeout_s=node.timeout_s)
    return Reply(rc, json.loads(out) if out.strip() else None)


def _serve(plugin: str, environ: Mapping[str, str], stdin: bytes) -> tuple[int, str]:
    faults.install_from_environment(environ)
    exit_code, stdout = serve_call(plugin, lambda: SERVES[plugin], environ, stdin)
    return exit_code, stdout.decode()


def call_all(node: Node, calls: list[tuple[str, str, str]], at_once: int = 8) -> list[Reply]:
    """(command, container, netns) of each; so many of them at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda one: call(node, *one), calls))


def socket_of(node: Node) -> str:
    return str(node.root / "run" / "cni.sock")


def connect(node: Node) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(socket_of(node))
    return connection


def request_frame(
    node: Node,
    command: str,
    container: str,
    netns: str = "",
    *,
    version: int = protocol.VERSION,
    plugin: str = "calico",
) -> bytes:
    """What the executable sends, without descriptors."""
    environ = list(node.env(command, container, netns, "eth0", "").items())
    fields = protocol.request_fields(plugin, environ, json.dumps(node.conf()).encode(), [])
    return protocol.frame(fields, version)


def receive(connection: socket.socket) -> tuple[int, int, Any] | None:
    """(protocol version, exit status, document) of an answer; None when the connection ends without one."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        return None
    if not data:
        return None
    version, length = protocol.parse_header(data[:8])
    assert len(data) == 8 + length
    exit_code, stdout = protocol.parse_answer(protocol.parse_fields(data[8:]))
    return version, exit_code, json.loads(stdout) if stdout.strip() else None


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])
