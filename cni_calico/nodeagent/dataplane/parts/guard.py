"""The table that lets nothing go between nodes in plain text, and the files by which the CNI plugin knows of it.

Rule: it is made before anything else is changed, stays when the agent ends, and goes only when the setting was read as
off. The plugin starts no pod while the file that requires the table is there and the one that says it stands, which a
reboot takes away with the table, is not. The first file has the table as it was last: as long as no record can be read,
that one is made where there is none, and pods wait all the same.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import ENCRYPTION_GUARD, ENCRYPTION_REQUIRED
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter import nft
from cni_calico.kernel.monitor import RULES
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encryption.families import GUARDS
from cni_calico.nodeagent.dataplane.encryption.guard import DesiredGuard
from cni_calico.nodeagent.dataplane.passes import Pass

FAMILY, TABLE = "inet", GUARDS[0]


class EncryptionGuard:
    """``required`` and ``standing``: the paths of the two files."""

    name = "the guard of encryption"

    def __init__(self, files: Files, required: str, standing: str) -> None:
        self._files, self._required, self._standing = files, required, standing
        self._may_be_there = True  # an earlier run's
        self._guard: DesiredGuard | None = None
        self._applied: str = ""
        self._seen: Any = None

    def wants(self, changed: Collection[str]) -> bool:
        return RULES in changed

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if desired.guard is not None:
            try:
                self._keep(desired.guard, deadline, done, full)
            except (KernelError, OSError) as e:
                self._applied = ""
                done.refused.append(f"encryption is mandatory, and its guard does not stand: {e}")
                raise
        elif self._may_be_there and desired.guard_is_off:
            self._remove(deadline, done)

    def restore(self, deadline: Deadline) -> str:
        """Before the first pass: the table as an earlier run had it last, if it is required and not there; returns what
        was done. Raises KernelError, OSError.
        """
        if not self._files.exists(self._required) or nft.has_table(FAMILY, TABLE, deadline):
            return ""
        kept = self._kept()
        if kept is None:
            return ""
        from cni_calico.nodeagent.dataplane.encryption.guard import render_guard

        nft.apply_script(render_guard(kept), deadline)
        return "set the guard of encryption as it was last: no record has been read yet"

    def _kept(self) -> DesiredGuard | None:
        from cni_calico.nodeagent.dataplane.encryption.kept_guard import parse_kept

        try:
            return parse_kept(self._files.read_bytes(self._required))
        except OSError:
            return None

    def _keep(self, wanted: DesiredGuard, deadline: Deadline, done: Pass, full: bool) -> None:
        from cni_calico.nodeagent.dataplane.encryption.guard import render_guard

        self._may_be_there = True
        if wanted.partial and self._guard is None:
            self._guard = self._kept()
        wanted = wanted.with_former(self._guard)
        script = render_guard(wanted)
        same = script == self._applied
        if same and (not full or nft.read_table(FAMILY, TABLE, deadline) == self._seen):
            return
        unwritten = self._require(wanted)
        if wanted.partial and self._guard is None and nft.has_table(FAMILY, TABLE, deadline):
            return  # an earlier run's knows more than can be read now
        if not nft.usable(deadline):
            raise KernelError("nftables is not installed, or this kernel has none of it")
        nft.apply_script(script, deadline)
        self._applied, self._guard = script, wanted
        self._seen = nft.read_table(FAMILY, TABLE, deadline)
        if not self._files.exists(self._standing):
            self._files.write_atomic(self._standing, b"", 0o644, durable=False)
        done.changed.append(f"{'repaired' if same else 'set'} the guard of encryption")
        if unwritten is not None:
            raise unwritten

    def _require(self, wanted: DesiredGuard) -> OSError | None:
        """Why it could not be written that the guard is required; the guard must not wait for that."""
        from cni_calico.nodeagent.dataplane.encryption.kept_guard import render_kept

        kept = render_kept(wanted)
        # what was kept and cannot be read any more may have been more
        if self._files.holds(self._required, kept) or (wanted.partial and self._files.exists(self._required)):
            return None
        try:
            self._files.make_directory(self._required.rpartition("/")[0])
            self._files.write_atomic(self._required, kept, 0o644)
        except OSError as e:
            return e
        return None

    def _remove(self, deadline: Deadline, done: Pass) -> None:
        if self._files.exists(self._required) or self._applied:
            from cni_calico.nodeagent.dataplane.encryption.guard import render_guard

            # without nftables there was none, unless it is said to stand
            if nft.usable(deadline) or self._files.exists(self._standing):
                nft.apply_script(render_guard(None), deadline)
            for path in (self._standing, self._required):  # the last one has an agent that starts finish this
                self._files.remove(path)
            self._applied, self._guard = "", None
            done.changed.append("removed the guard of encryption: it is not mandatory any more")
        self._may_be_there = False


def guard_in(files: Files, state_dir: str, run_dir: str) -> EncryptionGuard:
    """The guard of a node whose agent has these directories."""
    return EncryptionGuard(files, f"{state_dir}/{ENCRYPTION_REQUIRED}", f"{run_dir}/{ENCRYPTION_GUARD}")
