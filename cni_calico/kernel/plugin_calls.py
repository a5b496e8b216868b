"""Calls CNI plugins as a runtime does: the configuration on stdin, the attachment in CNI_ variables.

Rule: the exit status decides whether a call succeeded. A failure is reported in the plugin's own words, if it
has any; the caller decides what it means.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.kernel.process import run

_TEXT_MAX = 300


@dataclass(frozen=True, slots=True)
class PluginAnswer:
    """``document``: the JSON object it printed, else {}; ``why`` it failed, else ""."""

    rc: int
    stdout: bytes
    document: Mapping[str, Any]
    why: str


def find_plugin(name: str, directories: Iterable[str], files: Files | None = None) -> str:
    """The path of a plugin's executable in the first directory that has it; "" if none has."""
    is_executable = (files or Files()).is_executable
    return next((path for path in (f"{directory}/{name}" for directory in directories) if is_executable(path)), "")


def attachment_variables(
    *, container: str, netns: str, interface: str, directories: Sequence[str], arguments: str = ""
) -> dict[str, str]:
    """The variables that say what is attached, and where plugins are."""
    variables = {
        "CNI_CONTAINERID": container,
        "CNI_NETNS": netns,
        "CNI_IFNAME": interface,
        "CNI_PATH": ":".join(directories),
    }
    return {**variables, "CNI_ARGS": arguments} if arguments else variables


def call_plugin(
    executable: str, command: str, configuration: Mapping[str, Any], environ: Mapping[str, str], deadline: Deadline
) -> PluginAnswer:
    """Run a plugin to its end. Raises KernelError, DeadlineExceeded."""
    stdin = json.dumps(configuration).encode()
    done = run((executable,), stdin=stdin, env={**environ, "CNI_COMMAND": command}, deadline=deadline)
    document = _parse(done.stdout)
    why = ""
    if done.rc != 0:
        why = ": ".join(str(document[key]) for key in ("msg", "details") if document and document.get(key))
        why = why or _last_line(done.stderr or done.stdout) or f"exit status {done.rc}, and no output"
    elif document is None:
        why = f"cannot read the answer of {executable}: it is not a JSON object"
    return PluginAnswer(done.rc, done.stdout, document or {}, why)


def _parse(stdout: bytes) -> Mapping[str, Any] | None:
    """None if it is something other than a JSON object."""
    if not stdout.strip():
        return {}
    try:
        document = json.loads(stdout)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:_TEXT_MAX] if lines else ""
