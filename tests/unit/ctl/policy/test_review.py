"""The page for a reviewer: everything that differs is on it, and no text of a record is more than text."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.ctl.policy.review import MARK, MOST_ROWS, Review, ReviewRow, ReviewSection, render_review
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, flow, policy, write, write_flows

HOSTILE = "<script>alert(1)</script>&\u202e"
ROW = ReviewRow(HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE, True)


@pytest.fixture
def changed(tmp_path: Path) -> list[str]:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    write(tmp_path / "old" / "all.yaml", *POLICIES.values())
    write(tmp_path / "new" / "all.yaml", policy("database", "app == 'db'", [("app == 'cache'", [5432])]))
    return ["--dir", f"{tmp_path}/old", "--with", f"{tmp_path}/new", "--endpoints", endpoints_file(tmp_path)]


def test_a_page_of_a_difference(changed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    assert run(["policy", "diff", *changed, "--html", str(page)], {}) == 1
    assert f"Wrote {page}: open it" in capsys.readouterr().out
    text = page.read_text()
    denied, allowed = (text.index(f"<h2>{title}</h2>") for title in ("Newly denied", "Newly allowed"))
    assert denied < text.index("shop/app=web") < allowed < text.index("shop/app=cache")
    assert "by rule 1 of NetworkPolicy shop/database" in text and "2 workloads x 1 workload" in text
    assert page.stat().st_mode & 0o777 == 0o600
    assert run(["policy", "diff", *changed, "--html", str(page)], {}) == 1  # it may be written again


def test_a_page_of_replayed_flows(changed: list[str], tmp_path: Path) -> None:
    page, lines = tmp_path / "page.html", write_flows(tmp_path / "f.jsonl", flow("web-1", "db-0", count=7))
    assert run(["policy", "replay", *changed, "--flows", lines, "--html", str(page)], {}) == 1
    text = page.read_text()
    assert "<h2>Would be denied</h2>" in text and "7 connections, last 2026-11-26T14:02:11.403+00:00" in text


def test_nothing_else_is_replaced(changed: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.html"
    mine.write_text("<p>mine")
    for words in (["--html", str(mine)], ["--html", str(tmp_path)], ["--html", f"{tmp_path}/x.html", "-o", "json"]):
        assert run(["policy", "diff", *changed, *words], {}) == 2
        assert "cannot write" in (said := capsys.readouterr().err) or "do not go together" in said
    assert mine.read_text() == "<p>mine"


def test_texts_stay_texts() -> None:
    sections = (ReviewSection("Rows", [ROW]), ReviewSection("Said", sentences=[HOSTILE]), ReviewSection("Empty"))
    text = render_review(Review(HOSTILE, HOSTILE, sections), HOSTILE)
    assert "<script" not in text and text.count("<bdi>&lt;script&gt;") == 8 and "Empty" not in text
    assert MARK.encode() in text.encode()[:64]
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in text


@pytest.mark.parametrize("more", [0, 3])
def test_a_page_is_bounded(more: int) -> None:
    rows: list[Any] = [ROW] * (MOST_ROWS + more)
    text = render_review(Review("t", "s", (ReviewSection("Rows", rows),)), "now")
    assert text.count("<tr>") == MOST_ROWS + 1
    assert ("and 3 more; -o json has all" in text) == bool(more)
