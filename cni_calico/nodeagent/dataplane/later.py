"""The parts of the data plane, made when the first pass begins: policies do not wait for their modules.

Rule: only the guard of encryption is there from the start, because it waits for no record. What the kernel reports
before the other parts are made concerns none of them: each reads everything at first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.apply import Applier
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.guard import EncryptionGuard, guard_in
from cni_calico.nodeagent.dataplane.passes import Pass
from cni_calico.nodeagent.status.policing import Standing


class PartsLater:
    """For one thread, in whose network namespace they work. ``standing``: what policies are in force."""

    def __init__(self, context: Context, standing: Callable[[], Standing]) -> None:
        self._context, self._standing = context, standing
        self._guard: EncryptionGuard = guard_in(context.files, context.settings.state_dir, context.settings.run_dir)
        self._applier: Applier | None = None

    def restore_guard(self, deadline: Deadline) -> str:
        """As the guard's ``restore``; a failure is described instead of raised."""
        try:
            return self._guard.restore(deadline)
        except (CalicoError, OSError) as e:
            return f"cannot set the guard of encryption before records are read: {e}"

    def notice(self, changed: Collection[str]) -> None:
        """The monitor reported changes of these kinds."""
        if self._applier is not None:
            self._applier.notice(changed)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, *, full: bool, only: str = "") -> Pass:
        """As the Applier's."""
        if self._applier is None:
            self._applier = self._made()
        return self._applier.apply(desired, felix, deadline, full=full, only=only)

    def _made(self) -> Applier:
        from cni_calico.nodeagent.dataplane.apply import Applier, data_plane

        parts = data_plane(
            self._context.log,
            self._context.files,
            self._context.settings.state_dir,
            self._context.settings.run_dir,
            time.monotonic,
            lambda: self._standing().upstream_goes,
            lambda: self._standing().lost,
            guard=self._guard,
        )
        return Applier(parts)
