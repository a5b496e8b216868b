"""What a call can know of who its container is, as labels of the endpoint that it writes.

Rule: nothing that is missing, locked or damaged fails a call or holds it up: the agent completes the labels
(nodeagent/runtimes). A container of which neither the runtime's arguments nor a store knows anything gets no labels.
The boot is noted beside them, because whatever an attachment made in the kernel ends with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cni_calico.cni.environment import Call
from cni_calico.kernel.files import Files
from cni_calico.model.names import runtimes_id
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.plugin.identity.boot import BOOT, read_boot_id
from cni_calico.plugin.identity.places import STORES

CALL_PATIENCE_S = 0.05


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """``complete``: a runtime's store has been read; other labels of identity are not the container's any more."""

    labels: Mapping[str, str] = field(default_factory=dict)
    complete: bool = False

    @property
    def name(self) -> str:
        """What people call the container; "" if that is not known."""
        if not self.labels:
            return ""
        from cni_calico.model.identity import shown_name

        return shown_name(self.labels)


def read_call_identity(call: Call, network: str, files: Files) -> CallIdentity:
    """For a container outside Kubernetes; runtimes give its name as K8S_POD_NAME, without a namespace."""
    found = None
    if runtimes_id(call.container_id) and any(map(files.exists, STORES)):
        from cni_calico.plugin.identity.stores import read_identity  # only containers of a runtime with a store need it

        found = read_identity(call.container_id, files, CALL_PATIENCE_S).identity
    if found is None and not call.args.pod_name:
        return CallIdentity()
    from cni_calico.model.identity import ContainerIdentity, plan_labels

    labels = plan_labels(found or ContainerIdentity(call.args.pod_name), network).labels
    return CallIdentity(labels, complete=found is not None)


def read_container_name(call: Call, files: Files) -> str:
    """Of an ADD's or DEL's container whose name the call does not say, as nerdctl's; "" if no store knows it."""
    if call.args.pod_name or call.command not in ("ADD", "DEL"):
        return ""
    return read_call_identity(call, "", files).name


def plan_identified(record: WorkloadEndpoint, known: CallIdentity) -> WorkloadEndpoint:
    """The endpoint with these labels, and of this boot."""
    metadata = record.metadata
    labels: Mapping[str, str] = {**metadata.labels, **known.labels}
    if known.complete:
        from cni_calico.model.identity import merge_labels

        labels = merge_labels(metadata.labels, known.labels)
    boot = read_boot_id()
    annotations = {**metadata.annotations, BOOT: boot} if boot else metadata.annotations
    return replace(record, metadata=replace(metadata, labels=labels, annotations=annotations))
