"""What an administrator tells etcd in tests: users, roles, authentication. Requests are encoded by hand here: the
product's messages have no use for them.
"""

from __future__ import annotations

import grpc


def _field(number: int, value: bytes | str | int) -> bytes:
    if isinstance(value, int):
        return bytes([number << 3, value])
    raw = value.encode() if isinstance(value, str) else value
    assert len(raw) < 128
    return bytes([number << 3 | 2, len(raw)]) + raw


def call(channel: grpc.Channel, method: str, request: bytes, token: str = "") -> bytes:
    metadata = (("token", token),) if token else ()
    return channel.unary_unary(f"/etcdserverpb.Auth/{method}")(request, timeout=10, metadata=metadata)


def add_user(channel: grpc.Channel, name: str, password: str, role: str) -> None:
    options = b"" if password else _field(3, _field(1, 1))  # no_password: for users known by their certificate
    call(channel, "UserAdd", _field(1, name) + _field(2, password) + options)
    call(channel, "UserGrantRole", _field(1, name) + _field(2, role))


def add_role(channel: grpc.Channel, name: str, prefix: str) -> None:
    """A role that may read and write everything under a prefix."""
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    permission = _field(1, 2) + _field(2, prefix) + _field(3, end)
    call(channel, "RoleAdd", _field(1, name))
    call(channel, "RoleGrantPermission", _field(1, name) + _field(2, permission))


def enable(channel: grpc.Channel, root_password: str) -> None:
    call(channel, "RoleAdd", _field(1, "root"))
    add_user(channel, "root", root_password, "root")
    call(channel, "AuthEnable", b"")
