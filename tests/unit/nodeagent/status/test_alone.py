"""The status of BIRD's part where it runs without the agent."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cni_calico.nodeagent.status.alone import tell_alone
from cni_calico.nodeagent.status.file import CONFD_NAME, read_status
from tests.deadlines import until
from tests.fakes.notes import Notes


@pytest.mark.parametrize("is_writable", [True, False])
def test_it_is_there_while_the_part_runs(tmp_path: Path, is_writable: bool) -> None:
    run_dir, log = tmp_path / "run", Notes()
    if is_writable:
        run_dir.mkdir()
    facts: dict[str, Any] = {"environment": ["not of BIRD"], "bgp_unmet": ["not configured yet"]}
    stopping = threading.Event()
    thread = threading.Thread(target=tell_alone, args=(str(run_dir), facts, log, stopping))
    thread.start()
    try:
        if not is_writable:
            until(lambda: "cannot write the status of BIRD's part" in str(log.said), "it says so")
            run_dir.mkdir()
        until(lambda: read_status(str(run_dir)) == {"bgp_unmet": ["not configured yet"]}, "what it knows")
        facts["bgp"] = "BIRD is gone"
        until(lambda: read_status(str(run_dir)).get("bgp") == "BIRD is gone", "what has changed")
    finally:
        stopping.set()
        thread.join()
    assert not (run_dir / CONFD_NAME).exists() and read_status(str(run_dir)) == {}
