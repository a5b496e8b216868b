"""The source of time and randomness for the agent's pure parts; tests pass their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.model.timestamps import rfc3339


@dataclass(frozen=True, slots=True)
class Fresh:
    """``clock`` returns seconds since 1970, ``random(n)`` returns n random bytes."""

    clock: Callable[[], float] = time.time
    random: Callable[[int], bytes] = os.urandom

    def timestamp(self) -> str:
        """RFC 3339 in whole seconds, as stored in metadata."""
        return rfc3339(self.clock())

    def uid(self) -> str:
        """A random UUID (RFC 9562, version 4)."""
        data = bytearray(self.random(16))
        data[6], data[8] = data[6] & 0x0F | 0x40, data[8] & 0x3F | 0x80
        text = data.hex()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))

    def guid(self) -> str:
        """A cluster's GUID: 32 hex digits."""
        return self.random(16).hex()
