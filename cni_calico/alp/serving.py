"""Serves Envoy's authorization and gRPC's health service at a Unix socket.

Rule: what cannot be read or judged is refused; no answer ever says yes by default.
"""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from cni_calico.alp.asked import UNAVAILABLE, encode_answer, encode_health, parse_check
from cni_calico.alp.following import FollowedPolicies
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.log import LEVELS, Log
from cni_calico.slim_grpc import load_grpc

CHECK, HEALTH = "/envoy.service.auth.v3.Authorization/Check", "/grpc.health.v1.Health/Check"
_THREADS = 4
_MODE = 0o777  # Envoy runs as another user of the pod


class CannotListen(CalicoError):
    """The socket cannot be opened."""


class CheckServer:
    """Answers from ``start`` until ``stop``."""

    def __init__(self, path: str, policies: FollowedPolicies, log: Log) -> None:
        self._path, self._policies, self._log = path, policies, log
        grpc = load_grpc()
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=(("grpc.so_reuseport", 0),))
        for method, answer in ((CHECK, self._check), (HEALTH, self._health)):
            service, name = method.strip("/").split("/")
            handlers = {name: grpc.unary_unary_rpc_method_handler(answer)}
            self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, handlers)])

    def start(self) -> None:
        """An older socket there is replaced. Raises CannotListen, InvalidConfig."""
        try:
            if not stat.S_ISSOCK(os.lstat(self._path).st_mode):
                raise InvalidConfig(f"cannot listen at {self._path}: something else than a socket is there")
            os.unlink(self._path)
        except FileNotFoundError:
            pass
        except OSError as e:
            raise CannotListen(f"cannot listen at {self._path}: {e.strerror}") from e
        try:
            self._server.add_insecure_port(f"unix:{self._path}")
            os.chmod(self._path, _MODE)
        except (OSError, RuntimeError) as e:
            reason = e.strerror if isinstance(e, OSError) else "there is no such directory, or its path is too long"
            raise CannotListen(f"cannot listen at {self._path}: {reason}") from e
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Answers what was asked, and takes the socket away."""
        self._server.stop(grace_s).wait()
        with suppress(OSError):
            os.unlink(self._path)

    def _check(self, data: bytes, _: Any) -> bytes:
        try:
            asked = parse_check(data)
            answer = self._policies.judge(asked)
        except Exception as e:  # whatever it is: it must not become a yes, nor end the server
            self._log.error(f"a request is refused: {type(e).__name__}: {e}")
            return encode_answer(UNAVAILABLE)
        if self._log.threshold <= LEVELS["debug"]:
            source, path = asked.source.address, f"{asked.method} {asked.path}".strip() or "a connection"
            self._log.debug(f"{path!r} from {source}: {('allowed', 'refused')[answer.code != 0]} by {answer.by}")
        return encode_answer(answer.code)

    def _health(self, _data: bytes, _: Any) -> bytes:
        return encode_health(serving=self._policies.is_ready())
