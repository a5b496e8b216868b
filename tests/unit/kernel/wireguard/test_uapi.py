"""What programs outside of the kernel say, as we read it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import KernelError
from cni_calico.kernel.wireguard.uapi import parse_answer, render_set
from cni_calico.model.wireguard import PeerChange, WireguardChange, WireguardEndpoint

ANSWER = """\
private_key=5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb
listen_port=51820
fwmark=2097152
public_key=b85996fecc9c7f1fc6d2572a76eda11d59bcd20be8e543b15ce4bd85a8e75a33
preshared_key=0000000000000000000000000000000000000000000000000000000000000000
protocol_version=1
endpoint=[2001:db8::1]:51821
last_handshake_time_sec=1700000000
last_handshake_time_nsec=5
tx_bytes=10
rx_bytes=20
persistent_keepalive_interval=25
allowed_ip=192.0.2.0/26
errno=0

"""


def test_an_answer() -> None:
    device = parse_answer(ANSWER.splitlines(), "read wg")
    assert device.public_key.hex().startswith("de9edb7d") and (device.port, device.mark) == (51820, 0x200000)
    [peer] = device.peers
    assert peer.endpoint == WireguardEndpoint(ip_address("2001:db8::1"), 51821)
    assert peer.allowed == {ip_network("192.0.2.0/26")}
    assert (peer.shaken, peer.sent, peer.received, peer.keepalive_s) == ((1700000000, 5), 10, 20, 25)


def test_a_refusal() -> None:
    with pytest.raises(KernelError, match="cannot set wg: Invalid argument"):
        parse_answer(["errno=-22"], "set wg")


@pytest.mark.parametrize("text", ["", "listen_port=x\nerrno=0\n\n", "public_key=00\nerrno=0\n\n"])
def test_what_is_no_answer(text: str) -> None:
    with pytest.raises(KernelError):
        parse_answer(text.splitlines(), "read wg")


@given(st.text())
def test_whatever_comes(text: str) -> None:
    try:
        parse_answer((text + "\nerrno=0").splitlines(), "read wg")
    except KernelError:
        pass


def test_a_peer_that_goes_says_no_more() -> None:
    text = render_set(WireguardChange(peers=(PeerChange(bytes(32), remove=True, keepalive_s=3),)))
    assert text == b"set=1\npublic_key=" + b"00" * 32 + b"\nremove=true\n\n"
