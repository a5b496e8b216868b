"""One seed decides alike: whatever takes its time, the same calls, faults and acts are chosen again."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.e2e.host import Node
from tests.faults import calls, worker
from tests.faults.acts import Acts
from tests.faults.calls import Limits
from tests.faults.worker import Options, Slot, Worker
from tests.netns.namespaces import Namespace

ALSO = ("limits", "host-end", "leader")


class Answered:
    """A call with the outcome that its number says; whether it ends before it is tormented is chance."""

    chance = random.Random()

    def __init__(self, number: int) -> None:
        reading, writing = os.pipe()
        if self.chance.random() < 0.5:
            os.write(writing, b"{}")
        self.answer, self._writing, self.number, self.pid = reading, writing, number, 0

    def finish(self, patience_s: float) -> tuple[int | None, bytes, bool]:
        os.close(self.answer)
        os.close(self._writing)
        interfaces = [{"name": "calix"}]
        good = json.dumps({"ips": [{"address": "10.65.0.1/32"}], "interfaces": interfaces}).encode()
        return (1, b'{"code": 11}', False) if self.number % 7 == 0 else (0, good, False)


def plan_of(seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every call that a worker with this seed makes, and what it does to containers."""
    done: list[Any] = []

    def begin(plugin: str, environ: Any, stdin: bytes, bundle: Path | None, limits: Any = None) -> Any:
        conf = json.loads(stdin)
        asked = {name: environ.get(name) for name in ("CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")}
        done.append((plugin, asked, conf.get("cni.dev/valid-attachments"), bool(conf.get("prevResult")), limits))
        return Answered(sum(isinstance(each[-1], Limits | None) for each in done))

    monkeypatch.setattr(calls, "begin", begin)
    monkeypatch.setattr(worker, "renew", lambda space: done.append(("renewed", space.name)))
    monkeypatch.setattr(worker.os, "kill", lambda pid, number: done.append(("signal", number)))
    monkeypatch.setattr(worker.netns, "enter", lambda fd: os.close(fd))
    monkeypatch.setattr(
        worker.subprocess, "run", lambda argv, **_: done.append(argv[1:]) or SimpleNamespace(stdout="10.65.0.1")
    )
    directory.mkdir()
    (directory / "ns").touch()
    host = Namespace("none")
    host.path = str(directory / "ns")
    node = Node(host, directory, DatastoreConfig("local", path="/none"))
    slots = [Slot(Namespace("a"), pod="K8S_POD_NAME=a"), Slot(Namespace("b"), pod="K8S_POD_NAME=b")]
    slots += [Slot(Namespace("c")), Slot(Namespace("d"), "eth0", fixed="f"), Slot(Namespace("d"), "net1", fixed="f")]
    options = Options(str(directory / "history"), also=ALSO, group=Path("/group"))
    Worker(node, 0, seed, slots, options).run(400)
    return [each for each in done if each[0] != "signal"]  # some calls have ended before their signal


def test_a_worker_with_the_same_seed_makes_the_same_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (
        plan_of(seed, tmp_path / name, monkeypatch) for seed, name in ((5, "first"), (5, "again"), (6, "other"))
    )
    assert first == again and len(first) > 400
    assert first != other
    limits = {each[-1].what for each in first if isinstance(each[-1], Limits)}
    assert limits == {"descriptors", "memory", "threads"}


def test_acts_with_the_same_seed_are_the_same() -> None:
    """Whether or not what an act waits for takes more of the random numbers."""
    member = SimpleNamespace(client_url="http://10.0.0.1:2379")
    hosts = [SimpleNamespace(server=SimpleNamespace(), node=SimpleNamespace(nodename=name)) for name in ("one", "two")]
    lab: Any = SimpleNamespace(hosts=hosts, members=[(member, None)] * 3)

    def chosen(seed: int, disturbed: bool) -> list[tuple[str, str]]:
        acts, found = Acts(lab, seed, also=ALSO), []
        for number in range(300):
            host, name, _ = acts.choose(number)
            found.append((host.node.nodename, name))
            if disturbed:
                acts.random.random()
        return found

    assert chosen(5, False) == chosen(5, True) != chosen(6, False)
    assert {name for _, name in chosen(5, False)} >= {"etcd leader cut off", "server short of threads", "clock jumped"}
