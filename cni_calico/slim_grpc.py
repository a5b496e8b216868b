"""Imports gRPC and protobuf without parts that we do not use: this halves the time that they add to a one-shot call.

Rule: code that needs gRPC or messages imports them through this module. It leaves out gRPC's asyncio half (and with it
asyncio, ssl and subprocess) and protobuf's pure-Python messages, which are unused where the compiled ones are. During
the import, empty modules take their places; so this is done only while no other thread could see them, and later
imports find the real ones.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

from google.protobuf.internal import api_implementation

_ASYNC = ("asyncio", "grpc.aio")
_PURE_PYTHON = ("google.protobuf.internal.python_message",)


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    alone = threading.active_count() == 1
    empty = {name: ModuleType(name) for name in names if alone and name not in sys.modules}
    sys.modules.update(empty)
    try:
        yield
    finally:
        for name in empty:
            del sys.modules[name]


def slim_messages() -> AbstractContextManager[None]:
    """Import generated messages inside this context."""
    return _without(_PURE_PYTHON if api_implementation.Type() == "upb" else ())


def load_grpc() -> Any:
    """Returns the package ``grpc``."""
    with _without(_ASYNC):
        import grpc
        import grpc._channel  # modules that the first channel would import
    if "grpc.aio" not in sys.modules and hasattr(grpc, "aio"):
        del grpc.aio  # the empty stand-in
    return grpc
