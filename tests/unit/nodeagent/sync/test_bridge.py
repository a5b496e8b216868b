"""A bridge that is cut while it is being opened is gone: nobody would count it, or cut it again."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from cni_calico.nodeagent.sync.bridge import Bridge


def listening(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.bind(str(path))
    made.listen(4)
    return made


def test_one_that_is_cut_while_it_connects_with_the_server(tmp_path: Path) -> None:
    async def work() -> None:
        closed: list[Bridge] = []
        bridge = Bridge(closed.append)
        opening = asyncio.create_task(bridge.open(str(tmp_path / "server")))
        await asyncio.sleep(0)
        bridge.cut()
        with pytest.raises(OSError, match="cut off"):
            await opening
        bridge.cut()
        assert closed == [bridge]

    with listening(tmp_path / "server") as server:
        asyncio.run(work())
        with server.accept()[0] as accepted:
            assert accepted.recv(1) == b""


def test_one_that_is_cut_while_a_workload_joins(tmp_path: Path) -> None:
    theirs, accepted = socket.socketpair()
    accepted.setblocking(False)

    async def work() -> None:
        closed: list[Bridge] = []
        bridge = Bridge(closed.append)
        await bridge.open(str(tmp_path / "server"))
        joining = asyncio.create_task(bridge.join(accepted))
        await asyncio.sleep(0)
        bridge.cut()
        with pytest.raises(OSError, match="cut off"):
            await joining
        bridge.cut()
        assert closed == [bridge]

    with theirs, listening(tmp_path / "server"):
        asyncio.run(work())
        assert theirs.recv(1) == b""
