"""The tables of published ports, as text for nft."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.port_table import PortForward, read_forwards, render_forwards, render_legacy

WEB = PortForward("tcp", 8080, ip_address("10.65.0.7"), 80)
OWN = PortForward("udp", 53, ip_address("10.65.0.8"), 5353, ip_address("192.0.2.1"))


def test_one_address_s_ports_come_first_and_nothing_else_is_masqueraded() -> None:
    lines = [line.strip() for line in render_forwards([WEB, OWN], 4).splitlines()]
    assert lines[:3] == [
        "table ip calico-published {}",
        "delete table ip calico-published",
        "table ip calico-published {",
    ]
    first, second = (
        lines.index("ip daddr 192.0.2.1 udp dport 53 dnat to 10.65.0.8:5353"),
        lines.index("tcp dport 8080 dnat to 10.65.0.7:80"),
    )
    assert first < second
    assert [line for line in lines if line.endswith("masquerade")] == [
        "ip saddr 127.0.0.0/8 ct status dnat masquerade",
        "ip saddr 10.65.0.7 ip daddr 10.65.0.7 masquerade",
        "ip saddr 10.65.0.8 ip daddr 10.65.0.8 masquerade",
    ]


def test_where_nft_does_not_work_nothing_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nft"
    program.write_text("#!/bin/sh\necho 'Unable to initialize Netlink socket: Protocol not supported' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_forwards(Deadline.after(60)) == [None, None]


def test_without_ports_the_table_goes() -> None:
    assert render_forwards([], 6) == "table ip6 calico-published {}\ndelete table ip6 calico-published\n"


def test_ipv6_has_its_brackets() -> None:
    text = render_forwards([PortForward("tcp", 80, ip_address("fd00::1"), 8080)], 6)
    assert "tcp dport 80 dnat to [fd00::1]:8080" in text and "loopback" not in text


SAVED = """*nat
:PREROUTING ACCEPT [0:0]
:calico-published - [0:0]
:calico-published-post - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A PREROUTING -m addrtype --dst-type LOCAL -j calico-published
-A POSTROUTING -j calico-published-post
COMMIT
"""


def test_legacy_iptables_has_the_same_and_calls_each_chain_once() -> None:
    lines = render_legacy([WEB, OWN], 4, SAVED).splitlines()
    assert lines[:4] == [
        "*nat",
        ":calico-published - [0:0]",
        "-A calico-published -d 192.0.2.1 -p udp --dport 53 -j DNAT --to-destination 10.65.0.8:5353",
        "-A calico-published -p tcp --dport 8080 -j DNAT --to-destination 10.65.0.7:80",
    ]
    gone = lines.index("-D PREROUTING -m addrtype --dst-type LOCAL -j calico-published")
    assert gone < lines.index("-I PREROUTING -m addrtype --dst-type LOCAL -j calico-published")
    assert not any("DOCKER" in line for line in lines)
    assert lines[-4:] == [
        ":calico-published - [0:0]",
        "-A calico-published ! -i lo -d 127.0.0.0/8 -j DROP",
        "-I PREROUTING -j calico-published",
        "COMMIT",
    ]


def test_legacy_iptables_has_nothing_without_ports() -> None:
    assert render_legacy([], 4, "") == "" and render_legacy([], 6, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n") == ""
    gone = render_legacy([], 4, SAVED).splitlines()
    assert "-X calico-published" in gone and "-X calico-published-post" in gone and "-I" not in " ".join(gone)
