"""What the plugin reads of the policy engine's decision, and whether that one still lives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.directories import POLICY_DECISION
from cni_calico.kernel.files import Files
from cni_calico.kernel.held_file import HeldFile
from cni_calico.log import Log
from cni_calico.nodeagent.policing.report.decision import DecisionFile
from cni_calico.nodeagent.status.policing import Standing
from cni_calico.plugin.policy_decision import ENFORCED, OFF, UNDECIDED, PolicyDecision, read_decision

JSON = st.recursive(st.none() | st.text() | st.floats() | st.booleans(), lambda inner: st.lists(inner, max_size=2))


def read(directory: Path) -> PolicyDecision:
    return read_decision(Files(), f"{directory}/{POLICY_DECISION}")


@pytest.mark.parametrize(
    ("standing", "prefix", "state", "directory", "is_due"),
    [
        (Standing(), "/run/x/", UNDECIDED, "/run/x/endpoint-status", True),
        (Standing(in_force=True, ready=True), "/run/x", ENFORCED, "/run/x/endpoint-status", True),
        (Standing(ready=True), "/run/x", OFF, "/run/x/endpoint-status", False),
        (Standing(in_force=True, ready=True), "", ENFORCED, "", False),  # nobody would ever write the file
    ],
)
def test_it_is_read_as_it_was_told(
    tmp_path: Path, standing: Standing, prefix: str, state: str, directory: str, is_due: bool
) -> None:
    file = DecisionFile(str(tmp_path / "run"), Log("info", stderr=False))
    assert read(tmp_path / "run") == PolicyDecision() and PolicyDecision().is_due
    for _ in range(2):
        file.tell(standing, prefix)
        assert read(tmp_path / "run") == PolicyDecision(state, directory, lives=True)
        assert read(tmp_path / "run").is_due is is_due
    file._file.remove()
    assert read(tmp_path / "run") == PolicyDecision()


def test_a_decision_is_replaced_and_its_writers_end_is_seen(tmp_path: Path) -> None:
    path = tmp_path / POLICY_DECISION
    held = HeldFile(str(path))
    for state in (UNDECIDED, ENFORCED, OFF):
        held.write(PolicyDecision(state, "/d").render())
        assert read(tmp_path) == PolicyDecision(state, "/d", lives=True)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)  # as it is when the writer has ended
    assert read(tmp_path) == PolicyDecision(OFF, "/d") and not read(tmp_path).is_due


@given(
    st.binary(max_size=40)
    | JSON.map(lambda value: json.dumps(value).encode())
    | st.tuples(JSON, JSON).map(lambda both: json.dumps({"state": both[0], "endpointStatus": both[1]}).encode())
)
def test_what_cannot_be_read_is_undecided(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("decision")
    (directory / POLICY_DECISION).write_bytes(content)
    found = read(directory)
    assert found.state == UNDECIDED and found.is_due and not found.lives and isinstance(found.directory, str)
