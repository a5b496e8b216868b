"""``calico-node -flows N``: shows what the recorder exports, as upstream's: it is a collector on a local socket.

Rule: the socket is its owner's alone, and goes with the command; another one that listens there is not replaced.
"""

from __future__ import annotations

import os
import queue
import socket
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from typing import Any

from cni_calico import directories
from cni_calico.errors import KernelError
from cni_calico.flows.export.keys import ReportingSide
from cni_calico.flows.export.messages import METHOD, decode_update, pb
from cni_calico.flows.export.wanted import SOCKET
from cni_calico.regular import make_directories
from cni_calico.slim_grpc import load_grpc

_WAIT_S, _WAITING = 0.25, 10_000
_TYPES = {1: "wep", 2: "hep", 3: "ns", 4: "net"}
_ACTIONS = {0: "", 1: "Allow", 2: "Deny", 3: "Pass"}


def show_flows(
    environ: Mapping[str, str], count: int, stopping: Callable[[], bool], write: Callable[[str], object]
) -> int:
    """So many flows, for ever if it is negative. Returns the exit status. Raises KernelError."""
    with FlowListener(f"{directories.run_dir(environ)}/{SOCKET}") as listener:
        for shown, flow in enumerate(listener.flows(stopping), start=1):
            write(render_flow(flow))
            if shown == count:
                break
    return 0


class FlowListener:
    """A collector on a socket. Raises KernelError."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._flows: queue.Queue[Any] = queue.Queue(_WAITING)
        grpc = load_grpc()
        self._server = grpc.server(ThreadPoolExecutor(4))
        service, _, method = METHOD.strip("/").partition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])

    def __enter__(self) -> FlowListener:
        try:
            make_directories(os.path.dirname(self.path), 0o700)
            _remove_deserted(self.path)
            before = os.umask(0o177)
            try:
                bound = self._server.add_insecure_port(f"unix:{self.path}")
            finally:
                os.umask(before)
        except OSError as e:
            raise KernelError(f"cannot listen on {self.path}: {e.strerror or e}") from e
        except RuntimeError as e:  # gRPC's
            raise KernelError(f"cannot listen on {self.path}: {e}") from e
        if not bound:
            raise KernelError(f"cannot listen on {self.path}")
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0)
        with suppress(OSError):
            os.unlink(self.path)

    def flows(self, stopping: Callable[[], bool]) -> Iterator[Any]:
        """Messages Flow, as they come."""
        while not stopping():
            with suppress(queue.Empty):
                yield self._flows.get(timeout=_WAIT_S)

    def _connect(self, updates: Iterator[bytes], context: Any) -> Iterator[bytes]:
        receipt = pb.FlowReceipt().SerializeToString()
        for data in updates:
            with suppress(ValueError, queue.Full):  # what nobody can show, or looks at, is not kept
                self._flows.put_nowait(decode_update(data))
            yield receipt


def _remove_deserted(path: str) -> None:
    """A socket that nobody listens on any more. Raises OSError."""
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError("it is no socket")
    with socket.socket(socket.AF_UNIX) as trying:
        try:
            trying.connect(path)
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError("somebody listens there already")


def render_flow(flow: Any) -> str:
    """Some lines for people, the same fields as upstream's command shows."""
    key = flow.Key
    source = f"{_TYPES.get(key.source_type, 'unknown')}({key.source_namespace}/{key.source_name})"
    destination = f"{_TYPES.get(key.dest_type, 'unknown')}({key.dest_namespace}/{key.dest_name})"
    service = f"{key.dest_service_namespace}/{key.dest_service_name}"
    when = datetime.fromtimestamp(flow.start_time).astimezone().isoformat(sep=" ")
    reporter = {ReportingSide.SOURCE: "Src", ReportingSide.DESTINATION: "Dst"}.get(key.reporter, "")
    counts = f"Ingress: {flow.packets_in}Pkts/{flow.bytes_in}Bytes Egress:{flow.packets_out}Pkts/{flow.bytes_out}Bytes"
    connections = (
        f"Started:{flow.num_connections_started} Completed:{flow.num_connections_completed} "
        f"Live:{flow.num_connections_live}"
    )
    lines = [
        f"- Time={when} Reporter={reporter} Action={_ACTIONS.get(key.action, '')}",
        f"  Src={{{source}}} Dst={{{destination} Svc:{service}}} "
        f"Proto={{{key.proto}({key.dest_port}) Svc:{key.dest_service_port_name}/{key.dest_service_port}}}",
        f"  Counts={{{counts}}} Connections={{{connections}}}",
        "  Enforced:",
        *map(_render_hit, key.policies.enforced_policies),
        "  Pending:",
        *map(_render_hit, key.policies.pending_policies),
    ]
    return "".join(_printable(line) + "\n" for line in lines)


def _render_hit(hit: Any) -> str:
    kind = pb.PolicyKind.Name(hit.kind) if hit.kind in pb.PolicyKind.values() else str(hit.kind)
    path = f"{hit.namespace}/{hit.name}" if hit.namespace else hit.name
    after = f" after {_render_hit(hit.trigger).strip(' -')}" if hit.HasField("trigger") else ""
    words = [kind, path, f"tier {hit.tier}" if hit.tier else "", f"rule {hit.rule_index}", _ACTIONS.get(hit.action, "")]
    return f"  - {' '.join(filter(None, words))}{after}"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in line)
