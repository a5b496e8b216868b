"""Puts back what another program has removed: the tables of published ports, and of interfaces that wait.

Rule: the kernel's reports only say "look again"; a table is written only if it is not what was written last. A change
of our own is looked at once, too, and found equal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cni_calico.deadline import Deadline
from cni_calico.docker.gate import PolicyGate
from cni_calico.docker.ports import PortPublisher
from cni_calico.errors import CalicoError
from cni_calico.kernel.filter.boot_table import WAITING
from cni_calico.kernel.filter.port_table import PORT_TABLE
from cni_calico.kernel.netlink.filter_events import FilterMonitor
from cni_calico.log import Log

_LOOK_S, _SETTLE_S, _AGAIN_S, _REPAIR_S = 0.5, 0.1, 5.0, 10.0


class TableRepair:
    """``run`` in a thread of the host's network namespace."""

    def __init__(self, gate: PolicyGate, ports: PortPublisher, log: Log) -> None:
        self._gate, self._ports, self._log = gate, ports, log

    def run(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            try:
                with FilterMonitor((PORT_TABLE, WAITING.name), 0) as monitor:
                    monitor.watch_rules()
                    self._look()
                    while not stopping.is_set():
                        if not monitor.wait(_LOOK_S):
                            continue
                        happened = monitor.take()
                        if happened.touched_by or happened.lost:
                            stopping.wait(_SETTLE_S)  # whoever flushes, writes more
                            monitor.take()
                            self._look()
            except CalicoError as e:  # a kernel without nf_tables, or one that is short of memory
                self._log.debug(f"tables are not watched: {e}")
                stopping.wait(_AGAIN_S)

    def _look(self) -> None:
        repairs: tuple[tuple[str, Callable[[Deadline], bool]], ...] = (
            ("interfaces that wait for their policy are closed", self._gate.repair),
            ("published ports are forwarded", self._ports.repair),
        )
        for what, repair in repairs:
            try:
                if repair(Deadline.after(_REPAIR_S)):
                    self._log.warning(f"another program has changed our tables: {what} again")
            except CalicoError as e:
                self._log.error(f"another program has changed our tables: {e}")
