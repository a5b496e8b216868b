"""The small values, each against the words it is written in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.documents.fields import Wrong
from cni_calico.nodeagent.bgp.config.values import (
    Community,
    parse_cluster_id,
    parse_community,
    parse_peer_address,
    parse_restart_time,
    parse_seconds,
    password_fault,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("1m30s", 90),
        ("1h", 3600),
        ("1.5s", 2),
        ("0.4s", 0),
        ("1." + "4" * 300 + "s0." + "0" * 200 + "1m", 1),
        ("500ms", 1),
        ("499ms", 0),
        ("0", 0),
        (".5m", 30),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_seconds(text, "at") == seconds


@pytest.mark.parametrize(
    "text",
    ["", "90", "s", "1x", "1s ", "-1s", "1s;", "1m 30s", "1e3s", "١s", "9" * 5000 + "s", "1." + "3" * 5000 + "s"],
)
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(Wrong):
        parse_seconds(text, "at")


@given(st.integers(0, 10**6), st.integers(0, 59))
def test_durations_add_up(minutes: int, seconds: int) -> None:
    assert parse_seconds(f"{minutes}m{seconds}s", "at") == minutes * 60 + seconds


def test_restart_times_fit_the_capability() -> None:
    assert parse_restart_time("4095s", "at") == 4095
    for text in ("0s", "4096s", "2h"):
        with pytest.raises(Wrong):
            parse_restart_time(text, "at")


@pytest.mark.parametrize(
    ("text", "address", "port"),
    [
        ("10.0.0.1", "10.0.0.1", 0),
        ("10.0.0.1:179", "10.0.0.1", 179),
        ("fd00::1", "fd00::1", 0),
        ("[fd00::1]:65535", "fd00::1", 65535),
        ("FD00:0::1", "fd00::1", 0),
    ],
)
def test_peer_addresses(text: str, address: str, port: int) -> None:
    found, found_port = parse_peer_address(text, "at")
    assert (str(found), found_port) == (address, port)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1:",
        "10.0.0.1:0",
        "10.0.0.1:65536",
        "10.0.0.1:-1",
        "[fd00::1]",
        "[fd00::1]179",
        "[10.0.0.1",
        "host",
        "10.0.0.01",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00::1%x",
        "10.0.0.1/24",
    ],
)
def test_what_is_no_peer_address(text: str) -> None:
    with pytest.raises(Wrong):
        parse_peer_address(text, "at")


@given(st.lists(st.integers(0, 2**33), min_size=1, max_size=4))
def test_communities(parts: list[int]) -> None:
    text = ":".join(map(str, parts))
    limit = {2: 2**16, 3: 2**32}.get(len(parts), 0)
    if all(part < limit for part in parts):
        value = parse_community(text, "at")
        assert value == Community(tuple(parts))
        assert value.large == (len(parts) == 3)
        assert str(value) == text
    else:
        with pytest.raises(Wrong):
            parse_community(text, "at")


@pytest.mark.parametrize("text", ["1:", ":1", "1:+2", "1:2 ", "a:b", "1:2;", "", "1"])
def test_what_is_no_community(text: str) -> None:
    with pytest.raises(Wrong):
        parse_community(text, "at")


def test_cluster_ids() -> None:
    assert str(parse_cluster_id("244.0.0.1")) == "244.0.0.1"
    assert str(parse_cluster_id("258")) == "0.0.1.2"
    assert [parse_cluster_id(text) for text in ("rack", "1.2.3", "4294967296", "-1", "")] == [None] * 5


@given(st.text(max_size=100))
def test_a_password_that_is_taken_stays_between_its_quotes(password: str) -> None:
    if not password_fault(password):
        assert '"' not in password
        assert not set(password) & set("\n\r\0")
        assert 0 < len(password.encode()) <= 80


@pytest.mark.parametrize("password", ["", "x" * 81, "é" * 41, 'a"b', "a\n", "a\0b", "\x7f", "\ud800"])
def test_passwords_that_are_not(password: str) -> None:
    assert password_fault(password)
