"""The log line about a successful ADD or DEL: the attachment, its addresses, and the time it took.

Rule: written once the caller has its answer, so that the caller never waits for the log; never on the caller's standard
error, which runtimes show to users.
"""

from __future__ import annotations

import json

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.log import Log


def describe_success(call: Call, answer: Answer, seconds: float) -> str:
    """For example ``space/web 10.0.0.1/32 in 12.3 ms``; "" for other verbs and for failed calls."""
    if answer.exit_code or call.command not in ("ADD", "DEL"):
        return ""
    args = call.args
    whose = f"{args.pod_namespace}/{args.pod_name} " if args.is_kubernetes else ""
    what = ", ".join(_addresses(answer.stdout)) or "no address" if call.command == "ADD" else "removed"
    return f"{whose}{what} in {1000 * seconds:.1f} ms"


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
