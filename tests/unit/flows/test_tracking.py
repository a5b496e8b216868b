"""What the recorder asks of connection tracking, and hears of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.errors import KernelError
from cni_calico.flows import tracking
from cni_calico.flows.tracking import ConnectionTracking
from cni_calico.log import SILENT

HEAD = "entries  clashres insert_failed drop early_drop icmp_error\n"


def test_what_had_no_room_is_counted_from_the_begin_on(tmp_path: Path) -> None:
    figures = tmp_path / "nf_conntrack"
    figures.write_text(HEAD + "000000ff  00000000 00000000 0000000a 00000001 00000000\n" * 2)
    one = ConnectionTracking(SILENT, str(figures), count=False)
    assert one.without_room() == (0, 0) and not one.counted
    figures.write_text(HEAD + "000000ff  00000000 00000000 0000001a 00000003 00000000\n" * 2)
    assert one.without_room() == (32, 4)


@pytest.mark.parametrize("text", [None, "", "entries found\n0 0\n", HEAD + "0 0\n", HEAD + "0 0 0 many 0 0\n"])
def test_a_kernel_that_does_not_tell_is_none_of_our_troubles(tmp_path: Path, text: str | None) -> None:
    figures = tmp_path / "nf_conntrack"
    if text is not None:
        figures.write_text(text)
    assert ConnectionTracking(SILENT, str(figures), count=False).without_room() == (0, 0)


def test_what_another_program_switches_off_is_told_and_stays_off(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, str | None] = {"nf_conntrack_acct": "0", "nf_conntrack_timestamp": "0"}
    monkeypatch.setattr(tracking.sysctl, "ensure", lambda name, value, optional: values.update({name[-1]: value}))
    monkeypatch.setattr(tracking.sysctl, "read", lambda name: values[name[-1]])
    one = ConnectionTracking(SILENT, count=True)
    one.look()
    assert one.counted and not one.trouble and set(values.values()) == {"1"}
    values["nf_conntrack_acct"] = "0"
    one.look()
    assert "nf_conntrack_acct off" in one.trouble and values["nf_conntrack_acct"] == "0"
    values["nf_conntrack_acct"] = None  # a kernel without it
    one.look()
    assert not one.trouble


def test_without_the_right_to_switch_it_on_nothing_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise KernelError("read-only")

    monkeypatch.setattr(tracking.sysctl, "ensure", refuse)
    one = ConnectionTracking(SILENT, count=True)
    one.look()
    assert not one.counted and not one.trouble
