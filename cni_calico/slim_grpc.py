"""gRPC and protobuf without what they import for others: half of the time that a single call needs for them.

Rule: who needs gRPC or messages imports them through here. What is left out are gRPC's asyncio half (with it asyncio,
ssl, subprocess) and protobuf's messages in pure Python, which are not used where its compiled ones are. While they are
imported, empty modules stand in their places; so this is done only while no other thread could see them, and later
imports find the real ones.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from types import ModuleType

from google.protobuf.internal import api_implementation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Any

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
    """Generated messages are imported inside this."""
    return _without(_PURE_PYTHON if api_implementation.Type() == "upb" else ())


def load_grpc() -> Any:
    """The package ``grpc``."""
    with _without(_ASYNC):
        import grpc
        import grpc._channel  # what the first channel would import
    if "grpc.aio" not in sys.modules and hasattr(grpc, "aio"):
        del grpc.aio  # the empty one
    return grpc
