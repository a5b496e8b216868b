"""One call, from its Call to its Answer: parse, run the verb's handler, turn the outcome into a CNI result or error.

Rule: nothing escapes. Errors of our tree become their CNI error; anything else is a bug, logged with its trace and
answered as InternalError. The whole call has one deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.cni.answer import NOTHING, Answer, answer_document, answer_error
from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf, parse_json, parse_netconf, parse_version
from cni_calico.cni.versions import CURRENT, SUPPORTED, VERSION_ANSWER
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DecodeFailure, InternalError, TryAgain
from cni_calico.log import Log
from cni_calico.model.names import logged_id
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task

CALL_TIMEOUT_S = 60.0


class Declined(Exception):
    """The process cannot serve the call exactly as its caller would, as ``services.begin`` found, or cannot wait for
    what it waits for; so the caller must serve it.
    """


Handler = Callable[[Task], Mapping[str, Any] | None]


def run_call(
    call: Call, services: Services, handlers: Mapping[str, Handler], *, timeout_s: float = CALL_TIMEOUT_S
) -> Answer:
    """The answer to a call. Raises only Declined, with nothing done, or everything undone."""
    version = CURRENT
    try:
        if call.command == "VERSION":
            return _answer_version(call.stdin)
        document = parse_json(call.stdin)
        version = str(document.get("cniVersion") or CURRENT)
        version = parse_version(document, call.command)
        conf = parse_netconf(document, call.environ, call.command)
        services.log = _log_of(conf, call, services)
        deadline = Deadline.after(min(timeout_s, services.timeout_s))
        services.begin(conf, deadline)
        result = handlers[call.command](Task(call, conf, services, services.datastore(conf.datastore), deadline))
        return NOTHING if result is None else answer_document(result)
    except Declined:
        raise
    except CalicoError as e:
        services.note_failure(e)
        _log_failure(call, services, e)
        return answer_error(e, version)
    except Exception as e:
        if lacking := services.note_failure(e):
            short = TryAgain(f"cannot finish {call.command}: this host is short of {lacking}")
            _log_failure(call, services, short)
            return answer_error(short, version)
        return _answer_bug(call, services, e, version)


def _answer_version(stdin: bytes) -> Answer:
    try:
        version = parse_json(stdin).get("cniVersion") if stdin.strip() else None
    except DecodeFailure:
        version = None  # a runtime asks for VERSION in order to learn which versions it may use
    return Answer(0, VERSION_ANSWER % (version if version in SUPPORTED else CURRENT) + "\n")


def _log_of(conf: NetConf, call: Call, services: Services) -> Log:
    section = conf.log
    try:
        path = services.files.path(section.file_path) if section.file_path else ""
    except OSError:  # a log that cannot be written never fails a call
        path = ""
    return Log(
        section.level,
        path,
        max_size_mb=section.file_max_size_mb,
        max_age_days=section.file_max_age_days,
        max_count=section.file_max_count,
        stderr=services.stderr,
        context=f"{call.command} {logged_id(call.container_id) or '-'} {call.ifname or '-'}: ",
    )


def _log_failure(call: Call, services: Services, error: CalicoError) -> None:
    services.log.error(
        f"failed with code {error.code}: {error.message}" + (f" ({error.details})" if error.details else "")
    )


def _answer_bug(call: Call, services: Services, error: Exception, version: str) -> Answer:
    services.log.failure("unexpected failure", error)
    return answer_error(
        InternalError(
            f"cannot finish {call.command}: unexpected {type(error).__name__}",
            details="this is a defect in cni-calico; the log has the trace",
        ),
        version,
    )
