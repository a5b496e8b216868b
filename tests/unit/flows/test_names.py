"""Names of ends: as the agent says now, kept by number, and what is made of files that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.flows.deciders import Decider, render_line
from cni_calico.flows.losses import AWAY, Loss, Losses
from cni_calico.flows.names import ENDS, Deciders, EndName, Names, parse_ends, parse_name, render_ends

WEB, DB = EndName("pod", "shop", "web"), EndName("pod", "shop", "db")
A, B = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))


def test_a_name_stays_whoever_has_the_address_later(tmp_path: Path) -> None:
    (tmp_path / ENDS).write_bytes(render_ends("n1", [(WEB, [A])]))
    names = Names(str(tmp_path / "flows"), str(tmp_path))
    first = names.number_of(A)
    assert names.node == "n1" and names.get(first) == WEB and names.number_of(B) == 0
    (tmp_path / ENDS).write_bytes(render_ends("n1", [(DB, [A, B])]))
    names.look()
    second = names.number_of(A)
    assert second != first and names.number_of(B) == second and names.get(first) == WEB
    again = Names(str(tmp_path / "flows"), str(tmp_path))
    assert again.get(first) == WEB and again.number_of(A) == second and not again.trouble
    (tmp_path / ENDS).write_text("{")
    again.look()
    assert again.number_of(A) == second


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"ends": 3, "node": ""}', b'{"node": "", "ends": [[1, 2]]}'])
def test_another_file_is_not_the_agents(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_ends(data)


@pytest.mark.parametrize("line", ["", "1", '["1", "a", "b", "c"]', "[1, 2, 3, 4]", '[1, "a", "b"]'])
def test_another_line_is_no_name(line: str) -> None:
    assert parse_name(line) is None


def test_names_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    (tmp_path / ENDS).write_bytes(render_ends("n1", [(WEB, [A])]))
    (tmp_path / "flows").write_text("a file")
    names = Names(str(tmp_path / "flows"), str(tmp_path))
    assert names.get(names.number_of(A)) == WEB and str(tmp_path) in names.trouble


def test_numbers_that_the_agent_adds_are_found(tmp_path: Path) -> None:
    decider = Decider("NetworkPolicy", "a", "p", "default", True, 0, "Allow")
    deciders = Deciders(str(tmp_path))
    assert deciders.get(300) is None
    (tmp_path / "numbers").write_text(render_line(300, decider) + "torn")
    assert deciders.get(300) == decider and deciders.get(301) is None and deciders.get(3) is None


def test_losses_are_kept(tmp_path: Path) -> None:
    loss, later = Loss(1.0, 2.0, "nflog-allowed", AWAY, None), Loss(5.0, 6.0, "nflog-denied", "rate", 7)
    losses = Losses(str(tmp_path))
    losses.add(loss)
    losses.add(later)
    with (tmp_path / "losses").open("a") as file:
        file.write("nonsense\n")
    assert Losses(str(tmp_path)).since(None) == [loss, later] and Losses(str(tmp_path)).since(3.0) == [later]
