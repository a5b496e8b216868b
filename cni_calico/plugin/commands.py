"""calico's verbs: ``serve(call, services) -> Answer``, the one function that both the resident server and the one-shot
process run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.directories import OWED_RELEASES
from cni_calico.plugin.call.ready import note_synced
from cni_calico.plugin.call.serve import Handler, run_call
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task


def _add(task: Task) -> Mapping[str, Any]:
    from cni_calico.plugin import waits
    from cni_calico.plugin.add import add

    waits.require_features(task.call, task.conf)
    waits.await_gates(task.conf, task.deadline)
    result = add(task)
    note_synced(task.services)
    waits.await_policy(task)
    _pay_owed(task)
    return result


def _delete(task: Task) -> None:
    from cni_calico.plugin.delete import delete

    if delete(task):
        _pay_owed(task)


def _pay_owed(task: Task) -> None:
    """The next call that reaches the datastore releases what an earlier DEL still owes."""
    services = task.services
    if services.files.exists(f"{services.state_dir}/{OWED_RELEASES}"):
        from cni_calico.plugin.pay import pay_after

        pay_after(services, task.conf.datastore)


def _check(task: Task) -> None:
    from cni_calico.plugin.check import check

    check(task)


def _status(task: Task) -> None:
    from cni_calico.plugin.status import status

    status(task)


def _collect(task: Task) -> None:
    from cni_calico.plugin.gc import collect_garbage

    collect_garbage(task)


HANDLERS: dict[str, Handler] = {"ADD": _add, "DEL": _delete, "CHECK": _check, "STATUS": _status, "GC": _collect}


def serve(call: Call, services: Services) -> Answer:
    """The answer of the calico executable to a call. Never raises."""
    return run_call(call, services, HANDLERS)


def import_handlers() -> None:
    """Import what an ADD, a DEL and a CHECK need: whoever stays has it before the first call comes."""
    from cni_calico.plugin import add, check, delete
    from cni_calico.plugin.network import setup

    _ = add, check, delete, setup
