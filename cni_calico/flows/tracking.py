"""Connection tracking as the recorder needs it: whether it counts, and what it had no room for.

Rule: counting is switched on once. What another program switches off again stays off, and is told: packets and bytes
are unknown then, and not 0.
"""

from __future__ import annotations

from cni_calico.errors import CalicoError
from cni_calico.kernel import sysctl
from cni_calico.log import Log

_COUNTING = ("netfilter", "nf_conntrack_acct"), ("netfilter", "nf_conntrack_timestamp")
_FIGURES = "/proc/thread-self/net/stat/nf_conntrack"  # a line of hexadecimal numbers for each processor
_WANTED = ("drop", "early_drop")


class ConnectionTracking:
    """In the network namespace of the calling thread. ``count``: whether packets, bytes and times are to be counted;
    ``counted``: whether they are.
    """

    def __init__(self, log: Log, figures: str = _FIGURES, *, count: bool) -> None:
        self._log, self._path = log, figures
        self.trouble = ""
        self.counted = count and self._switch_on()
        self._before = self._read()

    def _switch_on(self) -> bool:
        try:
            for name in _COUNTING:
                sysctl.ensure(name, "1", optional=True)
        except CalicoError as e:
            self._log.warning(f"flows have no packets and bytes: {e}")
            return False
        return True

    def look(self) -> None:
        """Notice what another program has switched off, or on again."""
        if not self.counted:
            return
        try:
            off = [name[-1] for name in _COUNTING if sysctl.read(name) == "0"]
        except CalicoError:
            return
        trouble = f"another program has switched {' and '.join(off)} off: set it to 1" if off else ""
        if trouble and trouble != self.trouble:
            self._log.warning(f"new flows have no packets, bytes or times: {trouble}")
        self.trouble = trouble

    def without_room(self) -> tuple[int, int]:
        """(packets that were dropped, connections that were forgotten early), since this was made, because the table
        was full; 0 where the kernel does not tell.
        """
        now = self._read()
        return max(0, now[0] - self._before[0]), max(0, now[1] - self._before[1])

    def _read(self) -> tuple[int, int]:
        try:
            with open(self._path) as file:
                names, *lines = (line.split() for line in file)
                places = [names.index(name) for name in _WANTED]
                first, second = (sum(int(line[at], 16) for line in lines) for at in places)
        except (OSError, ValueError, IndexError):
            return 0, 0
        return first, second
