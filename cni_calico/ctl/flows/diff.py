"""``calicoctl policy diff``, with what the recorders have if somebody asks for it.

Rule: without --since and --flows no recorder is asked.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from functools import partial

from cni_calico.ctl.flows.replay import read_flows, require_one_place
from cni_calico.ctl.policy.diff import diff as compare
from cni_calico.errors import InvalidConfig


def diff(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises as ``ctl.policy.diff``, and RecorderSilent, QueryFailed."""
    require_one_place(arguments)
    if arguments.since is None and not arguments.flows:
        if arguments.host or arguments.nodes:
            raise InvalidConfig("cannot compare: --host and --node say whose recorders are asked, for --since")
        return compare(arguments, environ)
    return compare(arguments, environ, partial(read_flows, arguments, environ))
