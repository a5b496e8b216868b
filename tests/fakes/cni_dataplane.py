"""A data plane beside Calico: a gRPC server on a unix socket, with messages that protoc makes of cni_dataplane.proto.

``python -m tests.fakes.cni_dataplane DIRECTORY SOCKET`` serves until it is ended. DIRECTORY/asked gets a line of JSON
for every request; DIRECTORY/plan says what is answered: ``{"Add": {...fields of AddReply}, "Del": {...}}``, where in
place of the fields may stand "hang", "die" (without an answer) or "garbage" (bytes that are no message).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deadlines import until

MAC = "02:fe:00:00:00:01"
GOOD = {
    "Add": {"successful": True, "host_interface_name": "vpp-tun7", "container_mac": MAC},
    "Del": {"successful": True},
}


@dataclass
class Dataplane:
    """The server as a test sees it."""

    directory: Path
    socket: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"type": "grpc", "socket": f"unix://{self.socket}", "flavour": "plain", "number": 3}

    def plan(self, **answers: Any) -> None:
        """What is answered from now on."""
        (self.directory / "plan").write_text(json.dumps({**GOOD, **answers}))

    def asked(self, method: str = "") -> list[Any]:
        """The requests since the last look, as (method, fields); of one method: its fields."""
        path = self.directory / "asked"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        found = [json.loads(line) for line in lines]
        return [fields for name, fields in found if name == method] if method else found

    def start(self) -> None:
        argv = [sys.executable, "-m", "tests.fakes.cni_dataplane", str(self.directory), str(self.socket)]
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(self._serves, "the data plane serves", 30)

    def _serves(self) -> bool:
        assert self.process is not None and self.process.poll() is None, (self.directory / "log").read_text()
        return (self.directory / "serving").exists()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        (self.directory / "serving").unlink(missing_ok=True)


@contextmanager
def dataplane_in(directory: Path) -> Iterator[Dataplane]:
    """A data plane that is served, and answers well until it is told otherwise."""
    directory.mkdir()
    # characters that mean something in a URI are nothing special in a path
    made = Dataplane(directory, directory / "data plane%41.sock")
    made.plan()
    made.start()
    try:
        yield made
    finally:
        made.stop()


def compile_messages(directory: Path) -> Any:
    """The module that protoc makes of the .proto beside this file."""
    from grpc_tools import protoc

    source = Path(__file__).with_suffix(".proto")
    assert protoc.main(["protoc", f"-I{source.parent}", f"--python_out={directory}", source.name]) == 0
    sys.path.insert(0, str(directory))
    return importlib.import_module("cni_dataplane_pb2")


def serve(directory: Path, socket: str) -> None:
    import grpc
    from google.protobuf.json_format import MessageToDict

    messages = compile_messages(directory)

    def handler(method: str) -> Any:
        request_type, reply_type = getattr(messages, f"{method}Request"), getattr(messages, f"{method}Reply")

        def answer(data: bytes, context: Any) -> bytes:
            request = request_type.FromString(data)
            assert request.SerializeToString(deterministic=True) and not _unknown(request), data
            fields = MessageToDict(request, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            with (directory / "asked").open("a") as f:
                f.write(json.dumps([method, fields]) + "\n")
            planned = json.loads((directory / "plan").read_text())[method]
            if planned == "die":
                os._exit(1)
            if planned == "hang":
                threading.Event().wait(60)
            if isinstance(planned, str):
                return b"\xff\xff\xff"
            reply: bytes = reply_type(**planned).SerializeToString()
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {method: handler(method) for method in ("Add", "Del")}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("cni.CniDataplane", handlers),))
    # a path, not a URI: "unix:" alone would take the escapes apart
    Path(socket).unlink(missing_ok=True)
    short = directory / "s"
    assert server.add_insecure_port(f"unix:{short}")
    server.start()
    short.rename(socket)
    (directory / "serving").touch()
    server.wait_for_termination()


def _unknown(message: Any) -> list[Any]:
    """Fields of a request that the service does not have."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    found: list[Any] = list(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else [value]:
            found += _unknown(each)
    return found


def without(options: Mapping[str, Any]) -> dict[str, str]:
    """The options that are passed on: those that are texts."""
    return {name: value for name, value in options.items() if isinstance(value, str)}


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
