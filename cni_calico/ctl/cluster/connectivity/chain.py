"""A host's installed CNI network, called as a runtime calls it: each plugin of its list, one after the other.

Rule: the installed configuration and the installed executables are tried, not this program's own modules.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cni_calico.bounded import parse_json
from cni_calico.ctl.input.files import read_file
from cni_calico.ctl.session import CommandFailed
from cni_calico.deadline import Deadline
from cni_calico.errors import InvalidConfig
from cni_calico.kernel.plugin_calls import attachment_variables, call_plugin, find_plugin

INTERFACE = "eth0"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TYPE = "calico"
_WHAT = "network configuration"


@dataclass(frozen=True, slots=True)
class InstalledNetwork:
    """A list of plugins. ``directories`` is where their executables are."""

    name: str
    version: str
    plugins: Sequence[Mapping[str, Any]]
    directories: str


def find_network(path: str, directories: str) -> InstalledNetwork:
    """The network of the file ``path``, or the first in the directory ``path`` that is Calico's.

    Raises InvalidConfig, CommandFailed if there is none.
    """
    if os.path.isfile(path):
        return parse_network(read_file(path, what=_WHAT), path, directories)
    for name in _list(path):
        if name.endswith((".conflist", ".conf", ".json")):
            found = parse_network(read_file(f"{path}/{name}", what=_WHAT), f"{path}/{name}", directories)
            if any(plugin.get("type") == _TYPE for plugin in found.plugins):
                return found
    raise CommandFailed(f"cannot check the network: no network of Calico is configured in {path}")


def _list(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError as e:
        why = f"cannot check the network: no network of Calico is configured in {directory}: {e.strerror}"
        raise CommandFailed(why) from e


def parse_network(text: str, path: str, directories: str) -> InstalledNetwork:
    """Raises InvalidConfig."""
    try:
        document = parse_json(text, path)
    except ValueError as e:
        raise InvalidConfig(f"cannot read network configuration {path}: {e}") from e
    plugins = document.get("plugins", [document]) if isinstance(document, dict) else []
    if not isinstance(plugins, list) or not plugins or not all(map(_is_plugin, plugins)):
        raise InvalidConfig(f"cannot read network configuration {path}: expected an object with plugins, or with type")
    return InstalledNetwork(str(document.get("name")), str(document.get("cniVersion")), plugins, directories)


def _is_plugin(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str)


@dataclass(frozen=True, slots=True)
class Attached:
    """A container in a network namespace, as its runtime knows it; ``environ`` says where this host's agent is."""

    network: InstalledNetwork
    container: str
    netns: str
    environ: Mapping[str, str] = field(default_factory=dict)

    def add(self, deadline: Deadline) -> list[str]:
        """Attach the container; returns its addresses. Raises CommandFailed, KernelError."""
        result: Mapping[str, Any] = {}
        for plugin in self.network.plugins:
            result = self._call("ADD", plugin, result, deadline)
        return [str(ip.get("address")).partition("/")[0] for ip in result.get("ips") or ()]

    def delete(self, deadline: Deadline) -> None:
        """Detach the container. Raises CommandFailed, KernelError."""
        for plugin in reversed(self.network.plugins):
            self._call("DEL", plugin, {}, deadline)

    def _call(
        self, command: str, plugin: Mapping[str, Any], result: Mapping[str, Any], deadline: Deadline
    ) -> Mapping[str, Any]:
        document = {"cniVersion": self.network.version, "name": self.network.name, **plugin}
        if result:
            document["prevResult"] = result
        variables = attachment_variables(
            container=self.container,
            netns=self.netns,
            interface=INTERFACE,
            directories=self.network.directories.split(":"),
        )
        environ = {**variables, **self.environ, "PATH": SEARCH_PATH}
        answer = call_plugin(self._executable(plugin["type"]), command, document, environ, deadline)
        if answer.why:
            raise CommandFailed(
                f"the network does not work: {command} of CNI plugin {plugin['type']} fails: {answer.why}"
            )
        return answer.document

    def _executable(self, name: str) -> str:
        found = find_plugin(name, self.network.directories.split(":"))
        if not found:
            raise CommandFailed(
                f"the network does not work: CNI plugin {name} is not installed in {self.network.directories}"
            )
        return found
