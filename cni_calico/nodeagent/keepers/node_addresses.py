"""The node's own addresses, detected again from time to time.

Rule: an address that was configured, not detected, is only checked for doubts.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.daemon.keeper import Keeper
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.startup.doubts import Doubt
from cni_calico.nodeagent.startup.run import refresh_addresses


def address_keeper(context: Context, node: str, on_doubts: Callable[[tuple[Doubt, ...]], None]) -> Keeper:
    """Detects the node's addresses again; configured ones are only checked for doubts."""

    def look() -> None:
        on_doubts(refresh_addresses(context, node))

    return Keeper(
        "the node's addresses", look, context.settings.autodetect_poll_s or 60.0, context.log, context.troubles
    )
