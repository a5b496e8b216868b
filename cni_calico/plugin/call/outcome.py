"""The log line about an ADD or DEL: whose it is, and its addresses and the time it took, or why it failed.

Rule: written once the caller has its answer, so that the caller never waits for the log; never on the caller's standard
error, which runtimes show to users. A failure gets one line in the server's log, whatever the network's own log is.
"""

from __future__ import annotations

import json

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.errors import TRY_AGAIN
from cni_calico.log import Log
from cni_calico.model.names import logged_id

_LINE_MAX = 500


def _whose(call: Call, name: str) -> str:
    args = call.args
    if args.is_kubernetes:
        return f"{args.pod_namespace}/{args.pod_name} "
    return f"{args.pod_name or name} " if args.pod_name or name else ""


def describe_success(call: Call, answer: Answer, seconds: float, name: str = "") -> str:
    """For example ``space/web 10.0.0.1/32 in 12.3 ms``; "" for other verbs and for failed calls.

    ``name``: the container's, where the call does not say it.
    """
    if answer.exit_code or call.command not in ("ADD", "DEL"):
        return ""
    what = ", ".join(_addresses(answer.stdout)) or "no address" if call.command == "ADD" else "removed"
    return f"{_whose(call, name)}{what} in {1000 * seconds:.1f} ms"


def _addresses(stdout: str) -> list[str]:
    """The addresses in a result of any version."""
    result = json.loads(stdout)
    listed = [str(ip["address"]) for ip in result.get("ips") or ()]
    return listed or [str(result[family]["ip"]) for family in ("ip4", "ip6") if result.get(family)]


def log_success(text: str, log: Log, server: Log | None = None) -> None:
    """``log`` is the network's, whose log file gets the line; ``server`` is the resident server's own log."""
    if not text:
        return
    log.file_only().info(text)
    if server is not None:
        server.info(f"{log.context}{text}")


def log_failure(call: Call | None, answer: Answer, server: Log, name: str = "") -> None:
    """A failed ADD or DEL in the server's log: one line with container, code and message; what a runtime is to try
    again is a warning. ``call`` None: its environment could not be read. ``name``: as for ``describe_success``.
    """
    if not answer.exit_code or (call is not None and call.command not in ("ADD", "DEL")):
        return
    error = json.loads(answer.stdout)
    code, details = error.get("code"), error.get("details")
    text = f"failed with code {code}: {error.get('msg')}" + (f" ({details})" if details else "")
    text = "".join(c if c.isprintable() else "?" for c in text)
    whose = "a call "
    if call is not None:
        whose = f"{call.command} {logged_id(call.container_id)} {call.ifname}: {_whose(call, name)}"
    server.write(
        "warning" if code == TRY_AGAIN else "error",
        whose + (text if len(text) <= _LINE_MAX else f"{text[:_LINE_MAX]}..."),
    )
