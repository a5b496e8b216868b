"""Many threads, each in other namespaces at times, as in the resident server."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel import netns, sysctl
from cni_calico.kernel.netlink import links
from cni_calico.plugin.network import setup as dataplane
from cni_calico.plugin.network.plan import PodPlan
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.network import PLAN, V4, V6, add, differences, remove

pytestmark = pytest.mark.netns


def plans(count: int) -> list[PodPlan]:
    return [
        replace(PLAN, host_ifname=f"cali{i:011}", addresses=(V4 + i, V6 + i), mac=bytes((2, 0, 0, 0, 0, i)))
        for i in range(count)
    ]


def _own_namespace() -> int:
    return os.stat("/proc/thread-self/ns/net").st_ino


def _add_all(todo: Sequence[tuple[PodPlan, str]]) -> tuple[set[int], int]:
    """The namespaces that the workers ended in, and descriptors leaked."""
    before = len(os.listdir("/proc/self/fd"))

    def work(item: tuple[PodPlan, str]) -> int:
        add(*item)
        return _own_namespace()

    with ThreadPoolExecutor(8) as pool:
        ended = set(pool.map(work, todo))
    return ended, len(os.listdir("/proc/self/fd")) - before


def test_parallel_adds(host_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    wanted = plans(24)
    pods = [make_pod_ns(f"p{i}") for i in range(len(wanted))]
    home = os.stat(host_ns.path).st_ino
    ended, leaked = host_ns.call(_add_all, [(plan, pod.path) for plan, pod in zip(wanted, pods, strict=True)])
    assert (ended, leaked) == ({home}, 0)
    for plan, pod in zip(wanted, pods, strict=True):
        assert host_ns.call(differences, plan, pod.path) == ()


def _settings_seen_by_two_threads(pod_path: str) -> tuple[str | None, str | None]:
    """/proc/sys/net follows the thread: one is in the pod while the other, at the same moment, is not."""
    fd = netns.open_netns(pod_path)
    both = threading.Barrier(2, timeout=10)
    seen: dict[str, str | None] = {}

    def stay() -> None:
        both.wait()
        seen["host"] = sysctl.read(("ipv4", "ip_forward"))
        both.wait()

    thread = threading.Thread(target=stay)
    thread.start()
    with netns.inside(fd):
        both.wait()
        seen["pod"] = sysctl.read(("ipv4", "ip_forward"))
        both.wait()
    thread.join()
    return seen["host"], seen["pod"]


def test_settings_follow_the_thread(host_ns: Namespace, pod_ns: Namespace) -> None:
    pod_ns.set_sysctl("ipv4/ip_forward", "0")
    assert host_ns.call(_settings_seen_by_two_threads, pod_ns.path) == ("1", "0")


def _lose_the_way_back(pod_path: str, in_worker: bool) -> str:
    """What becomes of a thread whose own namespace cannot be entered again."""
    fd = netns.open_netns(pod_path)
    own = netns.open_own()
    outcome = "the thread went on"

    def work() -> None:
        nonlocal outcome
        outcome = "the thread ended"
        with netns.inside(fd, own):
            os.close(own)
        outcome = "the thread went on"

    if in_worker:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    else:
        work()
    return outcome


def test_a_worker_that_cannot_get_back_ends(host_ns: Namespace, pod_ns: Namespace) -> None:
    assert host_ns.call(_lose_the_way_back, pod_ns.path, True) == "the thread ended"


def test_a_process_that_cannot_get_back_ends(host_ns: Namespace, pod_ns: Namespace) -> None:
    with pytest.raises(EOFError):  # it exits at once, without an answer
        host_ns.call(_lose_the_way_back, pod_ns.path, False)


def _raise_inside(pod_path: str) -> int:
    try:
        with netns.inside(netns.open_netns(pod_path)):
            raise ValueError
    except ValueError:
        return _own_namespace()


def test_an_exception_inside_leads_back(host_ns: Namespace, pod_ns: Namespace) -> None:
    assert host_ns.call(_raise_inside, pod_ns.path) == os.stat(host_ns.path).st_ino


# -- the host's MAC ---------------------------------------------------------------------------------------------------


def _add_where_the_kernel_loses_the_mac(plan: PodPlan, path: str) -> None:
    create = links.create_veth

    def without_mac(*names: str, **options: object) -> object:
        return create(*names, **{**options, "mac": None})

    links.create_veth = without_mac
    add(plan, path)


def test_a_lost_mac_is_set_again(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(_add_where_the_kernel_loses_the_mac, PLAN, pod_ns.path)
    assert host_ns.call(differences, PLAN, pod_ns.path) == ()


def _add_where_no_mac_sticks(plan: PodPlan, path: str) -> None:
    change = links.set_link

    def without_mac(*which: object, **options: object) -> object:
        return change(*which, **{**options, "mac": None})

    links.set_link = without_mac
    dataplane._MAC_READ_BACK_S = 0.1
    _add_where_the_kernel_loses_the_mac(plan, path)


def test_a_mac_that_never_sticks(host_ns: Namespace, pod_ns: Namespace) -> None:
    with pytest.raises(KernelError, match=r"cannot set the MAC of cali\w+ to ee:ee:ee:ee:ee:ee: it reads back as"):
        host_ns.call(_add_where_no_mac_sticks, PLAN, pod_ns.path)
    assert host_ns.link(PLAN.host_ifname) is None
    assert pod_ns.link("eth0") is None


# -- settings ---------------------------------------------------------------------------------------------------------


def _write_settings() -> tuple[str | None, str | None]:
    sysctl.ensure(("ipv4", "ip_forward"), "0")
    with pytest.raises(KernelError, match=r"cannot set sysctl net\.ipv4\.nosuch: No such file or directory"):
        sysctl.write(("ipv4", "nosuch"), "1")
    with pytest.raises(KernelError, match=r"cannot set sysctl net\.ipv4\.ip_forward: Invalid argument"):
        sysctl.write(("ipv4", "ip_forward"), "much")
    sysctl.write(("ipv4", "nosuch"), "1", optional=True)
    return sysctl.read(("ipv4", "ip_forward")), sysctl.read(("ipv4", "nosuch"))


def test_settings(host_ns: Namespace) -> None:
    assert host_ns.call(_write_settings) == ("0", None)


def test_removing_many_in_parallel(host_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    wanted = plans(6)
    pods = [make_pod_ns(f"p{i}") for i in range(len(wanted))]
    for plan, pod in zip(wanted, pods, strict=True):
        host_ns.call(add, plan, pod.path)
    host_ns.call(_remove_all, [(plan, pod.path) for plan, pod in zip(wanted, pods, strict=True)])
    assert [host_ns.link(plan.host_ifname) for plan in wanted] == [None] * len(wanted)
    assert [route for route in host_ns.routes(4) if route["dst"].startswith("10.65.")] == []


def _remove_all(todo: Sequence[tuple[PodPlan, str]]) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda item: remove(*item), todo))
