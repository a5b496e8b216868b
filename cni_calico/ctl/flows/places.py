"""Whose flows are shown: this host's, or those of all nodes of a cluster.

Rule: whoever shows flows asks a ``FlowPlace`` and does not know which one it is.
"""

from __future__ import annotations

import socket
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from ipaddress import ip_address
from typing import Any, Protocol

from cni_calico import directories
from cni_calico.ctl.opening import configured
from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import InvalidConfig
from cni_calico.flows.client import RecorderMisunderstood, RecorderSilent, ask
from cni_calico.flows.following import FollowedFlows
from cni_calico.flows.query import FlowQuery


class NewFlows(Protocol):
    def documents(self, asker: socket.socket) -> Iterator[dict[str, Any]]:
        """As in ``flows.following``."""


class FlowPlace(Protocol):
    """``timeout_s`` is for each piece of an answer. All raise CalicoError."""

    losses_s: float  # how often it may be asked what was lost

    def ask(self, query: FlowQuery, timeout_s: float) -> Iterator[dict[str, Any]]:
        """As ``flows.client.ask``. The last document has ``end``, and ``unanswered``: which nodes did not answer."""

    def follow(self, query: FlowQuery, timeout_s: float) -> AbstractContextManager[NewFlows]: ...

    def lost_so_far(self, timeout_s: float) -> dict[str, int]: ...


class HostFlows:
    """``path``: of the recorder's socket."""

    losses_s = 10.0

    def __init__(self, path: str) -> None:
        self._path = path

    def ask(self, query: FlowQuery, timeout_s: float) -> Iterator[dict[str, Any]]:
        self._require_services(query, timeout_s)
        return ask(self._path, query, Deadline.after(timeout_s))

    def follow(self, query: FlowQuery, timeout_s: float) -> FollowedFlows:
        self._require_services(query, timeout_s)
        return FollowedFlows(self._path, query, Deadline.after(timeout_s))

    def lost_so_far(self, timeout_s: float) -> dict[str, int]:
        status = self._status(timeout_s)
        try:
            return {str(source): int(count) for source, count in dict(status["lost"]).items()}
        except (KeyError, TypeError, ValueError) as e:
            raise RecorderMisunderstood(f"cannot read flows: what the recorder says is no status: {e}") from e

    def _status(self, timeout_s: float) -> dict[str, Any]:
        status = next(ask(self._path, FlowQuery(status=True), Deadline.after(timeout_s)), None)
        if status is None:
            raise RecorderSilent(f"cannot read flows from {self._path}: the recorder ended before its answer did")
        return status

    def _require_services(self, query: FlowQuery, timeout_s: float) -> None:
        """Raises InvalidConfig for the name of a service where the recorder knows none; as ``ask``."""
        name = _service_name(query)
        if not name:
            return
        if not self._status(timeout_s).get("services"):
            raise InvalidConfig(
                f"--service: the name {name!r} needs an API server, such as with --kubeconfig, or a node with "
                "FlowsNames=All; give its address"
            )


def _service_name(query: FlowQuery) -> str:
    """The first one that is no address, "" for none."""
    for value in (value for one in query.conditions if one.field == "service" for value in one.values):
        try:
            ip_address(value)
        except ValueError:
            return value
    return ""


def open_place(arguments: Namespace, environ: Mapping[str, str]) -> FlowPlace:
    """All nodes if an API server is named, by an option, a configuration or kubectl's own; in a pod, and without
    Kubernetes, this host. Raises InvalidConfig.
    """
    if not arguments.host:
        access = configured(arguments, environ).kubernetes
        if access.kubeconfig or access.api_root:
            from cni_calico.ctl.flows.nodes.cluster import ClusterFlows

            return ClusterFlows(access, arguments.nodes, arguments.note)
    if arguments.nodes:
        raise InvalidConfig("--node chooses nodes of a cluster: name its API server, such as with --kubeconfig")
    return HostFlows(f"{directories.run_dir(environ)}/{FLOW_SOCKET}")
