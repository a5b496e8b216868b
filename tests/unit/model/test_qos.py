"""Limits that a pod's annotations ask for: upstream's names, units, bounds and conditions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.qos import BOUNDS, DSCP, PREFIX, parse_qos

NEEDS = {
    **{name: {"Bandwidth": "1M"} for name in ("Burst", "Peakrate")},
    "Minburst": {"Bandwidth": "1M", "Peakrate": "2M"},
    "PacketBurst": {"PacketRate": "1k"},
}


def read(**fields: str) -> tuple[dict[str, int], str]:
    found, said = parse_qos({PREFIX + name: text for name, text in fields.items()})
    return found, "\n".join(said)


def test_nothing_is_asked_for() -> None:
    assert parse_qos({"unrelated": "x"}) == ({}, ())


def test_each_in_kubernetes_quantities() -> None:
    found, said = read(
        ingressBandwidth="1.5M",
        ingressBurst="2Gi",
        ingressPeakrate="1e7",
        ingressMinburst="2Ki",
        egressPacketRate="500m",
    )
    assert found == {
        "ingressBandwidth": 1_500_000,
        "ingressBurst": 2**31,
        "ingressPeakrate": 10**7,
        "ingressMinburst": 2048,
        "egressPacketRate": 1,
    }
    assert said == ""


def test_beyond_the_bounds_counts_as_the_bound() -> None:
    found, said = read(ingressBandwidth="1", egressBandwidth="2P", ingressPacketRate="1G", egressPacketRate="2G")
    assert found == {
        "ingressBandwidth": 1000,
        "egressBandwidth": 10**15,
        "ingressPacketRate": 10**9,
        "egressPacketRate": 10**9,
    }
    assert "ingressBandwidth: 1 is less than 1000; it counts as 1000" in said
    assert "egressPacketRate: 2G is more than 1000000000" in said and said.count("\n") == 2


def test_what_is_no_limit_is_left_out() -> None:
    """Zero and less as well, of which upstream makes the smallest limit there is."""
    for text in ("", "many", "0", "-5M", "-0", "1K", "NaN", "[1]"):
        found, said = read(ingressBandwidth=text)
        assert not found and f"expected a quantity from 1000 to 1000000000000000, got {text!r}; it is left out" in said
    assert "other is not one that pods have" in read(other="1")[1]


@pytest.mark.parametrize("name", [*BOUNDS, "dscp"])
@pytest.mark.parametrize(
    ("text", "is_much"),
    [
        *[
            (text, False)
            for text in ("", "-5", "-1" + "0" * 30, "NaN", "nan", "Infinity", "[1000]", '{"a": 1}', "0x10")
        ],
        *[("1" + "0" * 30, True), ("1e30", True), ("9" * 2**20, True)],
    ],
    ids=lambda value: str(value)[:9],
)
def test_each_with_each_of_what_people_write_wrongly(name: str, text: str, is_much: bool) -> None:
    """Much counts as the most there is; the rest is no limit. What belongs to another one comes with it."""
    way, _, kind = name.partition("gress")
    least = {f"{way}gress{needed}": value for needed, value in NEEDS.get(kind, {}).items()}
    found, said = read(**least, **{name: text})
    if is_much and name != "dscp":
        assert found[name] == BOUNDS[name][1] and "it counts as" in said
    else:
        assert name not in found and found.keys() == least.keys() and "it is left out" in said
    assert len(said) < 600 and "\n" not in said


def test_what_says_nothing_alone_is_left_out() -> None:
    found, said = read(egressBurst="1M", egressPacketBurst="5", egressPeakrate="2M", egressMinburst="2k")
    assert not found and said.count("it is left out") == 4
    assert "egressBurst says nothing without egressBandwidth" in said
    found, said = read(ingressBandwidth="1M", ingressPeakrate="1M", ingressMinburst="2k")
    assert found == {"ingressBandwidth": 10**6} and "ingressPeakrate is not above ingressBandwidth" in said


def test_dscp_by_number_and_by_name() -> None:
    names = {"46": 46, "0": 0, "63": 63, "ef": 46, "DF": 0, "cs6": 48, "AF11": 10, "Af43": 38, "AF31": 26}
    assert {text: read(dscp=text)[0].get("dscp") for text in names} == names
    for text in ("64", "-1", "", "CS7", "AF44", "0x2e", "4.6", "٤"):
        found, said = read(dscp=text)
        assert not found and "expected a number from 0 to 63 or a name" in said


def test_the_bandwidth_plugins_annotations() -> None:
    """Upstream's own of the same meaning wins, where it can be read."""
    words = {"kubernetes.io/ingress-bandwidth": "1M", "kubernetes.io/egress-bandwidth": "2M"}
    assert parse_qos(words) == ({"ingressBandwidth": 10**6, "egressBandwidth": 2 * 10**6}, ())
    assert parse_qos({**words, f"{PREFIX}egressBandwidth": "3M"})[0]["egressBandwidth"] == 3 * 10**6
    found, said = parse_qos({**words, f"{PREFIX}egressBandwidth": "fast"})
    assert found["egressBandwidth"] == 2 * 10**6 and len(said) == 1
    found, said = parse_qos({**words, "kubernetes.io/egress-bandwidth": "fast"})
    assert found == {"ingressBandwidth": 10**6} and "kubernetes.io/egress-bandwidth" in said[0]


def test_a_name_with_control_characters_stays_in_its_line() -> None:
    """A record of etcd may have one."""
    _, said = parse_qos({f"{PREFIX}egressPacketR\te\x1b[2J": "1"})
    assert len(said) == 1 and said[0].isprintable() and "egressPacketR" in said[0]


@given(
    st.dictionaries(
        st.sampled_from([*BOUNDS, "other"]), st.one_of(st.text(max_size=9), st.from_regex(r"\A[0-9]{1,20}[kMGi]?\Z"))
    )
)
def test_whatever_is_written(fields: dict[str, str]) -> None:
    """Every value that is left is within the bounds; what was not taken as it is written is said, in short lines."""
    found, said = parse_qos({PREFIX + name: text for name, text in fields.items()})
    assert all(BOUNDS[name][0] <= value <= BOUNDS[name][1] for name, value in found.items())
    assert len(said) >= len(fields.keys() - found.keys())
    assert all(len(text) < 600 and text.isprintable() for text in said)
    assert found.keys() <= fields.keys() and (DSCP not in found or "dscp" in fields)
