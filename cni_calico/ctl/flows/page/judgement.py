"""What would be decided now about a flow: ``calicoctl policy explain``, for the page.

Rule: it is the command's own answer, by the datastore that the command line names; what it cannot answer it says.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.opening import open_session
from cni_calico.ctl.policy.explain import explain
from cni_calico.errors import CalicoError

_OPTIONS = ("from", "to", "protocol", "port")
_DATASTORE = ("config", "kubeconfig", "context", "timeout", "log_level", "prog")


def judge_now(arguments: Namespace, environ: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, Any]:
    """As ``policy explain -o json``, and ``warnings``; or ``error``. ``asked``: from, to, protocol, port."""
    words = [f"--{option}={asked[option]}" for option in _OPTIONS if option in asked]
    warnings: list[str] = []
    try:
        question = parse_arguments(["policy", "explain", *words, "-o", "json"])
        for name in _DATASTORE:
            setattr(question, name, getattr(arguments, name))
        question.stdin = ""
        question.warn = question.note = lambda problem: warnings.append(str(problem))
        with open_session(question, environ) as session:
            found: dict[str, Any] = json.loads(explain(session, question))
    except CalicoError as e:
        return {"error": str(e)}
    except ModuleNotFoundError as e:  # as main says it: some programs of ours work with Kubernetes alone
        return {"error": f"cannot ask the datastore: {e.name} is not in this calicoctl"}
    return {**found, "warnings": warnings}
