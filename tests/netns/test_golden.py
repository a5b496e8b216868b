"""The networks of pods, command for command as upstream's plugin left them (tests/golden/vectors)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.plugin.network.plan import PodPlan
from tests.deadlines import until
from tests.netns.namespaces import Namespace
from tests.netns.network import add, differences

pytestmark = pytest.mark.netns

VECTOR = Path(__file__).parent.parent / "golden" / "vectors" / "k8s-pod-netstate.txt"
# what only says which machine it is: numbers of interfaces and namespaces, sizes of offloads
_NOISE = (
    (re.compile(r"^\d+: "), ""),
    (re.compile(r"@if\d+"), "@if"),
    (re.compile(r" link-netns(id)? \S+"), ""),
    (re.compile(r" (gso|gro|tso)_\w+ \d+"), ""),
    (re.compile(r" nodad\b"), ""),  # ours: the address can be used as soon as it is there
    (re.compile(r"\s+"), " "),
)


@dataclass(frozen=True)
class Sample:
    """One pod of the file: what each command printed for it, and the plan that describes it."""

    sections: dict[str, list[str]]
    plan: PodPlan


def lines(text: str) -> list[str]:
    found = []
    for line in text.splitlines():
        for pattern, replacement in _NOISE:
            line = pattern.sub(replacement, line)
        if line.strip():
            found.append(line.strip())
    return found


def sample(pod: str, addresses: tuple[str, ...]) -> Sample:
    text = VECTOR.read_text()
    part = text[text.index(f"# pod vec/{pod} on ") :].split("\n# pod vec/")[0]
    blocks = re.split(r"^## (.*)$", part, flags=re.MULTILINE)[1:]
    sections = {title: lines(body) for title, body in zip(blocks[::2], blocks[1::2], strict=True)}
    host = next(re.search(r"cali\w+", title).group() for title in sections if title.startswith("node: ip -d"))
    mac = re.search(r"link/ether (\S+)", "\n".join(sections["pod: ip -d link show"]))
    assert mac is not None
    raw = bytes.fromhex(mac[1].replace(":", ""))
    return Sample(sections, PodPlan(host, "eth0", 1500, tuple(map(ip_address, addresses)), mac=raw))


SAMPLES = {
    "dual": sample("dual", ("10.65.104.0", "fd00:65::6800")),
    "plain": sample("plain", ("10.65.99.0",)),
}


@pytest.mark.parametrize("pod", SAMPLES)
def test_same_state_as_upstream(host_ns: Namespace, pod_ns: Namespace, pod: str) -> None:
    sections, plan = SAMPLES[pod].sections, SAMPLES[pod].plan
    mac, created, _ = host_ns.call(add, plan, pod_ns.path)
    assert (bytes.fromhex(mac.replace(":", "")), created) == (plan.mac, True)
    for namespace, name in ((pod_ns, "eth0"), (host_ns, plan.host_ifname)):
        until(lambda ns=namespace, n=name: "fe80::" in ns.run("ip", "addr", "show", n).stdout, f"link-local on {name}")
        until(lambda ns=namespace, n=name: "tentative" not in ns.run("ip", "addr", "show", n).stdout, "no tentative")

    def printed(namespace: Namespace, command: str) -> list[str]:
        return lines(namespace.run(*command.split()).stdout)

    for command in (
        "ip -d link show",
        "ip addr show",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "ip rule",
    ):
        assert sorted(printed(pod_ns, command)) == sorted(sections[f"pod: {command}"]), command
    for command in (f"ip -d link show {plan.host_ifname}", f"ip addr show {plan.host_ifname}"):
        assert printed(host_ns, command) == sections[f"node: {command}"], command
    for command in ("ip -4 route show", "ip -6 route show"):
        wanted = [line for line in sections[f"node: {command}"] if f" {plan.host_ifname} " in f"{line} "]
        assert [line for line in printed(host_ns, command) if plan.host_ifname in line] == wanted, command


@pytest.mark.parametrize("pod", SAMPLES)
def test_same_sysctls_as_upstream(host_ns: Namespace, pod_ns: Namespace, pod: str) -> None:
    sections, plan = SAMPLES[pod].sections, SAMPLES[pod].plan
    host_ns.call(add, plan, pod_ns.path)
    for side, namespace in (("pod", pod_ns), ("node", host_ns)):
        wanted = dict(line.split(" = ") for line in sections[f"{side}: sysctl"])
        if side == "node":
            wanted = {name: value for name, value in wanted.items() if f".{plan.host_ifname}." in name}
        found = dict(line.split(" = ") for line in lines(namespace.run("/sbin/sysctl", *wanted).stdout))
        assert found == wanted


def test_the_pod_knows_its_gateway_for_ever(host_ns: Namespace, pod_ns: Namespace) -> None:
    """Ours beyond upstream's: proxy ARP does not answer on a host without a matching route."""
    host_ns.call(add, SAMPLES["plain"].plan, pod_ns.path)
    found = [entry for entry in pod_ns.ip("neigh", "show") if entry["dst"] == "169.254.1.1"]
    assert [(entry["lladdr"], entry["state"]) for entry in found] == [("ee:ee:ee:ee:ee:ee", ["PERMANENT"])]


@pytest.mark.parametrize("pod", SAMPLES)
def test_check_agrees(host_ns: Namespace, pod_ns: Namespace, pod: str) -> None:
    host_ns.call(add, SAMPLES[pod].plan, pod_ns.path)
    assert host_ns.call(differences, SAMPLES[pod].plan, pod_ns.path) == ()
