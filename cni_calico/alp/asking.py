"""Asks a calico-alp at its socket.

Rule: one call, with a deadline.
"""

from __future__ import annotations

from cni_calico.errors import CalicoError
from cni_calico.slim_grpc import load_grpc


class CannotAsk(CalicoError):
    """Nobody answers."""


def ask(path: str, method: str, data: bytes, timeout_s: float) -> bytes:
    """The answer's bytes. Raises CannotAsk."""
    grpc = load_grpc()
    with grpc.insecure_channel(f"unix:{path}") as channel:
        try:
            answer: bytes = channel.unary_unary(method)(data, timeout=timeout_s)
        except grpc.RpcError as e:
            raise CannotAsk(f"cannot ask at {path}: {e.details()}") from e
    return answer
