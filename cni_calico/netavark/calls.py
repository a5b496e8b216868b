"""Calls the CNI plugins for a container of podman: ``calico``, and ``portmap`` for published ports.

Rule: the executables are those beside our own, and what a set-up has done is undone when a later step of it fails. A
tear-down tries all its steps, and its error names every step that failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import REFERENCE_PLUGIN_DIRS
from cni_calico.errors import CalicoError, DelegateFailed
from cni_calico.kernel.plugin_calls import attachment_variables, call_plugin, find_plugin
from cni_calico.netavark.documents import Membership

TIMEOUT_S = 90.0
_PORTMAP_IS = "published ports need portmap, one of the reference plugins, which a release brings"


@dataclass(frozen=True, slots=True)
class Plugins:
    """``directory`` has ``calico``; ``portmap`` is searched there and in REFERENCE_PLUGIN_DIRS."""

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
        with suppress(CalicoError):  # report the failure that caused the undo; podman calls teardown, too
            self.tear_down(netns, membership)

    def _find(self, name: str) -> str:
        found = find_plugin(name, self._directories)
        if not found:
            raise DelegateFailed(
                f"failed to find plugin {name!r} in {', '.join(self._directories)}",
                details=_PORTMAP_IS,
            )
        return found

    @property
    def _directories(self) -> tuple[str, ...]:
        return (self.directory, *REFERENCE_PLUGIN_DIRS)

    def _call(
        self, verb: str, plugin: str, netns: str, membership: Membership, document: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        arguments = ["IgnoreUnknown=1"]
        if membership.name:
            arguments.append(f"K8S_POD_NAME={membership.name}")  # as podman 4 gives it to CNI plugins
        if membership.address and verb == "ADD":
            arguments.append(f"IP={membership.address}")
        variables = attachment_variables(
            container=membership.container,
            netns=netns,
            interface=membership.interface,
            directories=self._directories,
            arguments=";".join(arguments),
        )
        given = {name: value for name, value in self.environ.items() if not name.startswith("CNI_")}
        answer = call_plugin(plugin, verb, document, {**given, **variables}, Deadline.after(TIMEOUT_S))
        if answer.why:
            raise DelegateFailed(answer.why)
        return answer.document


def _text(failure: CalicoError) -> str:
    return f"{failure}: {failure.details}" if failure.details else str(failure)
