"""When a relay that cannot follow the API server says so."""

from __future__ import annotations

from pathlib import Path

from cni_calico.datastore.kubernetes.relayed.served import SERVED_IN
from cni_calico.model.access import API_GROUP
from cni_calico.relay.cut_off import CutOff
from cni_calico.relay.run import RelayProcess
from tests.e2e.kubernetes.cluster import free_port
from tests.e2e.relays import make_certificates

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_trouble_counts_after_a_while_and_its_end_at_once() -> None:
    clock = Clock()
    cut_off = CutOff(30.0, clock=clock)
    cut_off.tell(NODES, "refused")
    clock.now = 20.0
    cut_off.tell(NODES, "no route")  # the same trouble
    cut_off.tell(PODS, "refused")
    assert cut_off.why() == ""
    assert cut_off.troubles == {NODES: "no route", PODS: "refused"}
    clock.now = 30.0
    assert cut_off.lasting() == {NODES: "no route"}
    assert cut_off.why() == "cut off from the API server: cannot follow /api/v1/nodes for 30 s: no route"
    clock.now = 50.0
    assert "cannot follow /api/v1/nodes and 1 more for 30 s" in cut_off.why()
    cut_off.tell(NODES, "")
    cut_off.tell(PODS, "")
    assert cut_off.why() == ""
    cut_off.tell(NODES, "refused")
    assert cut_off.why() == ""


def test_a_relay_that_is_cut_off_is_not_ready(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    process = RelayProcess(
        {
            "K8S_API_ENDPOINT": "http://127.0.0.1:1",
            "CALICO_API_GROUP": API_GROUP,
            "TYPHA_SERVERHOST": "127.0.0.1",
            "TYPHA_SERVERPORT": str(free_port()),
            "TYPHA_SERVERCERTFILE": str(tmp_path / "server.crt"),
            "TYPHA_SERVERKEYFILE": str(tmp_path / "server.key"),
        }
    )
    process.relay.cut_off = CutOff(0.0)
    ready = process._health_pages()["/readiness"]
    assert ready()[0] == 503
    for path in SERVED_IN[API_GROUP]:
        process.relay.cache.begin_list(path).finish(100)
    assert ready()[0] == 200
    process.relay.cut_off.tell(NODES, "refused")
    status, _, body = ready()
    assert (status, b"cannot follow /api/v1/nodes" in body) == (503, True)
    process.relay.cut_off.tell(NODES, "")
    assert ready()[0] == 200
    process.relay.server.connections.close()
    process.api.close()
