"""The metrics that Prometheus' client libraries export of every process, for programs that do not load one. Rule: they
are read from /proc when they are requested; what cannot be read is left out.
"""

from __future__ import annotations

import os
import resource
import time

from cni_calico.daemon.exposition import Exposition

_STAT = "/proc/self/stat"
_FIRST_FIELD = 3  # counted from the field after the name in brackets
_UTIME, _STIME, _STARTED, _VIRTUAL, _RESIDENT = (field - _FIRST_FIELD for field in (14, 15, 22, 23, 24))


def add_process_metrics(out: Exposition) -> None:
    """CPU, memory, descriptors and start of this process, under the usual names."""
    tick, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    try:
        with open(_STAT, encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        cpu_s = (int(fields[_UTIME]) + int(fields[_STIME])) / tick
        started_at = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + int(fields[_STARTED]) / tick
        out.count("process_cpu_seconds_total", "Processor time used, user and system.", cpu_s)
        out.gauge("process_start_time_seconds", "When it was started, in seconds since 1970.", round(started_at, 2))
        out.gauge("process_virtual_memory_bytes", "Virtual memory.", int(fields[_VIRTUAL]))
        out.gauge("process_resident_memory_bytes", "Resident memory.", int(fields[_RESIDENT]) * page)
        out.gauge("process_open_fds", "Open descriptors.", len(os.listdir("/proc/self/fd")) - 1)
    except (OSError, ValueError, IndexError):
        pass  # there is no /proc, or it has another form
    out.gauge("process_max_fds", "How many descriptors it may open.", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
