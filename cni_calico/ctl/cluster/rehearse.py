"""``calicoctl cluster rehearse``: what the agent of another version, or ours in place of upstream's, would change here.

Rule: the program of that version says it, of this host and its records as they are now; here it is found, started with
the environment of the agent that runs, and its answer is shown. That environment is taken only from a process of root's
in this network namespace, and without what would change which code the program runs. The exit status is 0 if nothing
would change, 1 if something would, 2 for trouble.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cni_calico.ctl.output.escaping import shown
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed
from cni_calico.deadline import Deadline
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import InvalidConfig
from cni_calico.kernel.process import run

DIFFERS, TROUBLE = 1, 2
PROGRAM = "calico-node"
PLACES = ("", "bin", "opt/cni/bin", "usr/bin", "usr/lib/cni-calico")
FORMAT = 1
_OUTPUT_BYTES = 64 << 20
_USAGE = 2
_PROC = Path("/proc")
_SAID_LINES = 3
_LOADERS = ("LD_", "PYTHON", "_PYI", "_MEI", "GLIBC_", "GCONV_", "MALLOC_", "LOCPATH", "NLSPATH", "PATH")


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """``pid`` 0: none runs here."""

    pid: int = 0
    environ: Mapping[str, str] | None = None


def rehearse(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises InvalidConfig, KernelError, and CommandFailed with what would change."""
    program = find_program(arguments.bundle)
    given = _environment(arguments, environ)
    done = run([program, "-rehearse"], env=given, deadline=Deadline.after(arguments.timeout), limit_bytes=_OUTPUT_BYTES)
    said = done.stderr.decode(errors="replace").strip().splitlines()
    if done.rc == _USAGE and any("unknown flag" in line for line in said):
        raise InvalidConfig(f"cannot rehearse with {program}: that version has no -rehearse")
    if done.rc:
        why = "; ".join(said[-_SAID_LINES:]) or f"it ended with status {done.rc}"
        raise CommandFailed(f"cannot rehearse with {program}: {why}", status=TROUBLE)
    document = parse_answer(done.stdout, program)
    text = render_value(document, arguments.output) if arguments.output != TABLE else render_answer(document)
    if document["trouble"] or document["uncertain"]:
        raise CommandFailed("", output=text, status=TROUBLE)
    if document["changes"] or document["denied"]:
        raise CommandFailed("", output=text, status=DIFFERS)
    return text


def find_program(bundle: str) -> str:
    """The new version's agent in a directory of executables, or in an unpacked image. Raises InvalidConfig."""
    for place in PLACES:
        path = os.path.join(os.path.abspath(bundle), place, PROGRAM)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    raise InvalidConfig(
        f"cannot rehearse: there is no {PROGRAM} in {bundle}",
        details="--with takes a directory of executables, or one that an image was unpacked to",
    )


# -- the environment --------------------------------------------------------------------------------------------------


def _environment(arguments: Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """The agent's: of a file, of the one that runs, or this command's own."""
    if arguments.environment:
        return {**environ, **read_environment(arguments.environment)}
    agent = find_agent()
    if agent.environ is None:
        arguments.note("No agent runs here: the settings are those of this command's environment.")
        return dict(environ)
    return {**_only_path(environ), **agent.environ, **account_of(agent, agent.environ)}


def _only_path(environ: Mapping[str, str]) -> dict[str, str]:
    return {"PATH": environ["PATH"]} if "PATH" in environ else {}


def read_environment(path: str) -> dict[str, str]:
    """NAME=VALUE lines, as systemd and Docker read them. Raises InvalidConfig."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise InvalidConfig(f"cannot read {path}: {e.strerror if isinstance(e, OSError) else e}") from e
    found = {}
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if not line or line.startswith(("#", ";")):
            continue
        name, equals, value = line.removeprefix("export ").partition("=")
        if not equals or not name.strip():
            raise InvalidConfig(f"cannot read {path}: line {number} is not NAME=VALUE")
        value = value.strip()
        is_quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        found[name.strip()] = value[1:-1] if is_quoted else value
    return found


def find_agent(proc: Path = _PROC) -> RunningAgent:
    """The agent of this host, ours or upstream's: what runs ``calico-node -felix``, or else any calico-node."""
    agents: list[tuple[bool, int, dict[str, str]]] = []
    for process in proc.glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            if not words[0] or not any(os.path.basename(os.fsdecode(word)) == PROGRAM for word in words[:3]):
                continue
            if b"-rehearse" in words:
                continue
            if process.stat().st_uid != 0 or os.readlink(process / "ns/net") != os.readlink(proc / "self/ns/net"):
                continue
            pairs = (os.fsdecode(one).partition("=") for one in (process / "environ").read_bytes().split(b"\0"))
            values = {name: value for name, equals, value in pairs if equals and not name.startswith(_LOADERS)}
        except OSError:
            continue  # it has ended, or is not ours to read
        agents.append((b"-felix" not in words, int(process.name), values))
    if not agents:
        return RunningAgent()
    _, pid, values = min(agents, key=lambda one: one[:2])
    return RunningAgent(pid, values)


def account_of(agent: RunningAgent, environ: Mapping[str, str], proc: Path = _PROC) -> dict[str, str]:
    """For an agent in a pod: how the API server is reached from outside of it, with its account."""
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    named = any(environ.get(name) for name in ("KUBECONFIG", "K8S_API_ENDPOINT"))
    account = proc / str(agent.pid) / "root" / SERVICE_ACCOUNT_DIR.lstrip("/")
    if not host or named or os.path.exists(f"{SERVICE_ACCOUNT_DIR}/token"):
        return {}
    try:
        token = (account / "token").read_text().strip()
    except OSError:
        return {}
    shown = f"[{host}]" if ":" in host else host
    return {
        "K8S_API_ENDPOINT": f"https://{shown}:{port}",
        "K8S_API_TOKEN": token,
        "K8S_CA_FILE": str(account / "ca.crt"),
    }


# -- the answer -------------------------------------------------------------------------------------------------------


def parse_answer(data: bytes, program: str) -> dict[str, Any]:
    """Raises CommandFailed for anything but a whole answer."""
    try:
        document = json.loads(data)
        lists = [document[name] for name in ("changes", "denied", "settingsWithoutEffect", "notes")]
        whole = all(isinstance(one, list) for one in (*lists, document["uncertain"], document["trouble"]))
        fits = document["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        whole = fits = False
    if not whole or not fits:
        raise CommandFailed(f"cannot rehearse with {program}: its answer cannot be understood", status=TROUBLE)
    return {str(name): value for name, value in document.items()}


def render_answer(document: Mapping[str, Any]) -> str:
    """For people; what is not printable in names of records is escaped."""
    return "".join(f"{shown(line)}\n" for line in _lines(document))


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    changes: dict[str, list[str]] = {}
    for change in document["changes"]:
        changes.setdefault(str(change["kind"]), []).append(str(change["what"]))
    about = f"{document.get('version', '')} on node {document.get('node', '')}"
    yield f"{about} would change:" if changes else f"{about} would change nothing."
    for kind, texts in changes.items():
        yield f"  {kind}"
        yield from (f"    {text}" for text in texts)
    denied = document["denied"]
    if denied:
        yield ""
        yield f"Connections that would not be allowed again, of {document.get('judged', 0)} that were judged:"
        for one in denied:
            yield f"  {one['from']} -> {one['to']}  {one['traffic']}  DENIED {one['why']}  ({one['seen']})"
    for title, name in (
        ("Settings without effect:", "settingsWithoutEffect"),
        ("Besides:", "notes"),
        ("Uncertain:", "uncertain"),
        ("Trouble:", "trouble"),
    ):
        if document[name]:
            yield ""
            yield title
            yield from (f"  {text}" for text in document[name])
