"""/liveness and /readiness over HTTP: the same answers as the exec probes, from the same file.

Rule: reads the status file that the agent writes, so a loop that hangs is noticed although this thread does not hang.
"""

from __future__ import annotations

from cni_calico.daemon.http_server import TEXT, Page, ServerFiles
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.probes import why_cni_missing

# RequireAnyClientCert is stricter here: no certificate is taken that nobody has verified; NoClientCert is all others
_CLIENTS = {
    "RequireAndVerifyClientCert": "required",
    "RequireAnyClientCert": "required",
    "VerifyClientCertIfGiven": "optional",
}


def metrics_files(felix: FelixSettings) -> ServerFiles | None:
    """What the metrics are served with; None: without TLS, because neither a certificate nor a key is asked for."""
    if not felix.metrics_certificate and not felix.metrics_key:
        return None
    clients = _CLIENTS.get(felix.metrics_client_auth, "none")
    return ServerFiles(felix.metrics_certificate, felix.metrics_key, felix.metrics_ca, clients)


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
