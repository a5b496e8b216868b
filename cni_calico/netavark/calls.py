"""Calls the CNI plugins for a container of podman: ``calico``, and ``portmap`` for published ports.

Rule: the executables are those beside our own, and what a set-up has done is undone when a later step of it fails. A
tear-down does all its steps, and its error names every one that failed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_BIN_DIR
from cni_calico.errors import CalicoError, DelegateFailed
from cni_calico.kernel.process import run
from cni_calico.netavark.documents import Membership

PLUGIN_DIRECTORIES = (CNI_BIN_DIR, "/usr/lib/cni", "/usr/libexec/cni")
TIMEOUT_S = 90.0


@dataclass(frozen=True, slots=True)
class Plugins:
    """``directory`` has ``calico``; ``portmap`` is searched there and in PLUGIN_DIRECTORIES."""

    directory: str
    environ: Mapping[str, str]

    def set_up(self, netns: str, membership: Membership) -> Mapping[str, Any]:
        """Connect the container; CNI's result. Raises CalicoError, with nothing left behind."""
        portmap = self._find("portmap") if membership.ports else ""
        result = self._call("ADD", self._find("calico"), netns, membership, membership.configuration)
        if portmap:
            try:
                self._call("ADD", portmap, netns, membership, membership.portmap(result))
            except CalicoError:
                self._undo(netns, membership)
                raise
        return result

    def tear_down(self, netns: str, membership: Membership) -> None:
        """Disconnect the container; a second time succeeds. Raises CalicoError."""
        steps = [("portmap", membership.portmap(None))] if membership.ports else []
        failures: dict[str, CalicoError] = {}
        for name, document in (*steps, ("calico", membership.configuration)):
            try:
                self._call("DEL", self._find(name), netns, membership, document)
            except CalicoError as e:
                failures[name] = e
        if len(failures) > 1:
            raise DelegateFailed("; ".join(f"{name}: {_text(failure)}" for name, failure in failures.items()))
        for failure in failures.values():
            raise failure

    def _undo(self, netns: str, membership: Membership) -> None:
        try:
            self.tear_down(netns, membership)
        except CalicoError:
            pass  # report the failure that caused the undo; podman tears down, too

    def _find(self, name: str) -> str:
        directories = (self.directory, *PLUGIN_DIRECTORIES)
        for directory in directories:
            if os.access(f"{directory}/{name}", os.X_OK):
                return f"{directory}/{name}"
        raise DelegateFailed(
            f"failed to find plugin {name!r} in {', '.join(directories)}",
            details="published ports need portmap, one of the reference plugins (Debian: containernetworking-plugins)",
        )

    def _call(
        self, verb: str, plugin: str, netns: str, membership: Membership, document: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        arguments = "IgnoreUnknown=1" + (f";IP={membership.address}" if membership.address and verb == "ADD" else "")
        given = {name: value for name, value in self.environ.items() if not name.startswith("CNI_")}
        environ = {
            **given,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": membership.container,
            "CNI_NETNS": netns,
            "CNI_IFNAME": membership.interface,
            "CNI_PATH": ":".join((self.directory, *PLUGIN_DIRECTORIES)),
            "CNI_ARGS": arguments,
        }
        done = run((plugin,), stdin=json.dumps(document).encode(), env=environ, deadline=Deadline.after(TIMEOUT_S))
        answer = _parse(plugin, done.stdout) if done.stdout.strip() else {}
        if done.rc != 0:
            text = ": ".join(str(answer[key]) for key in ("msg", "details") if answer.get(key))
            raise DelegateFailed(text or f"{plugin} failed with exit status {done.rc} and said nothing")
        return answer


def _text(failure: CalicoError) -> str:
    return f"{failure}: {failure.details}" if failure.details else str(failure)


def _parse(plugin: str, stdout: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(stdout)
    except ValueError as e:
        raise DelegateFailed(f"cannot read the answer of {plugin}: {e}") from e
    if not isinstance(answer, dict):
        raise DelegateFailed(f"cannot read the answer of {plugin}: it is no object")
    return answer
