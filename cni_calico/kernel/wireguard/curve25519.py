"""PURE: the public key of a private one (RFC 7748).

Rule: only for devices outside of the kernel, whose programs tell their private key and not the public one. How long it
takes depends on the key: a caller must not be somebody who could measure it.
"""

from __future__ import annotations

_P = 2**255 - 19
_A24 = 121665
_BASE = 9


def public_key(private_key: bytes) -> bytes:
    """``private_key``: 32 bytes, clamped here."""
    scalar = int.from_bytes(private_key, "little") & ~7 & ~(1 << 255) | 1 << 254
    x2, z2, x3, z3 = 1, 0, _BASE, 1
    swapped = 0
    for at in range(254, -1, -1):
        bit = scalar >> at & 1
        if bit ^ swapped:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swapped = bit
        a, b = x2 + z2, x2 - z2
        aa, bb = a * a % _P, b * b % _P
        e = aa - bb
        da, cb = (x3 - z3) * a % _P, (x3 + z3) * b % _P
        x3, z3 = (da + cb) ** 2 % _P, _BASE * (da - cb) ** 2 % _P
        x2, z2 = aa * bb % _P, e * (aa + _A24 * e) % _P
    if swapped:
        x2, z2 = x3, z3
    return (x2 * pow(z2, _P - 2, _P) % _P).to_bytes(32, "little")
