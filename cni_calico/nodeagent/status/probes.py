"""The exec probes: one process start, one check, one line.

Rule: older manifests give a probe one second, including its process start, so almost nothing is imported before it is
known what to check, and no wait is longer than a fraction of that second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico import directories

CNI_ANSWER_S = 0.5
_WITHOUT_BIRD = frozenset(("vxlan", "none"))


def run_probes(
    names: set[str], values: Mapping[str, str], environ: Mapping[str, str], notes: list[str] | None = None
) -> list[str]:
    """Why the probes fail, one line for each; [] if all succeed. ``notes`` gets what is wrong and makes none fail."""
    run_dir = directories.run_dir(environ)
    faults = []
    if "felix-live" in names:
        faults.append(_felix_live(run_dir))
    if "felix-ready" in names:
        faults.append(_felix_ready(run_dir))
    if "felix-started" in names:
        faults.append(_felix_started(run_dir))
    # the manifests' probes name BIRD whatever the backend is; a container's probe has its environment
    backend = environ.get("CALICO_NETWORKING_BACKEND", "").strip()
    networking = environ.get("CALICO_NETWORKING", "").strip()
    if networking:  # the older form wins
        backend = "none" if networking == "false" else "bird"
    with_bird = backend not in _WITHOUT_BIRD
    if with_bird and names & {"bird-live", "bird6-live"}:
        faults.append(_bird_live(run_dir))
    if with_bird and names & {"bird-ready", "bird6-ready"}:
        faults.append(_bird_ready(run_dir, values, environ, [] if notes is None else notes))
    return [fault for fault in faults if fault]


def _felix_live(run_dir: str) -> str:
    from cni_calico.nodeagent.status import file as status

    why = status.why_not_live(status.read_status(run_dir), status.since_boot())
    return f"felix is not alive: {why}" if why else ""


def _felix_ready(run_dir: str) -> str:
    from cni_calico.nodeagent.status import file as status

    fields = status.read_status(run_dir)
    why = status.why_not_ready(fields, status.since_boot()) or why_cni_missing(fields, run_dir)
    return f"felix is not ready: {why}" if why else ""


def _felix_started(run_dir: str) -> str:
    from cni_calico.nodeagent.status import file as status

    fields = status.read_status(run_dir)
    why = status.why_not_started(fields, status.since_boot())
    return f"felix has not started: {why}" if why else ""


def why_cni_missing(fields: Mapping[str, Any], run_dir: str) -> str:
    """Why the CNI server that was started beside the agent does not answer; "" if it does, or if none was started."""
    return why_cni_silent(f"{run_dir}/{directories.CNI_SOCKET}") if fields.get("cni_server", True) else ""


def why_cni_silent(path: str) -> str:
    """Why the CNI server does not answer, "" if it does: it is asked for its metrics."""
    import _socket

    from cni_calico.plugin.call import protocol

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(CNI_ANSWER_S)
        connection.connect(path)
        connection.sendall(protocol.frame(protocol.request_fields("metrics", [], b"", [])))
        if len(connection.recv(protocol.HEADER_BYTES)) == protocol.HEADER_BYTES:
            return ""
        return f"the CNI server at {path} closed the connection"
    except OSError as e:
        return f"the CNI server at {path} does not answer: {e.strerror or e}"
    finally:
        connection.close()


def _bird_socket(run_dir: str) -> str:
    return f"{run_dir}/{directories.BIRD_SOCKET}"


def _bird_live(run_dir: str) -> str:
    from cni_calico.nodeagent.bgp.bird.probes import read_alive

    why = read_alive(_bird_socket(run_dir))
    return f"BIRD is not alive: {why}" if why else ""


def _bird_ready(run_dir: str, values: Mapping[str, str], environ: Mapping[str, str], notes: list[str]) -> str:
    from cni_calico.nodeagent.bgp.bird.probes import read_ready
    from cni_calico.nodeagent.bgp.bird.readiness import THRESHOLD_S

    threshold_s = THRESHOLD_S
    if "threshold-time" in values:
        from cni_calico.daemon.settings_table import parse_duration_s

        try:
            threshold_s = parse_duration_s(values["threshold-time"])
        except ValueError as e:
            return f"-threshold-time={values['threshold-time']}: {e}"
    nodename_file = directories.nodename_file(environ)
    readiness = read_ready(_bird_socket(run_dir), nodename_file, threshold_s=threshold_s)
    if readiness.ready and readiness.waiting:
        notes.append(readiness.text)
    return "" if readiness.ready else readiness.text
