"""Network sets from the agent's file: for any changes, the set that upstream's collector would name."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows import network_sets
from cni_calico.flows.network_sets import NETWORK_SETS, NetworkSetLine, NetworkSets, parse_set, render_set

NETS = tuple(
    map(ip_network, ("0.0.0.0/0", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32", "fd00::/8", "fd00::1/128", "::/0"))
)
ADDRESSES = tuple(map(ip_address, ("10.1.2.3", "10.1.2.4", "10.2.0.1", "192.0.2.7", "fd00::1", "2001:db8::1")))
PATHS = (("", "world"), ("", "a"), ("shop", "partners"), ("shop", "all"), ("bank", "partners"))
Sets = dict[tuple[str, str], list[IPv4Network | IPv6Network]]


def line(*nets: IPv4Network | IPv6Network, **labels: str) -> NetworkSetLine:
    return NetworkSetLine(labels, tuple((net.network_address.packed, net.prefixlen) for net in nets))


def expected(sets: Sets, address: str, namespace: str) -> tuple[str, str] | None:
    at = ip_address(address)
    ranked = [
        (0 if path[0] and path[0] == namespace else 1 if not path[0] else 2, -net.prefixlen, path)
        for path, nets in sets.items()
        for net in nets
        if at.version == net.version and at in net
    ]
    return min(ranked)[2] if ranked else None


changes = st.lists(
    st.tuples(
        st.sampled_from(PATHS), st.none() | st.lists(st.sampled_from(NETS), unique=True, max_size=3), st.booleans()
    ),
    max_size=8,
)


@given(changes)
@settings(max_examples=60, deadline=None)
def test_it_is_the_set_that_comes_first(
    tmp_path_factory: pytest.TempPathFactory,
    chosen: list[tuple[tuple[str, str], list[IPv4Network | IPv6Network] | None, bool]],
) -> None:
    directory = tmp_path_factory.mktemp("run")
    sets, path, now = NetworkSets(str(directory)), directory / NETWORK_SETS, Sets()
    for place, (one, nets, anew) in enumerate(chosen):
        now.pop(one, None)
        if nets is not None:
            now[one] = nets
        if anew or not path.exists():
            lines = [b'["","%d"]\n' % place, *(render_set(known, line(*its)) for known, its in now.items())]
            (directory / "new").write_bytes(b"".join(lines))
            (directory / "new").rename(path)
        else:
            with path.open("ab") as file:
                file.write(b"nonsense\n[1]\n" + render_set(one, None if nets is None else line(*nets)))
        sets.look()
        assert len(sets) == len(now)
        for address in map(str, ADDRESSES):
            for namespace in ("", "shop", "other"):
                found = sets.find(ip_address(address).packed, namespace)
                assert (found and (found.namespace, found.name)) == expected(now, address, namespace)


def test_a_line_says_what_it_is_made_of() -> None:
    made = line(*NETS[:4], team="a")
    assert parse_set(render_set(("shop", "partners"), made)) == (("shop", "partners"), made)
    assert parse_set(render_set(("", "x"), None)) == (("", "x"), None)
    for wrong in (b"[", b"1", b'["a"]', b'["a","b","c","d"]', b'["a","b",{},[["zz",1]]]', b'["a","b",{}]'):
        with pytest.raises(ValueError):
            parse_set(wrong)


def test_what_there_is_no_room_for_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_sets, "_MOST_ALL", 2)
    path, sets = tmp_path / NETWORK_SETS, NetworkSets(str(tmp_path))
    path.write_bytes(render_set(("", "a"), line(*NETS[1:3])) + render_set(("", "world"), line(NETS[0])))
    sets.look()
    found = sets.find(ip_address("10.1.2.3").packed, "")
    assert found is not None and found.name == "a" and sets.find(ip_address("192.0.2.7").packed, "") is None
    with path.open("ab") as file:
        file.write(render_set(("", "a"), None) + render_set(("", "world"), line(NETS[0], role="all")))
    sets.look()
    found = sets.find(ip_address("192.0.2.7").packed, "")
    assert found is not None and (found.name, found.labels) == ("world", {"role": "all"})
    path.unlink()
    sets.look()
    assert sets.find(ip_address("192.0.2.7").packed, "") is None and len(sets) == 0
