"""gRPC and protobuf without their unused parts: the releases it was tested with, and that they work like the whole."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# where a stand-in is still referred to: in code that only the parts left out would run
KNOWN = {
    "google.protobuf.descriptor_pool.python_message",
    "google.protobuf.internal.builder.python_message",
    "grpc._cython.cygrpc.asyncio",
}
# the same calls with either; what the client saw
CALLS = """
import json, sys
sys.path.insert(0, {root!r})
slim, address = {slim!r}, {address!r}
if slim:
    from cni_calico.slim_grpc import load_grpc, slim_messages
    grpc = load_grpc()
    with slim_messages():
        from cni_calico.datastore.etcd import etcd_pb2 as pb
else:
    import grpc
    from cni_calico.datastore.etcd import etcd_pb2 as pb
seen = dict(version=grpc.__version__)
with grpc.insecure_channel(address) as channel:
    ask = lambda kind, how, **more: getattr(channel, how)(
        f"/t.T/{{kind}}", pb.RangeRequest.SerializeToString, pb.RangeResponse.FromString, **more)
    request = pb.RangeRequest(key=b"\\x00\\xff", limit=7)
    answer, call = ask("echo", "unary_unary").with_call(request, timeout=20, metadata=[("k", "v")])
    seen["echo"] = [str(answer), str(call.code()), sorted(map(tuple, call.trailing_metadata()))]
    for kind, timeout in (("deny", 20), ("slow", 0.05), ("absent", 20)):
        try:
            ask(kind, "unary_unary")(request, timeout=timeout)
        except grpc.RpcError as e:
            seen[kind] = [str(e.code()), e.details()]
    seen["stream"] = [str(one) for one in ask("many", "unary_stream")(request, timeout=20)]
    both = ask("both", "stream_stream")(iter([request, request]), timeout=20)
    seen["both"] = [str(one) for one in both]
    stopped = ask("endless", "unary_stream")(request)
    next(stopped)
    stopped.cancel()
    seen["cancelled"] = str(stopped.code())
names = {{name for name in dir(grpc) if not name.startswith("_")}}
import asyncio, ssl, subprocess
async def one():
    await asyncio.sleep(0)
    return 1
seen["asyncio"] = asyncio.run(one())
left_out = {{"asyncio", "grpc.aio", "google.protobuf.internal.python_message"}}
empty = [
    f"{{name}}.{{attribute}}"
    for name, module in [*sys.modules.items(), ("sys.modules", type(sys)("x"))]
    for attribute, value in {{**vars(module), **({{}} if name != "sys.modules" else sys.modules)}}.items()
    if isinstance(value, type(sys)) and value.__name__ in left_out and value.__spec__ is None
]
print(json.dumps([seen, sorted(names), empty]))
"""


@pytest.fixture(scope="module")
def address() -> Any:
    import grpc

    from cni_calico.datastore.etcd import etcd_pb2 as pb

    def echo(request: Any, context: Any) -> Any:
        context.set_trailing_metadata([("k", dict(context.invocation_metadata())["k"])])
        return pb.RangeResponse(count=request.limit, kvs=[pb.KeyValue(key=request.key)])

    def deny(request: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "not you")

    def slow(request: Any, context: Any) -> Any:
        return done.result(30)

    def many(request: Any, context: Any) -> Any:
        yield from (pb.RangeResponse(count=i) for i in range(request.limit))

    def both(requests: Any, context: Any) -> Any:
        yield from (pb.RangeResponse(count=request.limit) for request in requests)

    def endless(request: Any, context: Any) -> Any:
        while context.is_active():
            yield pb.RangeResponse(count=1)

    from concurrent.futures import Future

    done: Future[Any] = Future()
    kinds = {
        "echo": (grpc.unary_unary_rpc_method_handler, echo),
        "deny": (grpc.unary_unary_rpc_method_handler, deny),
        "slow": (grpc.unary_unary_rpc_method_handler, slow),
        "many": (grpc.unary_stream_rpc_method_handler, many),
        "endless": (grpc.unary_stream_rpc_method_handler, endless),
        "both": (grpc.stream_stream_rpc_method_handler, both),
    }
    handlers = {
        name: make(function, pb.RangeRequest.FromString, pb.RangeResponse.SerializeToString)
        for name, (make, function) in kinds.items()
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("t.T", handlers)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    done.set_result(pb.RangeResponse())
    server.stop(0).wait()


def calls(address: str, slim: bool) -> Any:
    program = CALLS.format(root=str(ROOT), slim=slim, address=address)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_calls_are_the_same_without_what_is_left_out(address: str) -> None:
    seen, names, empty = calls(address, slim=True)
    wanted, all_names, _ = calls(address, slim=False)
    assert seen == wanted
    assert seen["deny"] == ["StatusCode.PERMISSION_DENIED", "not you"] and seen["asyncio"] == 1
    assert set(all_names) - set(names) <= {"aio"}
    assert set(empty) == KNOWN


@pytest.mark.parametrize("name", ["grpcio", "protobuf"])
def test_the_release_is_fixed(name: str) -> None:
    """Another one is used only after the test above has passed with it."""
    import google.protobuf
    import grpc

    [wanted] = [text for text in PROJECT["dependencies"] if text.startswith(name)]
    installed = {"grpcio": grpc.__version__, "protobuf": google.protobuf.__version__}[name]
    assert wanted == f"{name}=={installed}"
    assert f"\n{wanted} \\\n" in (ROOT / "requirements.lock").read_text()
