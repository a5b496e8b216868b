"""STATUS of calico: address management's own answer (plugin/ipam/status.py), then whether an external data plane
listens, then the delegated IPAM plugin's answer.
"""

from __future__ import annotations

from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.status import require_available


def status(task: Task) -> None:
    """Raises CalicoError with code 50 or 51, or the delegate's own error."""
    require_available(task)
    if task.conf.dataplane is not None:
        from cni_calico.plugin.external import require_listening

        require_listening(task)
    ipam = task.conf.ipam
    if ipam.type and not ipam.is_calico:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(task, command="STATUS")
