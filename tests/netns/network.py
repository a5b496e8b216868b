"""What tests do with the data plane: the functions under test, called as the plugin calls them, inside the host's
namespace; and readers of the result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address

from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.plugin.network.differences import Difference
from cni_calico.plugin.network.host import Host, Site
from cni_calico.plugin.network.observe import find_differences
from cni_calico.plugin.network.ownership import Claim
from cni_calico.plugin.network.plan import Address, PodPlan
from cni_calico.plugin.network.setup import Existing, apply_addresses, create_links
from cni_calico.plugin.network.teardown import PodEnds, remove_pod_network
from tests.fakes.notes import Notes

V4, V6 = ip_address("10.65.104.0"), ip_address("fd00:65::6800")
DUAL = (V4, V6)
MAC = bytes.fromhex("f2063fe2a32a")
PLAN = PodPlan("cali5f31907e6ad", "eth0", 1500, DUAL, mac=MAC)


def add(
    plan: PodPlan, pod_path: str, *, owned: Sequence[Address] | None = None, may_replace: bool = True
) -> tuple[str, bool, list[str]]:
    """Both phases; (the pod's MAC, whether a veth was made, what was logged)."""
    log, deadline = Notes(), Deadline.after(20)
    with ExitStack() as held:
        fd = netns.open_netns(pod_path)
        held.callback(os.close, fd)
        with ExitStack() as undo:
            site = Site(held.enter_context(Host()), fd, log)
            made = create_links(plan, site, undo, deadline, Existing(may_replace=may_replace))
            apply_addresses(plan, made, site, deadline, owned=lambda a: owned is None or a in owned)
            undo.pop_all()
    return made.mac, made.created, log.texts


def add_then_fail(plan: PodPlan, pod_path: str) -> None:
    """Both phases, and the undo of both, as when the endpoint's record cannot be written."""
    deadline = Deadline.after(20)
    with ExitStack() as undo:
        fd = netns.open_netns(pod_path)
        undo.callback(os.close, fd)
        site = Site(undo.enter_context(Host()), fd)
        made = create_links(plan, site, undo, deadline)
        apply_addresses(plan, made, site, deadline, owned=lambda _: True)


def links_only(plan: PodPlan, pod_path: str) -> None:
    """Phase 1 alone, kept: what a process killed between the phases leaves."""
    fd = netns.open_netns(pod_path)
    with Host() as host, ExitStack() as undo:
        create_links(plan, Site(host, fd), undo, Deadline.after(20))
        undo.pop_all()
    os.close(fd)


def remove(plan: PodPlan, pod_path: str | None, claim: Claim | None = None) -> None:
    fd = netns.open_netns(pod_path) if pod_path is not None else None
    try:
        with Host() as host:
            ends = PodEnds(plan.host_ifname, plan.pod_ifname, fd)
            remove_pod_network(host, ends, Deadline.after(20), claim or Claim())
    finally:
        if fd is not None:
            os.close(fd)


def differences(plan: PodPlan, pod_path: str) -> tuple[Difference, ...]:
    fd = netns.open_netns(pod_path)
    try:
        return find_differences(plan, fd, Deadline.after(20))
    finally:
        os.close(fd)


def with_addresses(*addresses: str) -> PodPlan:
    return replace(PLAN, addresses=tuple(ip_address(a) for a in addresses))
