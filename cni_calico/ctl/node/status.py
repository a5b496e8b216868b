"""``calicoctl node status``: what calico-node and BIRD on this host report about themselves."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from cni_calico import directories
from cni_calico.ctl.output.looks import BAD, PLAIN, PlainLook, tone_of
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.nodeagent.bgp.bird.control import read_status
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, PeerStatus
from cni_calico.nodeagent.status import file as agent_status
from cni_calico.nodeagent.status.flow_metrics import ask_recorder
from cni_calico.nodeagent.status.probes import why_cni_silent

BIRD_S = 5.0
ANSWERS = "the server answers"
_HEADINGS = ("PEER ADDRESS", "PEER TYPE", "STATE", "SINCE", "INFO", "UPTIME", "RECEIVED", "ANNOUNCED")
_TOPICS = (
    ("Variables that are not used", "environment"),
    ("Warnings about the node's address", "doubts"),
    ("Warnings", "warnings"),
    ("Warnings about services", "services"),
    ("BGP", "bgp_problems"),
    ("Problems", "problems"),
    ("Failed", "failed"),
)


def show(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """The status. Raises CommandFailed, with as much of the status as is known, if this node is not ready or its agent
    does not run.
    """
    run_dir = directories.run_dir(environ)
    fields = {
        **agent_status.read_status(run_dir),
        "cni": why_cni_silent(f"{run_dir}/{directories.CNI_SOCKET}") or ANSWERS,
    }
    recorder = ask_recorder(run_dir)
    if recorder is not None:
        fields["flows"] = describe_recorder(recorder)
    not_live = agent_status.why_not_live(fields, agent_status.since_boot())
    bird: BirdStatus | str
    try:
        bird = read_status(f"{run_dir}/{directories.BIRD_SOCKET}", Deadline.after(BIRD_S))
    except CalicoError as e:
        bird = str(e)
    now = datetime.now().astimezone()
    if arguments.output == TABLE:
        agent = render_agent(fields, agent_status.since_boot(), arguments.look)
        text = agent + "\n" + render_bird(bird, fields, now, arguments.look)
    else:
        text = render_value(describe(fields, bird, agent_status.since_boot()), arguments.output)
    if not_live and isinstance(bird, str):
        raise CommandFailed("neither calico-node nor BIRD answers on this host", output=text)
    if not_live:
        raise CommandFailed("calico-node does not answer on this host", output=text)
    if why := agent_status.why_not_ready(fields, agent_status.since_boot()):
        raise CommandFailed(f"this node is not ready: {why}", output=text)
    return text


# -- computed from what was read --------------------------------------------------------------------------------------


def describe(fields: Mapping[str, Any], bird: BirdStatus | str, now: float) -> dict[str, Any]:
    """Everything as a document: what the agent reports, and ``bird`` with its peers, or why BIRD does not answer."""
    why = agent_status.why_not_ready(fields, now)
    if isinstance(bird, str):
        said: dict[str, Any] = {"error": bird}
    else:
        peers = [{**asdict(peer), "type": peer.kind, "established": peer.established} for peer in bird.peers]
        said = {"version": bird.version, "routerID": bird.router_id, "running": bird.running, "peers": peers}
    return {"ready": not why, "why": why, "agent": dict(fields), "bird": said}


def render_agent(fields: Mapping[str, Any], now: float, look: PlainLook = PLAIN) -> str:
    """``now`` is in seconds since boot, like the times in the agent's status."""
    not_live = agent_status.why_not_live(fields, now)
    if not_live:
        served = "The CNI server answers.\n" if fields.get("cni") == ANSWERS else ""
        said = [f"  {text}\n" for text in fields.get("bgp_problems") or ()]  # of BIRD's part, if that runs alone
        return f"Calico process is not running: {not_live}\n{served}" + "".join(["\nBGP:\n", *said] if said else [])
    lines = ["Calico process is running."]
    pairs = [
        ("Node", fields.get("node", "unknown")),
        ("Ready", _toned(_describe_ready(fields, now), look)),
        ("Datastore", fields.get("datastore_error") or "in sync"),
        ("Tunnels", _describe_tunnels(fields.get("devices") or {})),
        ("MTU", fields.get("mtu", "unknown")),
        ("Routes", fields.get("routes", "unknown")),
        ("Policy", _toned(_describe_policy(fields), look)),
        ("CNI", fields.get("cni", "unknown")),
    ]
    if "flows" in fields:
        pairs.append(("Flows", fields["flows"]))
    lines += [f"{name + ':':11}{value}" for name, value in pairs]
    for heading, topic in _TOPICS:
        texts = fields.get(topic) or ()
        lines += ["", f"{heading}:", *(f"  {text}" for text in texts)] if texts else []
    policing = fields.get("policing") or {}
    notes = policing.get("notes", ())
    left_out = [text for topic in ("problems", "warnings") for text in policing.get(topic, ()) if text not in notes]
    lines += ["", "Policies that are not in force as written:", *(f"  {text}" for text in left_out)] if left_out else []
    lines += ["", "Notes on this host's packet filter:", *(f"  {text}" for text in notes)] if notes else []
    troubles: Mapping[str, str] = fields.get("troubles") or {}
    lines += ["", "Failing parts:", *(f"  {part}: {why}" for part, why in troubles.items())] if troubles else []
    return "\n".join(lines) + "\n"


def describe_recorder(said: Mapping[str, Any]) -> str:
    """What the flow recorder says of itself, in a line."""
    oldest = said["oldest"]
    since = f", since {datetime.fromtimestamp(oldest).astimezone():%Y-%m-%d %H:%M:%S}" if oldest else ""
    lost = ", ".join(f"{count} {source}" for source, count in said["lost"].items() if count) or "nothing"
    troubles = _describe_export(said.get("export") or {}) + "".join(f"; {text}" for text in said["troubles"])
    differ = f"; {said['disagreed']} WERE DECIDED OTHERWISE than by the rules in force" if said["disagreed"] else ""
    if missing := said.get("unaccounted"):
        differ += f"; {missing} packets that rules have counted were NEITHER RECORDED NOR LOST"
    dropped, forgotten = said["without_room"]
    if dropped or forgotten:
        differ += f"; conntrack's table was full: {dropped} packets dropped, {forgotten} connections forgotten early"
    return f"{said['allowed']} allowed and {said['denied']} denied recorded{since}, lost: {lost}{differ}{troubles}"


def _describe_export(said: Mapping[str, Any]) -> str:
    if "received" not in said:
        return ""
    figures = f"{said['received']} acknowledged, {said['queue']} waiting, {said['lost']} lost"
    plain = " (no TLS is set: unencrypted, not checked)" if said["plain"] else ""
    waits = "" if said["connected"] or said["trouble"] else " (not connected yet)"
    trouble = f"; {said['trouble']}" if said["trouble"] else ""
    return f"; exported to {said['server']}{plain}{waits}: {figures}{trouble}"


def _toned(text: str, look: PlainLook) -> str:
    return look.toned(text, BAD if text.startswith("NOT ENFORCED") else tone_of(text))


def _describe_ready(fields: Mapping[str, Any], now: float) -> str:
    why = agent_status.why_not_ready(fields, now)
    return f"no: {why}" if why else "yes"


def _describe_tunnels(devices: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {address or '(no address yet)'}" for name, address in devices.items()) or "none"


def _describe_policy(fields: Mapping[str, Any]) -> str:
    policing, count = fields.get("policing") or {}, fields.get("policies") or 0
    if policing.get("in_force"):
        return str(policing.get("sentence"))
    if not count:
        return "none exists"
    why = f" ({policing['sentence']})" if policing.get("sentence") else ""
    return f"NOT ENFORCED on this node, although {count} network policies exist{why}"


def render_bird(bird: BirdStatus | str, fields: Mapping[str, Any], now: datetime, look: PlainLook = PLAIN) -> str:
    """``bird`` is BIRD's status, or why it could not be read; what the agent says about BGP comes first."""
    word = fields.get("bgp")
    head = f"BGP: {word}\n\n" if word else ""
    if isinstance(bird, str):
        if fields.get("backend") in ("vxlan", "none"):
            return head + f"There is no BGP on this node: CALICO_NETWORKING_BACKEND is {fields['backend']}.\n"
        return head + f"BIRD is not running: {bird}\n"
    lines = [f"BIRD {bird.version}, router ID {bird.router_id or 'unknown'}"]
    lines += ["A graceful restart is under way."] if bird.recovering else []
    lines += [] if bird.running else ["BIRD is starting or shutting down."]
    tables = [render_family(version, bird.peers, now, look) for version in (4, 6)]
    return head + "\n".join(lines) + "\n\n" + "\n".join([*tables, *_ends(bird.peers, fields)])


def _ends(peers: Sequence[PeerStatus], fields: Mapping[str, Any]) -> list[str]:
    """When and why the sessions ended the last times."""
    known: Mapping[str, Any] = fields.get("bgp_ends") or {}
    lines = [
        f"  {end['time'].replace('T', ' ')}  {peer.address or peer.name}: {end['reason']}"
        for peer in peers
        for end in known.get(peer.name, ())
    ]
    return ["\n".join(["Sessions that ended, the last three times of each:", *sorted(lines)]) + "\n"] if lines else []


def render_family(version: int, peers: Sequence[PeerStatus], now: datetime, look: PlainLook = PLAIN) -> str:
    rows = [_row(peer, now) for peer in peers if peer.version == version]
    table = look.box(_HEADINGS, rows, right=(6, 7)) if rows else f"No IPv{version} peers found.\n"
    return f"IPv{version} BGP status\n{table}"


def _row(peer: PeerStatus, now: datetime) -> tuple[str, ...]:
    since = _parse_time(peer.since)
    return (
        peer.address,
        peer.kind,
        "up" if peer.established else "start" if peer.state != "Down" else "down",
        _render_since(since, now) if since is not None else peer.since,
        f"{peer.state} {peer.last_error}".strip(),
        render_span(now - since) if since is not None and peer.established else "",
        str(peer.imported),
        str(peer.exported),
    )


def _parse_time(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None


def _render_since(since: datetime, now: datetime) -> str:
    """The time of day, or the date if it is longer ago, as in BIRD's own tables."""
    return since.strftime("%H:%M:%S" if now - since < timedelta(hours=23) else "%Y-%m-%d")


def render_span(span: timedelta) -> str:
    """The two greatest units of a time span: "3d4h", "2h5m", "7m12s"."""
    seconds = max(0, int(span.total_seconds()))
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), len(parts) - 1)
    return "".join(f"{count}{unit}" for count, unit in parts[first : first + 2])
