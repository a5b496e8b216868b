"""Upstream's own CSI driver makes a volume, our agent listens in it, and a program in the pod follows its policies."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.unit.nodeagent.sync.test_serving import Client, Served

pytestmark = [pytest.mark.netns, pytest.mark.slow]

# the driver's directories are fixed: in a mount namespace of its own they are the test's
PROGRAM = """
mount -t tmpfs none /run
mkdir /run/nodeagent
mount --bind {prefix} /run/nodeagent
exec {program} --nodeid=n1 --loglevel=info --endpoint={socket}
"""


def encoded(**fields: Any) -> bytes:
    """A request of CSI: texts by number (f1, f4, ...), and the map in field 8."""

    def field(number: int, data: bytes) -> bytes:
        return bytes([number << 3 | 2, len(data)]) + data

    found = b"".join(field(int(name[1:]), text.encode()) for name, text in fields.items() if name != "f8")
    pairs = fields.get("f8", {}).items()
    return found + b"".join(field(8, field(1, key.encode()) + field(2, text.encode())) for key, text in pairs)


class Csi:
    """The driver, as a kubelet calls it; ``seen`` leads to what a pod on this node sees."""

    def __init__(self, directory: Path, prefix: Path) -> None:
        socket = directory / "csi.sock"
        script = PROGRAM.format(prefix=prefix, program=LAB_CACHE / "bin" / "calico-csi", socket=socket)
        self.process = subprocess.Popen(["unshare", "--mount", "sh", "-ec", script])
        until(socket.is_socket, "the driver listens", 60)
        self.seen = Path(f"/proc/{self.process.pid}/root")
        self.channel = grpc.insecure_channel(f"unix:{socket}")

    def call(self, method: str, **fields: Any) -> bytes:
        asked = partial(self.channel.unary_unary(f"/csi.v1.{method}"), timeout=60, wait_for_ready=True)
        answer: bytes = asked(encoded(**fields))
        return answer

    def end(self) -> None:
        self.channel.close()
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture
def csi(tmp_path: Path, sync_server: Served) -> Iterator[Csi]:
    found = Csi(tmp_path, sync_server.prefix)
    try:
        yield found
    finally:
        found.end()


def test_a_volume_of_upstreams_driver(csi: Csi, sync_server: Served, tmp_path: Path) -> None:
    """From the kubelet's call to the messages, and back; a second pod's volume is another pod's."""
    assert b"csi.tigera.io" in csi.call("Identity/GetPluginInfo")
    names = {"pod.name": "web", "pod.namespace": "shop", "pod.uid": "u-1", "serviceAccount.name": "default"}
    context = {f"csi.storage.k8s.io/{key}": text for key, text in names.items()}
    targets = {pod: tmp_path / f"pods/{pod}/mount" for pod in ("web", "other")}
    for pod, target in targets.items():
        its = context | {"csi.storage.k8s.io/pod.name": pod}
        csi.call("Node/NodePublishVolume", f1=f"csi-{pod}", f4=str(target), f8=its)
    sockets = {pod: csi.seen / str(target)[1:] / "nodeagent/socket" for pod, target in targets.items()}
    client = Client(sockets["web"]).join()
    assert client.until_in_sync()[-1] == "in_sync"
    stranger = Client(sockets["other"]).join()
    assert stranger.report(b"", timeout=60)  # it is served, and told nothing: there is no such endpoint
    csi.call("Node/NodeUnpublishVolume", f1="csi-web", f2=str(targets["web"]))
    assert client.end().name == "UNAVAILABLE"
    until(lambda: not list((sync_server.prefix / "creds").glob("csi-web*")), "its file is gone")
    assert not (sync_server.prefix / "mount/csi-web").exists()
    assert sockets["other"].is_socket()
    csi.call("Node/NodeUnpublishVolume", f1="csi-other", f2=str(targets["other"]))
    for one in (client, stranger):
        one.channel.close()
