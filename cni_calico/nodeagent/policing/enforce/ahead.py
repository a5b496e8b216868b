"""Asks the kernel what its packet filter can do while the agent is still being imported.

Rule: the answer is used for the parameters for which it was asked, once. A question that failed is asked again by
whoever needs the answer, so that a failure is told where it matters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cni_calico.errors import CalicoError
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce.filters import DataPlane, look


class LookAhead:
    """``felix``: the parameters of the environment. The thread waits for the kernel and works for nobody meanwhile; it
    is in the network namespace of its creator.
    """

    def __init__(self, felix: FelixSettings) -> None:
        self._felix = felix
        self._plane: DataPlane | None = None
        self._thread = threading.Thread(target=self._ask, name="look-ahead", daemon=True)
        self._thread.start()

    def look(self, felix: FelixSettings) -> DataPlane:
        """As ``filters.look``."""
        self._thread.join()
        plane, self._plane = self._plane, None
        return plane if plane is not None and felix == self._felix else look(felix)

    def _ask(self) -> None:
        try:
            self._plane = look(self._felix)
        except CalicoError:  # it is asked again
            self._plane = None


def look_ahead(felix: FelixSettings, *, policed: bool) -> Callable[[FelixSettings], DataPlane]:
    """Who is asked for the answer. Nothing is asked ahead where no engine runs (``policed``), or where these parameters
    have nothing guarded before records are read, or leave the kernel to another data plane.
    """
    wanted = policed and felix.internal_driver and felix.standing_rules == "Enabled"
    return LookAhead(felix).look if wanted else look
