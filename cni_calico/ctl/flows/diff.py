"""``calicoctl policy diff``, with what the recorders have if somebody asks for it.

Rule: without --since and --flows no recorder is asked.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from functools import partial

from cni_calico.ctl.flows.replay import read_flows
from cni_calico.ctl.policy.diff import diff as compare


def diff(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises as ``ctl.policy.diff``, and RecorderSilent, QueryFailed."""
    if arguments.since is None and not arguments.flows:
        return compare(arguments, environ)
    return compare(arguments, environ, partial(read_flows, arguments, environ))
