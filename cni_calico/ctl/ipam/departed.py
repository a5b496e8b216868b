"""Attachments of this host whose containers are gone, which its agent would release.

Rule: judged by what the agent judges by (nodeagent/runtimes/attachments.py), once and without its waiting time; only
this host shows it, so other nodes' attachments are not looked at. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cni_calico.ctl.node_datastore import read_node_name
from cni_calico.errors import KernelError
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.runtimes.attachments import Departed, find_departed, read_traces
from cni_calico.plugin.attachment import PLAIN


@dataclass(frozen=True, slots=True)
class DepartedHere:
    """``count``: of this host's attachments outside Kubernetes; 0: there is nothing to look at. ``failure``: why their
    containers could not be looked for.
    """

    node: str = ""
    count: int = 0
    found: tuple[Departed, ...] = ()
    failure: str = ""


def find_departed_here(
    endpoints_on: Callable[[str], Iterable[WorkloadEndpoint]], environ: Mapping[str, str]
) -> DepartedHere:
    """``endpoints_on``: those of a node."""
    node = read_node_name(environ)
    plain = [each for each in endpoints_on(node) if each.orchestrator == PLAIN]
    if not plain:
        return DepartedHere()
    try:
        return DepartedHere(node, len(plain), tuple(find_departed(plain, node, read_traces())))
    except KernelError as e:
        return DepartedHere(node, len(plain), failure=e.message)


def render_departed(here: DepartedHere) -> list[str]:
    if not here.count:
        return []
    lines = [f"Scanning node {here.node}, which is this host, for attachments of containers that are gone..."]
    if here.failure:
        return [*lines, f"Not known: {here.failure}"]
    lines.append(f"Found {len(here.found)} of {here.count}; the node's agent releases them after its waiting time.")
    return [*lines, *(f"  {each}: {each.why}" for each in here.found)]


def report_departed(here: DepartedHere) -> list[dict[str, str]]:
    return [{"node": here.node, "endpoint": each.record.metadata.name, "reason": each.why} for each in here.found]
