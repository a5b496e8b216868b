"""STATUS of calico: address management's own answer (plugin/ipam/status.py), then the delegated IPAM plugin's."""

from __future__ import annotations

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.ipam.status import require_available


def status(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    """Raises CalicoError with code 50 or 51, or the delegate's own error."""
    require_available(conf, services, deadline)
    if conf.ipam.type and not conf.ipam.is_calico:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(call, conf, services, deadline, command="STATUS")
