"""``calicoctl flows --html``: what is in the file, whose it is, and what it does not replace."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.flows.page import write
from cni_calico.ctl.main import run
from tests.fakes.recorder import ScriptedRecorder, address, end_of_tier, flow, pod, rule

pytestmark = pytest.mark.usefixtures("three_flows")
WEB, DB = pod("shop", "web", "10.65.0.9", 40000), pod("shop", "db-0", "10.65.0.12", 5432)


@pytest.fixture
def three_flows(recorder: ScriptedRecorder) -> None:
    recorder.flows = [
        flow(WEB, DB, rule("egress", "shop", "a", 0), rule("ingress", "shop", "b", 1)),
        flow(WEB, address("192.0.2.7", 443), end_of_tier("egress", "shop", "a")),
        flow(DB, WEB, end_of_tier("ingress", "shop", "b")),
    ]


def calicoctl(recorder: ScriptedRecorder, path: Path, *words: str) -> int:
    return run(["flows", "--html", str(path), *words], {"CALICO_RUN_DIR": str(Path(recorder.path).parent)})


def written(path: Path) -> dict[str, Any]:
    (data,) = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', path.read_text())
    found: dict[str, Any] = json.loads(data)
    return found


def test_the_newest_is_first(recorder: ScriptedRecorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorder.losses = [{"from": 0, "to": 1, "source": "nflog-denied", "why": "rate", "count": 3}]
    path = tmp_path / "flows.html"
    assert calicoctl(recorder, path) == 0
    assert capsys.readouterr().out == f"Wrote {path} with 3 flows: open it in a browser.\n"
    assert path.stat().st_mode & 0o777 == 0o600
    data = written(path)
    assert [one["destination"]["ip"] for one in data["flows"]] == ["10.65.0.9", "192.0.2.7", "10.65.0.12"]
    assert data["flows"][1]["explain"] == (
        "calicoctl policy explain --from shop/web --to 192.0.2.7 --protocol tcp --port 443"
    )
    assert not data["live"] and not data["more"] and "3 reports of what was denied" in data["said"][0]


def test_filters_and_limits(
    recorder: ScriptedRecorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flows.html"
    assert calicoctl(recorder, path, "--verdict", "denied", "--last", "1") == 0
    data = written(path)
    assert len(data["flows"]) == 1 and not data["more"] and data["filter"] == "--verdict denied --last 1"
    monkeypatch.setattr(write, "MOST", 2)
    for words in ([], ["--last", "9"], ["--aggregate"]):
        assert calicoctl(recorder, path, *words) == 0
        data = written(path)
        assert len(data["flows"]) == 2 and data["more"]
        assert "with 2 flows of more" in capsys.readouterr().out.splitlines()[-1]


def test_a_test_can_ask_for_a_file(
    recorder: ScriptedRecorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "flows.html"
    assert calicoctl(recorder, path, "--fail-if-denied") == 3
    said = capsys.readouterr()
    assert "2 flows were denied" in said.err and said.out.startswith("Wrote") and len(written(path)["flows"]) == 3
    assert calicoctl(recorder, path, "--verdict", "allowed", "--fail-if-denied") == 0


@pytest.mark.parametrize("kind", ["file", "link", "directory", "pipe"])
def test_what_is_not_ours_is_not_replaced(
    recorder: ScriptedRecorder, tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, theirs = tmp_path / "flows.html", tmp_path / "theirs"
    theirs.write_text("<!DOCTYPE html>theirs")
    match kind:
        case "file":
            theirs.rename(path)
        case "link":
            path.symlink_to(theirs)
        case "directory":
            path.mkdir()
        case _:
            os.mkfifo(path)
    before = path.lstat().st_ino
    assert calicoctl(recorder, path) == 1
    assert f"cannot write {path}" in capsys.readouterr().err and path.lstat().st_ino == before
