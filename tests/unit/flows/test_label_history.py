"""Labels as recorded: of ends that are gone or have others now, by other recorders, within the file's budget."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cni_calico.flows.aggregates import MOST_BYTES, FlowAggregates
from cni_calico.flows.deciders import Decider, render_line
from cni_calico.flows.elsewhere import ELSEWHERE, EndElsewhere, render_end
from cni_calico.flows.labels import LabelVersions, labels_at, note_labels
from cni_calico.flows.names import ENDS, AddressedEnd, EndName, render_ends
from cni_calico.flows.query import Condition, FlowQuery
from cni_calico.flows.recorder import DIRECTORY
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.sums import BUCKET_S
from cni_calico.log import SILENT
from tests.fakes.stepped_recorder import NOW, Arriving, SteppedRecorder, arriving_instead_of_the_kernel

WEB, DB = EndName("pod", "shop", "web"), EndName("pod", "shop", "db")
NAMES = {1: WEB, 2: DB}
OUT = 1000


def flow(at_s: float, source: int = 1, destination: int = 2) -> FlowRecord:
    addresses = bytes((192, 0, 2, source)), bytes((10, 0, 0, 2)), bytes((10, 0, 0, 2))
    times = int(at_s * 1e6), int(at_s * 1e6)
    return FlowRecord(*times, *addresses, 1000, 80, 80, 6, 0, 300, 301, 0, 0, 0, 0, 0, 0, 0, source, destination)


_STEPS = st.lists(
    st.tuples(st.sampled_from(("tell", "flow", "flow", "write", "restart", "gone", "later")), st.integers(0, 3)),
    max_size=30,
)


@given(_STEPS)
@example([("tell", 1), ("flow", 0), ("write", 0), ("gone", 0), ("restart", 0)])
@example([("flow", 0), ("write", 0), ("tell", 1), ("flow", 0), ("restart", 0), ("tell", 2), ("flow", 0), ("gone", 0)])
@settings(max_examples=60, deadline=None)
def test_an_end_had_the_labels_that_were_told_of_it_when_a_flow_began(steps: list[tuple[str, int]]) -> None:
    """The newest that were told before; nothing is lost when a recorder ends in an orderly way."""
    now, told = 2_000_000_000, dict[int, LabelVersions]()
    told[1] = note_labels((), {"app": "0"}, now)
    there, expected = {1}, list[tuple[int, int, str]]()
    with TemporaryDirectory() as root:

        def opened() -> FlowAggregates:
            def labels_of(name: EndName) -> LabelVersions:
                return told.get(1 if name == WEB else 2, ())

            return FlowAggregates(f"{root}/flows.db", NAMES.get, SILENT, now, labels_of=labels_of)

        aggregates = opened()
        for step, which in steps:
            now += 1
            who = 1 + which % 2
            if step == "tell":
                told[who] = note_labels(told.get(who, ()), {"app": str(which)}, now)
                there.add(who)
            elif step == "gone":
                there.discard(who)
            elif step == "flow" and who in there:
                aggregates.sums.add(flow(now, who, 3))
                expected.append((now, who, told[who][-1].labels["app"]))
            elif step == "write":
                aggregates.flush(now, force=True)
            elif step == "later":
                now += which * BUCKET_S
            elif step == "restart":
                aggregates.close(now)
                now += 1  # and whoever is there is told of anew
                told = {who: note_labels((), told[who][-1].labels, now) for who in sorted(there)}
                aggregates = opened()
        for began, who, label in expected:
            meant = labels_at(aggregates.labels_of(NAMES[who]), began * 1_000_000, began * 1_000_000)
            assert meant is not None and meant.labels == {"app": label} and not meant.changed
        aggregates.close(now)


@pytest.fixture
def arriving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Arriving:
    (tmp_path / DIRECTORY).mkdir()
    decider = Decider("Profile", "", "kns.shop", "", False, 0, "Allow")
    (tmp_path / DIRECTORY / "numbers").write_text(render_line(OUT, decider))
    return arriving_instead_of_the_kernel(monkeypatch)


@pytest.fixture
def recording(tmp_path: Path, arriving: Arriving) -> Iterator[SteppedRecorder]:
    made = SteppedRecorder(tmp_path, arriving)
    yield made
    made.recorder.close()


def tell(root: Path, **labels: dict[str, str]) -> None:
    """The agent says which pods there are: 10.0.0.1, 10.0.0.2, ..."""
    ends = [
        AddressedEnd(EndName("pod", "shop", name), [bytes((10, 0, 0, i))], its)
        for i, (name, its) in enumerate(labels.items(), 1)
    ]
    (root / "new").write_bytes(render_ends("n1", ends))
    (root / "new").rename(root / ENDS)


def connection(sport: int, source: int = 1) -> tuple[bool, bytes, int]:
    return True, bytes((10, 0, 0, source, 10, 0, 0, 2, 6)) + sport.to_bytes(2, "big") + bytes((0, 80)), OUT


def sums(recording: SteppedRecorder, *conditions: Condition) -> list[tuple[int, Any, bool]]:
    """Of each line its connections, the source's labels, and whether these changed meanwhile."""
    found = [one for one in recording.recorder.documents(FlowQuery(conditions, since=0, aggregate=True)) if one]
    lines = [(one["connections"], one["source"].get("labels"), "relabelled" in one["source"]) for one in found]
    return sorted(lines, key=str)


def restarted(recording: SteppedRecorder, *, without_ring: bool = False) -> SteppedRecorder:
    recording.recorder.close()
    if without_ring:
        (recording.root / DIRECTORY / "ring").unlink()
    now, made = recording.now, SteppedRecorder(recording.root, recording.arriving)
    made.now = now
    return made


@pytest.mark.parametrize("without_ring", [False, True])
def test_a_pod_that_is_gone_has_its_labels_for_another_recorder(recording: SteppedRecorder, without_ring: bool) -> None:
    tell(recording.root, job={"app": "job", "run": "7"}, db={"app": "db"})
    recording.step(connection(1000), after_s=1)
    tell(recording.root, other={"app": "other"}, db={"app": "db"})
    recording.step(after_s=2 * BUCKET_S)
    recording.recorder.close()
    tell(recording.root, db={"app": "db"})
    again = restarted(recording, without_ring=without_ring)
    again.step(after_s=BUCKET_S)
    assert sums(again) == [(1, {"app": "job", "run": "7"}, False)]
    assert sums(again, Condition("from-label", ("run=7",))) == sums(again)
    if not without_ring:
        (single,) = (one for one in again.recorder.documents(FlowQuery(last=5)) if one)
        assert single["source"]["labels"] == {"app": "job", "run": "7"}
    again.recorder.close()


def test_flows_before_and_after_a_change_of_labels_are_apart(recording: SteppedRecorder) -> None:
    """One by one in the ring; of sums, those of the five minutes in which they changed are marked."""
    tell(recording.root, web={"tier": "old"}, db={})
    recording.step(connection(1000), after_s=10)
    recording.step(connection(1001), after_s=BUCKET_S)
    tell(recording.root, web={"tier": "new"}, db={})
    recording.step(after_s=1)
    recording.step(connection(1002), after_s=1)
    recording.step(connection(1003), after_s=BUCKET_S)
    assert sums(recording) == [(2, {"tier": "new"}, False), (2, {"tier": "old"}, False)]
    assert sums(recording, Condition("label", ("tier=old",))) == [(2, {"tier": "old"}, False)]
    singles = [one for one in recording.recorder.documents(FlowQuery(last=9)) if one]
    assert [one["source"]["labels"]["tier"] for one in singles] == ["old", "old", "new", "new"]
    recording.step(after_s=BUCKET_S)
    again = restarted(recording, without_ring=True)
    assert sums(again) == [(1, {"tier": "new"}, False), (1, {"tier": "old"}, False), (2, {"tier": "new"}, True)]
    again.recorder.close()


def test_a_pod_elsewhere_that_is_gone(recording: SteppedRecorder) -> None:
    """Also when the agent's file is another one, and when a pod of that name came back with other labels."""

    def line(labels: dict[str, str] | None) -> bytes:
        end = EndElsewhere(EndName("pod", "shop", "far"), "far-*", labels or {}, (bytes((10, 0, 0, 9)),))
        return render_end("a", None if labels is None else end)

    far = Condition("from", ("shop/far",))
    tell(recording.root, web={}, db={})
    recording.step(connection(999))
    recording.step(after_s=BUCKET_S)
    path = recording.root / ELSEWHERE
    path.write_bytes(line({"app": "far", "v": "1"}))
    recording.step(after_s=1)
    recording.step(connection(1000, source=9), after_s=1)
    with path.open("ab") as file:
        file.write(line(None))
    recording.step(after_s=1)
    assert sums(recording, far) == [(1, {"app": "far", "v": "1"}, False)]
    path.unlink()
    recording.step(after_s=1)
    path.write_bytes(line({"app": "far", "v": "2"}))
    recording.step(after_s=1)
    recording.step(connection(1001, source=9), after_s=1)
    assert sums(recording, far) == [(1, {"app": "far", "v": "1"}, False), (1, {"app": "far", "v": "2"}, False)]
    (recording.root / "new").write_bytes(b'["z"]\n' + line({"app": "far", "v": "3"}))
    (recording.root / "new").rename(path)
    recording.step(after_s=1)
    recording.step(connection(1002, source=9), after_s=1)
    assert [one[1]["v"] for one in sums(recording, far)] == ["1", "2", "3"]


def write(
    root: Path, flows: int, now: int, labels: dict[str, str], names: int = 1, most_bytes: int = MOST_BYTES
) -> FlowAggregates:
    """The file after so many five minutes of flows, in which each of the ends had these labels."""
    known = {number: EndName("pod", "shop", f"web-{number}") for number in range(1, names + 1)}
    said: LabelVersions = ()
    path = str(root / "flows.db")
    made = FlowAggregates(path, known.get, SILENT, now, most_bytes, labels_of=lambda name: said)
    for i in range(flows):
        said = note_labels(said, {**labels, "name": str(i)}, now + i * BUCKET_S - 1)
        for number in known:
            made.sums.add(flow(now + i * BUCKET_S, number, number))
        made.flush(now + i * BUCKET_S, force=True)
    return made


def count(path: str, table: str) -> int:
    with sqlite3.connect(path) as database:
        (found,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    database.close()
    return int(found)


def test_equal_labels_are_there_once_and_go_with_their_flows(tmp_path: Path) -> None:
    made = write(tmp_path, 3, int(NOW), {"app": "web"}, names=20)
    assert (count(made.path, "label_set"), count(made.path, "labelled")) == (3, 60)
    made.keep(BUCKET_S)
    made.flush(int(NOW) + 3 * BUCKET_S, force=True)
    assert (count(made.path, "label_set"), count(made.path, "labelled")) == (2, 40), (
        "with those that they had just before"
    )
    made.flush(int(NOW) + 4 * BUCKET_S, force=True)
    assert (count(made.path, "label_set"), count(made.path, "labelled")) == (0, 0)
    made.close(int(NOW) + 4 * BUCKET_S)


def test_labels_are_within_the_budget_of_disk(tmp_path: Path) -> None:
    """Of ends that have other ones, of 20 kB, all the time."""
    made = write(tmp_path, 60, int(NOW), {"much": "x" * 20_000}, names=2, most_bytes=512 << 10)
    assert os.path.getsize(made.path) <= 512 << 10 and not made.trouble
    assert 5 < count(made.path, "label_set") < 40
    made.close(int(NOW) + 60 * BUCKET_S)


def test_a_file_of_a_program_that_kept_no_labels(tmp_path: Path) -> None:
    """Its sums stay, and labels are kept from now on; it would not mind their tables."""
    made = write(tmp_path, 1, int(NOW), {"app": "web"})
    made.close(int(NOW))
    with sqlite3.connect(made.path) as database:
        database.execute("DROP TABLE labelled")
        database.execute("DROP TABLE label_set")
    database.close()
    again = write(tmp_path, 2, int(NOW) + BUCKET_S, {"app": "web"})
    assert sum(counts.connections for part in again.read(0, 1 << 60) for *_, counts in part) == 3
    assert count(again.path, "label_set") == 2 and not os.path.exists(f"{again.path}.bad")
    again.close(int(NOW) + 2 * BUCKET_S)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE label_set SET labels = '[1]'",
        "UPDATE label_set SET labels = x'ff'",
        "UPDATE label_set SET labels = '{\"a\": 1}'",
        "DELETE FROM label_set",
        "ALTER TABLE labelled DROP COLUMN labels",
        "DROP TABLE labelled; CREATE TABLE labelled (x)",
    ],
)
def test_labels_that_no_recorder_has_written(tmp_path: Path, damage: str) -> None:
    """The file is set aside and begun anew, whoever finds it first."""
    made = write(tmp_path, 1, int(NOW), {"app": "web"})
    made.close(int(NOW))
    with sqlite3.connect(made.path) as database:
        database.executescript(damage)
    database.close()
    named = EndName("pod", "shop", "web-1")
    reading = FlowAggregates(made.path, {1: named}.get, SILENT, int(NOW))
    assert reading.labels_of(named) == [] and os.path.exists(f"{made.path}.bad")
    reading.close(int(NOW))
    again = write(tmp_path, 1, int(NOW) + BUCKET_S, {"app": "web"})
    assert not again.trouble and again.labels_of(named) == [(0, {"app": "web", "name": "0"})]
    again.close(int(NOW) + BUCKET_S)
