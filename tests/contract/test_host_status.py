"""A host's status on a real etcd, read through its own gateway: what a script that watches the hosts sees."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from cni_calico import faults
from cni_calico.datastore.etcd.host_status import HostStatusKeys
from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, OutcomeUnknown
from cni_calico.log import SILENT
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.keepers.host_status import make_host_status
from tests.contract.etcd_process import single
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore

pytestmark = pytest.mark.etcd
AT = "/calico/felix/v2/no-region/host/n1"


@pytest.fixture
def url() -> Iterator[str]:
    with single() as etcd:
        yield etcd.urls[0]


def granted_s(url: str, lease: int) -> int:
    """How long the lease lasts unless it is renewed."""
    ask = json.dumps({"ID": str(lease)}).encode()
    with urllib.request.urlopen(f"{url}/v3/lease/timetolive", ask, timeout=10) as answer:
        return int(json.loads(answer.read())["grantedTTL"])


def stored(url: str) -> dict[str, tuple[dict[str, object], int]]:
    """By name: (value, lease)."""
    prefix = b"/calico/felix/v2/"
    ask = {"key": base64.b64encode(prefix).decode(), "range_end": base64.b64encode(prefix[:-1] + b"0").decode()}
    with urllib.request.urlopen(f"{url}/v3/kv/range", json.dumps(ask).encode(), timeout=10) as answer:
        kvs = json.loads(answer.read()).get("kvs", ())
    found = {}
    for kv in kvs:
        name = base64.b64decode(kv["key"]).decode()
        found[name] = (json.loads(base64.b64decode(kv["value"])), int(kv.get("lease", 0)))
    return found


def test_it_is_written_renewed_and_goes(url: str) -> None:
    now = [100.0]
    store = EtcdStore(EtcdConfig(endpoints=(url,)))
    made = make_host_status(Context(parse_settings({}), store, SILENT, lambda _: True), "n1")
    assert made is not None
    made._clock, made._started = lambda: now[0], 100.0
    made.write()
    assert stored(url) == {}  # no parameters yet
    felix = replace(FelixSettings(), reporting_interval_s=0.5, reporting_ttl_s=1.0)
    made.use(felix)
    made.write()
    first = stored(url)
    status, lease = first[f"{AT}/status"]
    assert lease and set(status) == {"time", "uptime", "first_update"}
    assert status["uptime"] == 0.0 and status["first_update"] is True
    assert datetime.fromisoformat(str(status["time"]).replace("Z", "+00:00")).tzinfo is not None
    assert first[f"{AT}/last_reported_status"] == (status, 0)
    now[0] = 107.5
    made.write()
    again, same = stored(url)[f"{AT}/status"]
    assert (again["uptime"], again["first_update"], same) == (7.5, False, lease)
    until(lambda: f"{AT}/status" not in stored(url), "the lease is over", 30)
    assert stored(url)[f"{AT}/last_reported_status"][0] == again
    made.write()  # the lease that is over is replaced
    assert stored(url)[f"{AT}/status"][1] not in (0, lease)
    made.use(replace(felix, reporting_interval_s=0.0))
    until(lambda: f"{AT}/status" not in stored(url), "it is switched off", 30)
    made.write()
    assert f"{AT}/status" not in stored(url)
    store.close()


@pytest.mark.parametrize(("environ", "lasts_s"), [({}, 90), ({"FELIX_REPORTINGTTLSECS": "120"}, 120)])
def test_how_long_it_lasts(url: str, environ: dict[str, str], lasts_s: int) -> None:
    store = EtcdStore(EtcdConfig(endpoints=(url,)))
    made = make_host_status(Context(parse_settings({}), store, SILENT, lambda _: True), "n1")
    assert made is not None
    made.use(parse_felix(environ).settings)
    made.write()
    _, lease = stored(url)[f"{AT}/status"]
    assert granted_s(url, lease) == lasts_s
    store.close()


def test_what_start_up_stores_switches_it_off() -> None:
    assert parse_felix({}).settings.reporting_interval_s == 30.0
    assert parse_felix({}, None, {"reportingInterval": "0s"}).settings.reporting_interval_s == 0.0


def test_other_datastores_have_none() -> None:
    assert make_host_status(Context(parse_settings({}), MemoryStore(), SILENT, lambda _: True), "n1") is None


@pytest.mark.parametrize(("when", "error"), [("before", DatastoreUnavailable), ("after", OutcomeUnknown)])
def test_a_write_that_fails_or_whose_answer_is_lost(url: str, when: str, error: type[Exception]) -> None:
    store = EtcdStore(EtcdConfig(endpoints=(url,)))
    keys = HostStatusKeys(store, "n1")
    faults.install(faults.FaultPlan(f"etcd.host-status:{when}:1:fail"))
    try:
        with pytest.raises(error):
            keys.write(b"{}", 5, Deadline.after(10))
    finally:
        faults.install(None)
    assert (f"{AT}/status" in stored(url)) is (when == "after")
    keys.write(b"{}", 5, Deadline.after(10))
    assert f"{AT}/status" in stored(url)
    store.close()
