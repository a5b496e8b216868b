"""The metrics of the flow recorder: none without one, and each as it says."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

from cni_calico.directories import FLOW_SOCKET
from cni_calico.nodeagent.status.flow_metrics import collect_flows

SAID: dict[str, Any] = {
    **{"allowed": 7, "denied": 2, "live": 3, "unfollowed": 0, "unknown": 0, "malformed": 0, "slow": 1, "readers": 1},
    **{"lost": {"nflog-allowed": 5, "destroy": 0}, "losses": [["nflog-allowed", "rate", 5]]},
    **{"cpu_seconds": 1.5, "store_bytes": 4096, "uncounted": 4, "oldest_sums": None},
    **{"disagreed": 0, "agreed": 9, "unjudged": 6, "without_room": [8, 10]},
    **{"unaccounted": 3, "denied_packets": [["NetworkPolicy", "shop/db", 12], ["other", "", 1]]},
}


def collected(root: Path, said: dict[str, Any]) -> dict[str, float]:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / FLOW_SOCKET))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(json.dumps(said).encode() + b"\n")

        thread = threading.Thread(target=answer)
        thread.start()
        found = [sample for family in collect_flows(str(root)) for sample in family.samples]
        thread.join()
    return {"".join((sample.name, *sample.labels.values())): sample.value for sample in found}


def test_what_the_recorder_says(tmp_path: Path) -> None:
    found = collected(tmp_path, {**SAID, "oldest": time.time() - 60})
    assert found["calico_flows_connections_totaldenied"] == 2
    lost = {name: value for name, value in found.items() if "lost" in name}
    names = ("nflog-allowedrate", "nflog-allowedoverrun", "destroyoverrun")
    assert lost == {f"calico_flows_lost_total{name}": 5 if name.endswith("rate") else 0 for name in names}
    assert found["felix_collector_epstats"] == found["calico_flows_live"] == 3
    assert found["calico_flows_store_bytes"] == 4096 and found["calico_flows_uncounted_total"] == 4
    assert found["calico_flows_unjudged_total"] == 6 and found["calico_flows_unaccounted_total"] == 3
    assert found["calico_flows_denied_packets_totalNetworkPolicyshop/db"] == 12
    unknown = tmp_path / "unknown"
    unknown.mkdir()
    assert "calico_flows_unaccounted_total" not in collected(unknown, {**SAID, "oldest": None, "unaccounted": None})
    assert found["calico_flows_conntrack_full_totaldropped"] == 8
    assert found["calico_flows_conntrack_full_totalforgotten"] == 10
    assert found["calico_flows_ring_seconds"] >= 60 and found["calico_flows_sums_seconds"] == 0


def test_what_is_exported_with_a_collector_only(tmp_path: Path) -> None:
    exported = {"server": "goldmane:7443", "local": False, "plain": False, "connected": True, "trouble": ""}
    counts = {"received": 11, "lost": 1, "undecided": 2, "unknown_hits": 3, "queue": 4}
    local_only = {"server": "", "local": True}
    for name, said in (("with", exported | counts), ("local", local_only), ("without", None)):
        root = tmp_path / name
        root.mkdir()
        found = collected(root, {**SAID, "disagreed": 0, "oldest": None, **({} if said is None else {"export": said})})
        of_export = {name: value for name, value in found.items() if "export" in name}
        assert of_export == (
            {
                "calico_flows_export_totalreceived": 11,
                "calico_flows_export_totallost": 1,
                "calico_flows_export_totalundecided": 2,
                "calico_flows_export_totalunknown_hits": 3,
                "calico_flows_export_queue": 4,
                "calico_flows_export_connected": 1,
            }
            if name == "with"
            else {}
        )


def test_without_a_recorder_there_are_none(tmp_path: Path) -> None:
    assert not list(collect_flows(str(tmp_path)))
