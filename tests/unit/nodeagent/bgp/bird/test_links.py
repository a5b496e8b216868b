"""bird6.ctl and bird6.cfg lead to the one BIRD."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from cni_calico.log import SILENT
from cni_calico.nodeagent.bgp.bird.links import ensure_links


def test_both_names_lead_to_the_one_bird(tmp_path: Path) -> None:
    run, config = tmp_path / "run", tmp_path / "config"
    run.mkdir()
    with socket.socket(socket.AF_UNIX) as upstreams:
        upstreams.bind(f"{run}/bird6.ctl")
    (run / "bird.ctl").write_text("socket")
    for _ in range(2):
        ensure_links(str(run), str(config), SILENT)
    assert (run / "bird6.ctl").read_text() == "socket" and os.readlink(config / "bird6.cfg") == "bird.cfg"


def test_a_failure_costs_only_the_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ensure_links(str(tmp_path / "file"), str(tmp_path / "config"), SILENT)
    assert os.path.islink(tmp_path / "config" / "bird6.cfg")
