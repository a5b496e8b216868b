"""The IDs of handles: on the disk before they are given out, and found again after a crash of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.docker.handles import AHEAD, KEPT_S, HandleIds
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT


def opened(path: Path, now: list[float]) -> HandleIds:
    handles = HandleIds(Files(), str(path), SILENT, lambda: now[0])
    handles.read()
    return handles


def on_disk(path: Path) -> set[str]:
    return set(json.loads(path.read_text())["ids"])


@given(
    st.lists(st.tuples(st.sampled_from(["take", "take many", "crash", "reboot"]), st.floats(0, KEPT_S)), max_size=30)
)
def test_whatever_was_given_out_lately_is_found_after_a_reboot(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, float]]
) -> None:
    path, now, boot = tmp_path_factory.mktemp("handles") / "handles.json", [0.0], 1
    given_in = 1  # the boot in which the file was written last
    handles, given_out = opened(path, now), dict[str, float]()
    for step, pause_s in steps:
        now[0] += pause_s
        if step.startswith("take"):
            for _ in range(1 if step == "take" else AHEAD + 1):
                id = handles.take(f"boot-{boot}")
                assert id not in given_out and id in on_disk(path)
                given_out[id], given_in = now[0], boot
            continue
        handles = opened(path, now)
        assert given_in != boot or not set(handles.of_another_boot(f"boot-{boot}")), "it is this boot still"
        if step == "reboot":
            found = set(handles.of_another_boot("the next"))
            assert found >= {id for id, when in given_out.items() if now[0] - when <= KEPT_S}
            boot += 1


def test_the_file_does_not_grow(tmp_path: Path) -> None:
    now = [0.0]
    handles = opened(tmp_path / "handles.json", now)
    for _ in range(20 * AHEAD):
        now[0] += KEPT_S / AHEAD
        handles.take("boot")
    assert len(on_disk(tmp_path / "handles.json")) <= 2 * AHEAD + 1
    assert (tmp_path / "handles.json").stat().st_mode & 0o777 == 0o600


@given(st.binary(max_size=40) | st.sampled_from([b"{}", b'{"format": 1}', b'{"format":1,"boot":"b","ids":["../x"]}']))
def test_a_file_that_cannot_be_read_is_not_used(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("handles") / "handles.json"
    path.write_bytes(data)
    handles = opened(path, [0.0])
    assert not set(handles.of_another_boot("boot"))
    assert handles.take("boot") in on_disk(path)


def test_no_id_is_given_out_that_is_not_on_the_disk(tmp_path: Path) -> None:
    handles = opened(tmp_path / "absent" / "handles.json", [0.0])
    for _ in range(2):
        with pytest.raises(KernelError, match=r"cannot write .*handles\.json"):
            handles.take("boot")
