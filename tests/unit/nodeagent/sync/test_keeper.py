"""Policy sync is there while there is a prefix, and follows what is in force and the datastore's profiles."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.sync.keeper import SyncKeeper
from cni_calico.policy.wanted import SetChange, Wanted, WantedChanges
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.fakes.notes import Notes
from tests.unit.nodeagent.sync.test_serving import Client, clients, wanted_with

ROOT = Path(__file__).parents[4]


class Kept:
    """The engine tells when it is woken, as it does after each round."""

    def __init__(self) -> None:
        self.store, self.stopping, self.threads = MemoryStore(), threading.Event(), list[threading.Thread]()
        self.wanted, self.troubles = wanted_with(clients(2)), list[str]()
        self.told = 0
        log = Notes()
        self.keeper = SyncKeeper(self.store, log, self.start, self.stopping, self.troubles.append, self.tell_everything)

    def put(self, profile: str, spec: dict[str, Any]) -> None:
        record = Resource("Profile", Metadata(profile), spec)
        self.store.elsewhere(Write.put(ResourceKey("Profile", profile), encode(record)))

    def start(self, work: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=work))
        self.threads[-1].start()

    def tell_everything(self) -> None:
        self.keeper.tell([], self.whole)

    def whole(self) -> Wanted:
        self.told += 1
        return self.wanted

    def end(self) -> None:
        self.keeper.use("")
        self.stopping.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive()


@pytest.fixture
def kept() -> Iterator[Kept]:
    found = Kept()
    try:
        yield found
    finally:
        found.end()


def volume_in(prefix: Path) -> Path:
    (prefix / "creds").mkdir(parents=True)
    (prefix / "mount/csi-1").mkdir(parents=True)
    (prefix / "creds/csi-1.json").write_text('{"UID": "u", "Workload": "web", "Namespace": "shop"}')
    return prefix / "mount/csi-1/socket"


def test_it_serves_while_there_is_a_prefix(kept: Kept, tmp_path: Path) -> None:
    spec = {"labelsToApply": {"pcns.team": "a"}}
    kept.put("kns.shop", spec)
    first, second = volume_in(tmp_path / "one"), volume_in(tmp_path / "two")
    assert not kept.keeper.listens()
    kept.keeper.use(str(tmp_path / "one"))
    assert kept.keeper.listens()
    client = Client(first).join()
    assert {"ipset_update", "namespace_update", "in_sync"} <= set(client.until_in_sync())
    kept.keeper.tell([], kept.whole)
    assert kept.told == 1  # everything is asked for once
    kept.put("ksa.shop.robot", {})
    assert client.next()[1].id.name == "robot"
    kept.keeper.tell_lifted()
    kept.wanted = wanted_with(clients(3))
    kept.tell_everything()
    assert kept.told == 2 and list(client.next()[1].added_members) == ["10.1.0.2/32"]  # the rest it has kept
    kept.keeper.use(str(tmp_path / "two"))
    client.end()
    assert Client(second).join().until_in_sync()[-1] == "in_sync"
    assert not first.exists()
    kept.keeper.use("")
    until(lambda: not second.exists(), "nobody listens")
    assert not kept.keeper.listens()


def test_a_failure_is_told_and_ends_once_it_works(kept: Kept, tmp_path: Path) -> None:
    path = volume_in(tmp_path / "one")
    kept.keeper.use(str(tmp_path / "one"))
    until(path.is_socket, "it serves")
    kept.keeper.tell([WantedChanges(sets_changed={"s-other": SetChange(clients(1))})], kept.whole)  # of what is unknown
    until(lambda: any("there is no policy sync" in text for text in kept.troubles), "it is told")
    assert Client(path).join().until_in_sync()[-1] == "in_sync"
    assert kept.troubles[-1] == ""


def test_an_agent_without_it_imports_nothing_of_it() -> None:
    """Neither of policy sync, nor of another data plane's driver."""
    of_it = "'nodeagent.sync.' in n or 'nodeagent.driver' in n"
    program = f"import sys; import cni_calico.nodeagent.parts; print([n for n in sys.modules if {of_it}])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['cni_calico.nodeagent.sync.switch']"
