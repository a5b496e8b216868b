"""``calico-node -flows N``: what it shows, and whose socket it takes."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.backoff import Backoff
from cni_calico.errors import KernelError
from cni_calico.flows.export.channels import open_local
from cni_calico.flows.export.client import CollectorClient
from cni_calico.flows.export.intervals import ExportedFlow
from cni_calico.flows.export.keys import EndType, ExportKey, FlowAction, FlowEnd, HitKind, PolicyHit, ReportingSide
from cni_calico.flows.export.listener import FlowListener, render_flow, show_flows
from cni_calico.flows.export.messages import decode_update, encode_update
from cni_calico.flows.export.wanted import SOCKET
from cni_calico.log import SILENT
from tests.deadlines import until

LAST = PolicyHit(HitKind.CALICO, "shop", "db", "default", None, 0)
HIT = PolicyHit(HitKind.END_OF_TIER, "", "", "default", FlowAction.DENY, -1, LAST)
FLOW = ExportedFlow(
    ExportKey(
        FlowEnd(EndType.WORKLOAD, "shop", "web-*"),
        FlowEnd(EndType.NETWORK, "-", "pub"),
        443,
        "tcp",
        ReportingSide.SOURCE,
        FlowAction.DENY,
        (HIT,),
    ),
    1_700_000_000,
    (),
    (),
    1,
    2,
    30,
    40,
    5,
    6,
    7,
)


@pytest.fixture
def local_client(tmp_path: Path) -> Iterator[CollectorClient]:
    path = str(tmp_path / SOCKET)
    found = CollectorClient(path, lambda grpc: open_local(grpc, path), SILENT, pauses=Backoff(0.02, 0.05))
    thread = threading.Thread(target=found.run)
    thread.start()
    yield found
    found.stop()
    thread.join(20)


def test_so_many_flows_are_shown(local_client: CollectorClient, tmp_path: Path) -> None:
    shown: list[str] = []
    local_client.offer([FLOW._replace(time=time) for time in range(5)])
    assert show_flows({"CALICO_RUN_DIR": str(tmp_path)}, 3, lambda: False, shown.append) == 0
    assert len(shown) == 3
    assert not (tmp_path / SOCKET).exists()


def test_only_its_owner_may_use_the_socket_while_it_is_there(tmp_path: Path) -> None:
    path = tmp_path / SOCKET
    with FlowListener(str(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(KernelError, match="somebody listens there already"), FlowListener(str(path)):
            pass
        assert path.exists()
    assert not path.exists()


def test_a_deserted_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / SOCKET
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with FlowListener(str(path)):
        assert path.exists()


def test_another_file_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / SOCKET
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(KernelError, match="cannot listen"), FlowListener(str(path)):
        pass
    assert path.read_text() == "mine"


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    stopping = threading.Event()
    codes: list[int] = []
    environ = {"CALICO_RUN_DIR": str(tmp_path)}
    thread = threading.Thread(target=lambda: codes.append(show_flows(environ, -1, stopping.is_set, lambda text: None)))
    thread.start()
    until((tmp_path / SOCKET).exists, "it listens")
    stopping.set()
    thread.join(20)
    assert codes == [0]


def test_a_flow_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", "UTC")
    lines = render_flow(decode_update(encode_update(FLOW))).splitlines()
    assert lines[0].startswith("- Time=2023-11-1") and lines[0].endswith("Reporter=Src Action=Deny")
    assert lines[1:] == [
        "  Src={wep(shop/web-*)} Dst={net(-/pub) Svc:-/-} Proto={tcp(443) Svc:-/0}",
        "  Counts={Ingress: 1Pkts/30Bytes Egress:2Pkts/40Bytes} Connections={Started:5 Completed:6 Live:7}",
        "  Enforced:",
        "  - EndOfTier tier default rule -1 Deny after CalicoNetworkPolicy shop/db tier default rule 0",
        "  Pending:",
    ]


def test_control_characters_do_not_reach_the_terminal() -> None:
    named = FLOW._replace(key=FLOW.key._replace(source=FlowEnd(EndType.WORKLOAD, "shop", "web\x1b[2J\n")))
    text = render_flow(decode_update(encode_update(named)))
    assert "web?[2J?" in text and "\x1b" not in text
