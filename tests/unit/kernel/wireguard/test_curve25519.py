"""Public keys against RFC 7748's (6.1)."""

from __future__ import annotations

from cni_calico.kernel.wireguard.curve25519 import public_key

BOB = "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"
BOBS = "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"


def test_bobs_key() -> None:
    assert public_key(bytes.fromhex(BOB)).hex() == BOBS


def test_bits_that_a_key_cannot_have_do_not_count() -> None:
    private = bytearray.fromhex(BOB)
    private[0] ^= 7
    private[31] ^= 0xC0
    assert public_key(bytes(private)).hex() == BOBS
