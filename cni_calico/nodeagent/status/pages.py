"""/liveness and /readiness over HTTP: the same answers as the exec probes, from the same file.

Rule: reads the status file that the agent writes, so a loop that hangs is noticed although this thread does not hang.
"""

from __future__ import annotations

from cni_calico.daemon.http_server import TEXT, Page
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.probes import why_cni_missing


def health_pages(run_dir: str) -> dict[str, Page]:
    """The pages by path."""

    def answer(why: str) -> tuple[int, str, bytes]:
        return (503, TEXT, f"{why}\n".encode()) if why else (200, TEXT, b"ok\n")

    def liveness() -> tuple[int, str, bytes]:
        return answer(status.why_not_live(status.read_status(run_dir), status.since_boot()))

    def readiness() -> tuple[int, str, bytes]:
        fields = status.read_status(run_dir)
        return answer(status.why_not_ready(fields, status.since_boot()) or why_cni_missing(fields, run_dir))

    return {"/liveness": liveness, "/readiness": readiness}
