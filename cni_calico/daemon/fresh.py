"""The source of time and randomness for the agent's pure parts; tests pass their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

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
        return str(UUID(bytes=self.random(16), version=4))

    def guid(self) -> str:
        """A cluster's GUID: 32 hex digits."""
        return self.random(16).hex()
