"""Recorded DELs are carried out one by one: what keeps one of them does not keep those behind it."""

import pytest

from cni_calico.datastore.client import Write
from cni_calico.deadline import Deadline
from cni_calico.ipam.services import Services
from cni_calico.model.keys import ResourceKey
from cni_calico.model.settings import DatastoreConfig
from cni_calico.plugin import pending
from cni_calico.plugin.replay import replay_intents
from tests.fakes.memory_store import MemoryStore

LOCAL = DatastoreConfig("local", path="/somewhere")


class OneStore(Services):
    def __init__(self, directory, store):
        super().__init__({"CALICO_RUN_DIR": f"{directory}/run", "CALICO_STATE_DIR": f"{directory}/state"})
        self.only = store

    def store(self, config):
        return self.only


@pytest.fixture
def owed(tmp_path):
    """Services with three recorded DELs, and the endpoints' keys in the order of the records."""
    services = OneStore(tmp_path, MemoryStore())
    intents = []
    for name in ("a", "b", "c"):
        endpoint = ("default", f"n1-cni-{name}-eth0")
        intents.append(pending.Intent("net", name, "eth0", (f"net.{name}",), endpoint, LOCAL))
        pending.record_intent(services.files, services.state_dir, intents[-1])
    intents.sort(key=lambda intent: intent.file_name)
    return services, [ResourceKey("WorkloadEndpoint", name, "default") for _, name in (i.endpoint for i in intents)]


def replay(services):
    return replay_intents(services, Deadline.after(5), wanted=lambda config: config == LOCAL)


def test_a_record_that_cannot_be_read_keeps_only_its_own(owed):
    services, keys = owed
    services.only.elsewhere(Write.put(keys[0], {"metadata": {"name": keys[0].name}, "spec": 7}))
    report = replay(services)
    assert (report.done, report.kept) == (2, 1)
    assert len(services.files.names(pending.directory(services.state_dir))) == 1


def test_a_datastore_that_is_away_is_asked_once(owed):
    services, _ = owed
    services.only.down = True
    report = replay(services)
    assert (report.done, report.kept) == (0, 1)
    services.only.down = False
    assert replay(services).done == 3
