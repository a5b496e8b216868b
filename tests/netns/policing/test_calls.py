"""Which calls of the policy engine leave its room for one changed policy: what a newcomer has to follow there."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

import cni_calico
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.policing.enforce.filters import KernelSide, OpenFilter
from cni_calico.nodeagent.policing.feed.changes import FedRecord
from cni_calico.nodeagent.policing.rounds import Rounds
from cni_calico.nodeagent.status.policing import Standing
from cni_calico.policy.decode import reduce_record
from tests.fakes.memory_store import MemoryStore
from tests.netns.namespaces import namespace
from tests.netns.policing.lab import private_settings
from tests.unit.nodeagent.fabric import FELIX, workload

pytestmark = pytest.mark.netns

ENGINE, OTHER_ROOMS = "nodeagent.policing.", ("policy.", "netfilter.", "kernel.")
WORKLOAD = ResourceKey("WorkloadEndpoint", "n1-k8s-a-eth0", "default")
POLICY = ResourceKey("GlobalNetworkPolicy", "p")
BELOW = str(Path(cni_calico.__file__).resolve().parent) + "/"


def module_of(frame: FrameType | None) -> str:
    """The module of a call below cni_calico, "" for others."""
    path = "" if frame is None else frame.f_code.co_filename
    return path.removeprefix(BELOW).removesuffix(".py").replace("/", ".") if path.startswith(BELOW) else ""


class LeavingCalls:
    """Counts the calls, by name, from the engine to functions and methods of the rooms that it works with. Operators of
    values (``__hash__``, ``__iter__``) are none: nobody follows them.
    """

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        where, name = module_of(frame), frame.f_code.co_qualname
        if event == "call" and where.startswith(OTHER_ROOMS) and not frame.f_code.co_name.startswith("__"):
            if module_of(frame.f_back).startswith(ENGINE):
                self.found[f"{where}:{name}"] += 1


def allowing(port: int) -> dict[ResourceKey, FedRecord]:
    ingress = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": [port]}}]
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": ingress}
    return {POLICY: reduce_record(POLICY, Resource("GlobalNetworkPolicy", Metadata("p"), spec))}


def count_calls(directory: Path) -> Counter[str]:
    """Those of a round that puts a changed policy into force, for the one workload that it governs."""
    told: list[Standing] = []
    with ExitStack() as stack:
        kernel, conntrack = stack.enter_context(NfTables()), stack.enter_context(Nfnetlink())
        context = Context(private_settings(directory), MemoryStore(), SILENT, lambda _: True)
        felix = replace(FELIX, endpoint_status_prefix=str(directory), nftables_refresh_s=90)
        rounds = Rounds(context, "n1", felix, KernelSide(OpenFilter(kernel), conntrack), told.append)
        stack.callback(rounds.stop)
        rounds.receive({WORKLOAD: workload("a", "calia", "10.65.0.1/32"), **allowing(79)})
        for port in (80, 81):
            rounds.receive(allowing(port))
            rounds.calculate()
            rounds.once()
        assert told[-1].in_force and not told[-1].failing
        calls, changed = LeavingCalls(), allowing(82)
        sys.setprofile(calls)
        try:
            rounds.receive(changed)
            rounds.calculate()
            rounds.once()
        finally:
            sys.setprofile(None)
        return calls.found


def test_one_changed_policy_leaves_the_engine_nine_times(tmp_path: Path) -> None:
    """Into the graph and out of it, to the difference of tables and back, to the kernel; and two looks at files,
    because somebody may have removed a workload's status.
    """
    with namespace("calls") as ns:
        found = ns.call(count_calls, tmp_path)
    assert found == {
        "policy.graph:Graph.put": 1,
        "policy.graph:Graph.flush": 1,
        "policy.wanted:WantedPolicy.rules": 1,
        "policy.budget:count_rules": 1,
        "netfilter.difference:plan_tables": 1,
        "netfilter.tables:mirror": 1,
        "kernel.filter.nf_tables.filter:NfTables.apply": 1,
        "kernel.files:Files.names": 1,
        "kernel.files:Files.exists": 1,
    }
    assert found.total() == 9
