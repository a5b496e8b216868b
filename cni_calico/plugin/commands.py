"""calico's verbs: ``serve(call, services) -> Answer``, the one function that the resident server and the one-shot
process both run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.plugin.call.ready import note_synced
from cni_calico.plugin.call.serve import Handler, run_call
from cni_calico.plugin.call.services import Services


def _add(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> Mapping[str, Any]:
    from cni_calico.plugin import waits
    from cni_calico.plugin.add import add

    waits.require_features(call, conf)
    waits.await_gates(conf, deadline)
    result = add(call, conf, services, deadline)
    note_synced(services)
    waits.await_policy(call, conf, services, deadline)
    _replay(conf, services)
    return result


def _delete(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    from cni_calico.plugin.delete import delete

    if delete(call, conf, services, deadline):
        _replay(conf, services)


def _replay(conf: NetConf, services: Services) -> None:
    """What an earlier DEL owes is paid by the next call that reaches the datastore."""
    if services.files.exists(f"{services.state_dir}/cni/pending-del"):
        from cni_calico.plugin.owed.pay import replay_after

        replay_after(services, conf.datastore)


def _check(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    from cni_calico.plugin.check import check

    check(call, conf, services, deadline)


def _status(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    from cni_calico.plugin.status import status

    status(call, conf, services, deadline)


def _collect(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    from cni_calico.plugin.gc import collect_garbage

    collect_garbage(call, conf, services, deadline)


HANDLERS: dict[str, Handler] = {"ADD": _add, "DEL": _delete, "CHECK": _check, "STATUS": _status, "GC": _collect}


def serve(call: Call, services: Services) -> Answer:
    """The answer of the calico executable to a call; never raises."""
    return run_call(call, services, HANDLERS)
