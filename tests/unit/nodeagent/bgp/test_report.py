"""CalicoNodeStatus: what stands in it, and when it is filled."""

import pytest

from cni_calico.errors import DatastoreUnavailable
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.bgp.bird.routes import BirdRoute
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, PeerStatus
from cni_calico.nodeagent.bgp.report import parse_period_s, render_report
from cni_calico.nodeagent.bgp.reporter import Reporter
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from tests.fakes.memory_store import MemoryStore
from tests.fakes.notes import Notes
from tests.netns.agents import key_of

NOW = "2026-11-21T04:00:00Z"
PEERS = (
    PeerStatus("Mesh_10_0_0_2", "Established", "2026-11-21T00:51:51+0000", address="10.0.0.2"),
    PeerStatus("Global_10_0_0_9", "Active", "03:00", address="10.0.0.9"),
    PeerStatus("Node_fd00__9", "Down", "03:00", address="fd00::9"),
)
BIRD = BirdStatus("2.0.12", "10.0.0.1", True, False, "2026-11-21 03:49:19.724", "2026-11-21 03:49:20.000", PEERS)
ROUTES = (
    BirdRoute("0.0.0.0/0", "unicast", "kernel1", True, "", "10.0.0.254", "eth0"),
    BirdRoute("10.65.1.0/26", "blackhole", "static1", True),
    BirdRoute("10.65.2.0/26", "unicast", "Mesh_10_0_0_2", True, "10.0.0.2", "10.0.0.2", "tunl0"),
    BirdRoute("10.65.2.0/26", "unicast", "Global_10_0_0_9", False, "", "10.0.0.9", "eth0"),
    BirdRoute("fd00::/64", "unicast", "direct1", True, "", "", "eth0"),
)


def test_the_daemon():
    daemon = {
        "state": "Ready",
        "version": "2.0.12",
        "routerID": "10.0.0.1",
        "lastBootTime": "2026-11-21 03:49:19.724",
        "lastReconfigurationTime": "2026-11-21 03:49:20.000",
    }
    report = render_report({"classes": ["Agent"]}, BIRD, ROUTES, NOW)
    assert report == {"lastUpdated": NOW, "agent": {"birdV4": daemon, "birdV6": daemon}}
    silent = render_report({"classes": ["Agent", "BGP"]}, None, (), NOW)
    assert silent["agent"]["birdV4"] == {"state": "NotReady"} and silent["bgp"]["peersV4"] == []


def test_the_sessions():
    bgp = render_report({"classes": ["BGP"]}, BIRD, (), NOW)["bgp"]
    assert (bgp["numberEstablishedV4"], bgp["numberNotEstablishedV4"]) == (1, 1)
    assert (bgp["numberEstablishedV6"], bgp["numberNotEstablishedV6"]) == (0, 1)
    assert bgp["peersV4"] == [
        {"peerIP": "10.0.0.2", "type": "NodeMesh", "state": "Established", "since": "2026-11-21T00:51:51+0000"},
        {"peerIP": "10.0.0.9", "type": "GlobalPeer", "state": "Active", "since": "03:00"},
    ]
    assert bgp["peersV6"] == [{"peerIP": "fd00::9", "type": "NodePeer", "state": "Idle", "since": "03:00"}]


def test_the_routes():
    routes = render_report({"classes": ["Routes"]}, BIRD, ROUTES, NOW)["routes"]
    assert [route["learnedFrom"] for route in routes["routesV4"]] == [
        {"sourceType": "Kernel"},
        {"sourceType": "Static"},
        {"sourceType": "NodeMesh", "peerIP": "10.0.0.2"},
        {"sourceType": "BGPPeer", "peerIP": "10.0.0.9"},
    ]
    assert [(r["type"], r["gateway"], r["interface"]) for r in routes["routesV4"][1:]] == [
        ("FIB", "blackhole", ""),
        ("FIB", "10.0.0.2", "tunl0"),
        ("RIB", "10.0.0.9", "eth0"),
    ]
    assert routes["routesV6"] == [
        {
            "type": "FIB",
            "destination": "fd00::/64",
            "gateway": "N/A",
            "interface": "eth0",
            "learnedFrom": {"sourceType": "Direct"},
        }
    ]


@pytest.mark.parametrize(
    ("spec", "period_s"),
    [
        ({}, 10),
        ({"updatePeriodSeconds": 3}, 3),
        ({"updatePeriodSeconds": 0}, 0),
        ({"updatePeriodSeconds": -1}, 0),
        ({"updatePeriodSeconds": "soon"}, 0),
        ({"updatePeriodSeconds": True}, 0),
    ],
)
def test_the_period(spec, period_s):
    assert parse_period_s(spec) == period_s


def stored(store, record):
    from cni_calico.deadline import Deadline

    return store.get(key_of(record), Deadline.after(1)).value


def test_each_is_filled_in_its_own_period(tmp_path):
    from cni_calico.datastore.interface import Write
    from cni_calico.deadline import Deadline
    from cni_calico.model.documents.codec import encode

    store, now = MemoryStore(), [100.0]
    context = Context(parse_settings({"CALICO_RUN_DIR": str(tmp_path)}), store, Notes(), lambda _: True)
    reporter = Reporter(context, "n1", clock=lambda: now[0], stamp=lambda: str(now[0]))
    specs = {
        "often": {"node": "n1", "classes": ["Agent"], "updatePeriodSeconds": 1},
        "seldom": {"node": "n1", "classes": ["BGP"]},
        "never": {"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": 0},
        "other": {"node": "n2", "classes": ["Agent"]},
        "odd": {"node": "n1", "classes": "BGP"},
    }
    records = {name: Resource("CalicoNodeStatus", Metadata(name), spec) for name, spec in specs.items()}
    for record in records.values():
        store.commit((Write.put(key_of(record), encode(record)),), Deadline.after(1))

    def filled():
        reporter._look({key_of(record): record for record in records.values()})
        found = {name: stored(store, record).get("status") for name, record in records.items()}
        return {name: status["lastUpdated"] for name, status in found.items() if status}

    assert filled() == {"often": "100.0", "seldom": "100.0", "odd": "100.0"}
    now[0] += 5
    assert filled() == {"often": "105.0", "seldom": "100.0", "odd": "100.0"}
    now[0] += 6
    assert filled() == {"often": "111.0", "seldom": "111.0", "odd": "111.0"}
    assert stored(store, records["often"])["status"]["agent"]["birdV4"] == {"state": "NotReady"}


def test_a_datastore_that_fails_is_told_once(tmp_path, monkeypatch):
    store, now = MemoryStore(), [0.0]
    notes = Notes()
    context = Context(parse_settings({"CALICO_RUN_DIR": str(tmp_path)}), store, notes, lambda _: True)
    reporter = Reporter(context, "n1", clock=lambda: now[0])

    def fail(*_):
        raise DatastoreUnavailable("cannot reach it")

    monkeypatch.setattr(store, "get", fail)
    record = Resource("CalicoNodeStatus", Metadata("s"), {"node": "n1", "classes": []})
    for _ in range(3):
        now[0] += 20
        reporter._look({key_of(record): record})
    assert len(notes.said) == 1 and "cannot reach it" in notes.said[0]
