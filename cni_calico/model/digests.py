"""PURE: SHA-256 without libcrypto, which ``hashlib`` loads: milliseconds, and 4 MB in every process.

Rule: for names and digests of small texts that a resident process computes; signatures and tokens use ``hashlib``.
"""

from __future__ import annotations

try:
    from _sha256 import sha256
except ImportError:  # Python 3.12 and newer have no module of it alone; the executables have 3.11
    from hashlib import sha256

__all__ = ["sha256"]
