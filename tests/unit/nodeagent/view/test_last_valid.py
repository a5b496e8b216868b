"""The file of last valid versions: what is in it, and that a damaged one is never trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from cni_calico import faults
from cni_calico.kernel.files import WRITE, Files
from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.view import last_valid
from cni_calico.nodeagent.view.last_valid import FILE, LastValid, parse_versions, render_versions
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.preserved import BadPreserved
from cni_calico.policy.records import TierRecord
from tests.unit.policy.test_preserved import valid

KEY, POLICY = valid("GlobalNetworkPolicy")
TIER = ResourceKey("Tier", "t")


def keep(
    versions: Mapping[ResourceKey, GraphRecord | None], directory: Path, made: LastValid | None = None
) -> LastValid:
    made = made or LastValid(Files(), SILENT, str(directory))
    made.keep(versions, lambda key: versions[key])
    return made


def test_a_later_run_gets_it_once(tmp_path: Path) -> None:
    keep({KEY: POLICY, TIER: None}, tmp_path)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    later = LastValid(Files(), SILENT, str(tmp_path))
    assert later.pop(TIER) is None
    assert later.pop(KEY) == POLICY and later.pop(KEY) is None


def test_what_is_valid_again_is_forgotten(tmp_path: Path) -> None:
    made = keep({KEY: POLICY}, tmp_path)
    later = LastValid(Files(), SILENT, str(tmp_path))
    assert later.pop(TIER) is None
    later.drop(KEY)
    assert later.pop(KEY) is None
    keep({}, tmp_path, made)
    assert not (tmp_path / FILE).exists()


def test_an_old_file_goes_with_the_first_round(tmp_path: Path) -> None:
    keep({KEY: POLICY}, tmp_path)
    keep({}, tmp_path)
    assert not (tmp_path / FILE).exists()


def test_nothing_is_written_twice(tmp_path: Path) -> None:
    made = keep({KEY: POLICY}, tmp_path)
    before = (tmp_path / FILE).stat()
    keep({KEY: POLICY}, tmp_path, made)
    assert (tmp_path / FILE).stat() == before
    keep({KEY: valid("NetworkPolicy")[1]}, tmp_path, made)  # a newer valid version of the same record
    assert (tmp_path / FILE).stat() != before


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"format": 2}', "cut", "changed", "digest"])
def test_a_damaged_file_is_never_trusted(tmp_path: Path, damage: str) -> None:
    keep({KEY: POLICY, TIER: TierRecord("t")}, tmp_path)
    file = tmp_path / FILE
    text = file.read_text()
    document = json.loads(text)
    changed = {
        "cut": text[: len(text) // 2],
        "changed": text.replace('"Allow"', '"Deny"').replace("Deny", "Allow"),
        "digest": json.dumps({**document, "digest": "00"}),
    }
    file.write_text(changed.get(damage, damage))
    assert file.read_text() != text
    later = LastValid(Files(), SILENT, str(tmp_path))
    assert later.pop(KEY) is None and later.pop(TIER) is None
    assert "cannot be used" in later.troubles[0] and str(file) in later.troubles[0]
    keep({KEY: POLICY}, tmp_path, later)
    assert LastValid(Files(), SILENT, str(tmp_path)).pop(KEY) == POLICY
    assert later.troubles  # said as long as the agent runs


def test_a_full_disk_is_said_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_hook", faults.FaultPlan(f"{WRITE}:before:1:fail"))
    made = keep({KEY: POLICY}, tmp_path)
    assert "cannot write" in made.troubles[0] and not (tmp_path / FILE).exists()
    keep({KEY: POLICY}, tmp_path, made)
    assert not made.troubles and LastValid(Files(), SILENT, str(tmp_path)).pop(KEY) == POLICY


def test_a_file_with_no_room_for_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Policies come before the members of their sets; what is left out is named."""
    network_set, members = valid("NetworkSet")
    records: dict[ResourceKey, GraphRecord] = {network_set: members, KEY: POLICY, TIER: TierRecord("t")}
    room = len(render_versions({key: one for key, one in records.items() if key.kind != "NetworkSet"})[0]) - 50
    monkeypatch.setattr(last_valid, "_LIMIT", room)
    made = keep(records, tmp_path)
    assert set(parse_versions((tmp_path / FILE).read_bytes())) == {KEY, TIER}
    assert "NetworkSet p" in made.troubles[0]


def test_a_file_of_another_version() -> None:
    content = json.loads(render_versions({KEY: POLICY})[0])
    with pytest.raises(BadPreserved, match="another version"):
        parse_versions(json.dumps({**content, "format": 9}).encode())
