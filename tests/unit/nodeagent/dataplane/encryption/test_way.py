"""The script for nft."""

from __future__ import annotations

from ipaddress import ip_address

from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption
from cni_calico.nodeagent.dataplane.encryption.way import render_way


def test_the_table_goes_with_the_last_family() -> None:
    assert render_way(()) == "add table inet calico-wireguard\ndelete table inet calico-wireguard\n"


def test_both_families() -> None:
    script = render_way(
        (
            DesiredEncryption(4, "wireguard.cali", address=ip_address("10.65.1.7")),
            DesiredEncryption(6, "wg-v6.cali"),
        )
    )
    assert script.count("tcp option maxseg size set rt mtu") == 4
    assert [line.strip() for line in script.splitlines() if "masquerade" in line] == [
        'oifname "wireguard.cali" meta nfproto ipv4 fib saddr type local ip saddr != 10.65.1.7 masquerade'
    ]
