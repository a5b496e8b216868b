"""Services from the agent's file: for any changes, the one that has the address and port that a packet was sent to."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows import services
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.services import SERVICES, NamedServices, ServiceLine, ServicePort, parse_line, render_service

ADDRESSES = tuple(ip_address(text).packed for text in ("10.96.0.1", "10.96.0.2", "192.0.2.9"))
PATHS = (("shop", "db"), ("shop", "web"), ("bank", "db"))
PODS = ip_address("10.65.0.7").packed

ports = st.builds(
    ServicePort,
    name=st.sampled_from(("", "http", "dns")),
    protocol=st.sampled_from((6, 17)),
    port=st.sampled_from((53, 80)),
    node_port=st.sampled_from((0, 30080)),
    target=st.sampled_from((0, 5432, 8080)),
)
lines = st.builds(
    ServiceLine,
    st.lists(st.sampled_from(ADDRESSES), unique=True, max_size=2).map(tuple),
    st.lists(
        ports,
        max_size=2,
        unique_by=(lambda one: (one.protocol, one.port), lambda one: (one.protocol, one.node_port or -one.port)),
    ).map(tuple),
)
changes = st.lists(st.tuples(st.sampled_from(PATHS), st.none() | lines, st.booleans()), max_size=6)


def record(**changed: Any) -> FlowRecord:
    made = FlowRecord(1, 1, b"\1" * 4, PODS, PODS, 4000, 5432, 5432, 6, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 1, 2)
    return made._replace(**changed)


def expected(known: dict[tuple[str, str], ServiceLine], one: FlowRecord) -> set[tuple[str, str, str]]:
    """Those that may be named: by address, else by the port of nodes."""
    at_address, at_node = set(), set()
    for path, line in known.items():
        for port in line.ports:
            if port.protocol == one.protocol and one.asked in line.addresses and port.port == one.asked_port:
                at_address.add((*path, port.name))
            fits = port.protocol == one.protocol and port.node_port == one.asked_port
            if fits and port.target in (0, one.dport):
                at_node.add((*path, port.name))
    return at_address or at_node


@given(changes, st.sampled_from((*ADDRESSES, PODS)), st.sampled_from((53, 80, 30080, 5432)), st.sampled_from((6, 17)))
@settings(max_examples=80, deadline=None)
def test_it_is_the_service_to_which_it_was_sent(
    tmp_path_factory: pytest.TempPathFactory,
    chosen: list[tuple[tuple[str, str], ServiceLine | None, bool]],
    asked: bytes,
    port: int,
    protocol: int,
) -> None:
    directory = tmp_path_factory.mktemp("run")
    found, path, now = NamedServices(str(directory)), directory / SERVICES, dict[tuple[str, str], ServiceLine]()
    sent = record(asked=asked, asked_port=port, protocol=protocol)
    for place, (one, line, anew) in enumerate(chosen):
        now.pop(one, None)
        if line is not None:
            now[one] = line
        if anew or not path.exists():
            whole = [b'["","%d"]\n' % place, *(render_service(known, its) for known, its in now.items())]
            (directory / "new").write_bytes(b"".join(whole))
            (directory / "new").rename(path)
        else:
            with path.open("ab") as file:
                file.write(b"nonsense\n[1]\n" + render_service(one, line))
        found.look()
        assert len(found) == len(now)
        named, there = found.find(sent), expected(now, sent)
        if (asked, port) == (PODS, 5432):
            assert named is None, "what was not translated was sent to no service"
        else:
            first = {one[:2] for one in there} and min(one[:2] for one in there)
            assert (named and tuple(named)) in (there or {None}) and (named is None or named[:2] == first)


def test_a_line_says_what_it_is_made_of() -> None:
    line = ServiceLine(ADDRESSES[:2], (ServicePort("http", 6, 80, 30080, 0), ServicePort("", 17, 53, 0, 53)))
    assert parse_line(render_service(("shop", "db"), line)) == (("shop", "db"), line)
    assert parse_line(render_service(("shop", "db"), None)) == (("shop", "db"), None)
    for wrong in (b"[", b"1", b'["a"]', b'["a","b",["zz"],[]]', b'["a","b",[],[["x",1]]]', b'["a","b",{},[1]]'):
        with pytest.raises(ValueError):
            parse_line(wrong)


def test_what_there_is_no_room_for_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_MOST", 1)
    found, path = NamedServices(str(tmp_path)), tmp_path / SERVICES
    line = ServiceLine(ADDRESSES[:1], (ServicePort("", 6, 80, 0, 0),))
    path.write_bytes(render_service(("shop", "db"), line) + render_service(("shop", "web"), line))
    found.look()
    assert len(found) == 1
    named = found.find(record(asked=ADDRESSES[0], asked_port=80))
    assert named is not None and named.name == "db"
    path.unlink()
    found.look()
    assert found.find(record(asked=ADDRESSES[0], asked_port=80)) is None and len(found) == 0
