"""Names of ends: as the agent says now, kept by number, and what is made of files that cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.flows import names as names_module
from cni_calico.flows.deciders import Decider, parse_line, render_line
from cni_calico.flows.labels import LabelsSince
from cni_calico.flows.names import (
    ENDS,
    NAMES,
    SUMS_KEPT_S,
    AddressedEnd,
    Deciders,
    EndName,
    EndsHere,
    Names,
    parse_ends,
    parse_name,
    render_ends,
)
from tests.full_disk import largest_file

NOW = 2_000_000_000
WEB, DB = EndName("pod", "shop", "web"), EndName("pod", "shop", "db")
A, B = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))


def test_a_name_stays_whoever_has_the_address_later(tmp_path: Path) -> None:
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(WEB, [A])]))
    names = Names(str(tmp_path / "flows"), str(tmp_path))
    first = names.number_of(A)
    assert names.node == "n1" and names.get(first) == WEB and names.number_of(B) == 0
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(DB, [A, B])]))
    names.look()
    second = names.number_of(A)
    assert second != first and names.number_of(B) == second and names.get(first) == WEB
    again = Names(str(tmp_path / "flows"), str(tmp_path))
    assert again.get(first) == WEB and again.number_of(A) == second and not again.trouble
    (tmp_path / ENDS).write_text("{")
    again.look()
    assert again.number_of(A) == second


def test_who_has_an_address_elsewhere_is_asked_again_when_that_may_have_changed(tmp_path: Path) -> None:
    there: dict[bytes, EndName] = {}
    names = Names(str(tmp_path / "flows"), str(tmp_path), elsewhere=there.get)
    assert names.number_of(A) == 0
    for name in (WEB, DB):
        there[A] = name
        names.look_elsewhere_again()
        assert names.get(names.number_of(A)) == name


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"ends": 3, "node": ""}',
        b'{"node": "", "ends": [[1, 2]]}',
        b'{"node": "", "ends": [], "limits": [1, 2, 3]}',
    ],
)
def test_another_file_is_not_the_agents(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_ends(data)


def test_names_are_texts() -> None:
    """JSON has half surrogate pairs; neither a database nor a terminal takes them."""
    odd, even = EndName("pod", "a", "x\ud800"), EndName("pod", "a", "x?")
    data = render_ends("n1", [AddressedEnd(odd, [A], {"a": "b\ud800"})])
    assert parse_ends(data) == EndsHere("n1", {A: even}, {even: {"a": "b?"}}, SUMS_KEPT_S)
    assert parse_name('[1, "pod", "a", "x\\ud800"]') == (1, even)


@pytest.mark.parametrize("line", ["", "1", '["1", "a", "b", "c"]', "[1, 2, 3, 4]", '[1, "a", "b"]'])
def test_another_line_is_no_name(line: str) -> None:
    assert parse_name(line) is None


def test_names_that_cannot_be_kept_are_told(tmp_path: Path) -> None:
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(WEB, [A])]))
    (tmp_path / "flows").write_text("a file")
    names = Names(str(tmp_path / "flows"), str(tmp_path))
    assert names.get(names.number_of(A)) == WEB and str(tmp_path) in names.trouble


def test_numbers_that_the_agent_adds_are_found(tmp_path: Path) -> None:
    decider = Decider("NetworkPolicy", "a", "p", "default", True, 0, "Allow")
    deciders = Deciders(str(tmp_path))
    assert deciders.get(300) is None
    (tmp_path / "numbers").write_text(render_line(300, decider) + "torn")
    assert deciders.get(300) == decider and deciders.get(301) is None and deciders.get(3) is None


def test_numbers_are_those_of_the_file_that_is_there_now(tmp_path: Path) -> None:
    """The agent has shortened it; where it cannot be read what was known stays."""
    decider = Decider("NetworkPolicy", "a", "p", "default", True, 0, "Allow")
    deciders, path = Deciders(str(tmp_path)), tmp_path / "numbers"
    path.write_text(render_line(300, decider) + render_line(301, decider))
    assert deciders.get(300) == deciders.get(301) == decider
    path.unlink()
    path.mkdir()
    assert deciders.get(302) is None and deciders.get(300) == decider
    path.rmdir()
    path.write_text(render_line(301, decider) + render_line(303, decider))
    assert deciders.get(303) == decider and deciders.get(300) is None and deciders.get(301) == decider


def test_only_what_the_agent_adds_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In whole lines, whatever the agent is about to write, and from the beginning when it is another file."""
    parsed: list[str] = []
    monkeypatch.setattr(names_module, "parse_line", lambda line: parsed.append(line) or parse_line(line))
    decider = Decider("NetworkPolicy", "a", "p", "default", True, 0, "Allow")
    lines = [render_line(300 + i, replace(decider, index=i)) for i in range(4)]
    deciders, path = Deciders(str(tmp_path)), tmp_path / "numbers"
    path.write_text(lines[0] + lines[1][:-5])
    assert deciders.get(301) is None and deciders.get(300) is not None and len(parsed) == 1
    with path.open("a") as file:
        file.write(lines[1][-5:] + lines[2])
    assert deciders.get(301) is not None and deciders.get(302) is not None and len(parsed) == 3
    assert deciders.get(303) is None and len(parsed) == 3
    path.write_text(lines[2])  # shorter: from the beginning
    assert deciders.get(303) is None and deciders.get(302) is not None and deciders.get(300) is None
    (tmp_path / "new").write_text(lines[3] + lines[0] + lines[1])
    (tmp_path / "new").rename(path)
    assert deciders.get(300) is not None and deciders.get(303) is not None and deciders.get(302) is None


def names_of(root: Path, *ends: EndName, at: int = NOW) -> tuple[Names, list[int]]:
    """Of a recorder that starts, and the numbers of these ends, each with an address of its own."""
    addressed = [AddressedEnd(end, [bytes((10, 0, 1, i))]) for i, end in enumerate(ends)]
    (root / ENDS).write_bytes(render_ends("n1", addressed))
    names = Names(str(root), str(root), lambda: at)
    return names, [names.number_of(address) for _, (address,), _ in addressed]


def pod(index: int) -> EndName:
    return EndName("pod", "shop", f"p{index}")


def test_a_number_that_a_crash_took_from_the_file_is_no_other_name(tmp_path: Path) -> None:
    """Records may have it: they are in another file, which the crash spared."""
    _, given = names_of(tmp_path, *map(pod, range(100)))
    path = tmp_path / NAMES
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:50])[:-5])
    names, again = names_of(tmp_path, pod(0), *map(pod, range(100, 200)), at=NOW + 10)
    assert again[0] == given[0] and not set(again[1:]) & set(given)
    assert names.get(given[0]) == pod(0) and names.get(given[49]) is None
    lines = [parse_name(line) for line in path.read_text().splitlines()]
    assert None not in lines and len(lines) == 49 + 100


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_without_its_file_numbers_go_on_from_the_clock(tmp_path: Path, spoil: Callable[[Path], object]) -> None:
    _, given = names_of(tmp_path, pod(0), pod(1))
    spoil(tmp_path / NAMES)
    _, again = names_of(tmp_path, pod(2), pod(3), at=NOW + 10)
    assert not set(again) & set(given)


def test_a_file_that_cannot_be_read_gives_no_number_again(tmp_path: Path) -> None:
    _, given = names_of(tmp_path, *map(pod, range(30)))
    (tmp_path / NAMES).rename(tmp_path / "elsewhere")
    (tmp_path / NAMES).symlink_to("elsewhere")
    names, again = names_of(tmp_path, *map(pod, range(50, 60)), at=NOW + 10)
    assert names.trouble and not set(again) & set(given)


def test_names_that_could_not_be_written_are_written_later(tmp_path: Path) -> None:
    names, _ = names_of(tmp_path)
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(pod(0), [A]), AddressedEnd(pod(1), [B])]))
    names.look()
    with largest_file(20):
        given = [names.number_of(A), names.number_of(B)]
    assert "cannot write" in names.trouble and not (tmp_path / NAMES).read_bytes()
    (tmp_path / ENDS).write_bytes(render_ends("n2", []))
    names.look()
    assert not names.trouble
    assert names_of(tmp_path, pod(1), pod(0))[1] == given[::-1]


def test_the_file_of_names_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "_MOST", 20)
    monkeypatch.setattr(names_module, "_KEPT", 10)
    names, given = names_of(tmp_path, pod(0), *map(pod, range(1, 50)))
    assert len((tmp_path / NAMES).read_text().splitlines()) == 50, "all are ends now"
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(pod(0), [A]), AddressedEnd(pod(60), [B])]))
    names.look()
    last = names.number_of(B)
    kept = [parse_name(line) for line in (tmp_path / NAMES).read_text().splitlines()]
    assert kept == [(given[0], pod(0)), *((given[i], pod(i)) for i in range(40, 50)), (last, pod(60))]
    assert names.number_of(A) == given[0] and names.get(given[1]) is None


def test_labels_of_ends_that_are_or_were_here(tmp_path: Path) -> None:
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(WEB, [A], {"app": "web"})]))
    names = Names(str(tmp_path / "flows"), str(tmp_path))
    first = names.labels_of(WEB)
    assert [one.labels for one in first] == [{"app": "web"}] and not names.labels_of(DB)
    (tmp_path / ENDS).write_bytes(render_ends("n1", [AddressedEnd(DB, [A], {"app": "db", "tier": "1"})]))
    names.look()
    assert names.labels_of(WEB) == first
    assert [one.labels for one in names.labels_of(DB)] == [{"app": "db", "tier": "1"}]


def test_since_when_an_end_has_its_labels(tmp_path: Path) -> None:
    now = [100.0]

    def told(labels: dict[str, str], other: str) -> list[LabelsSince]:
        now[0] += 1
        ends = AddressedEnd(WEB, [A], labels), AddressedEnd(DB, [B], {"app": other})
        (tmp_path / ENDS).write_bytes(render_ends("n1", ends))
        names.look()
        return [*names.labels_of(WEB)]

    names = Names(str(tmp_path / "flows"), str(tmp_path), lambda: now[0])
    first = (101_000_000, {"app": "web"})
    assert told({"app": "web"}, "1") == [first]
    assert told({"app": "web"}, "2") == [first], "nothing of it has changed"
    assert told({"app": "db"}, "2") == [first, (103_000_000, {"app": "db"})]
    for i in range(9):
        assert len(told({"app": str(i)}, "2")) <= 4
