"""Two workloads whose names give one interface name: the interface is the one's that its alias names, in both packet
filters. Their names are real ones with the same first 44 bits of SHA-1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.model.names import kubernetes_veth, owner_text, signed_alias
from tests.deadlines import until
from tests.netns.policing.lab import NODE, Lab, lab
from tests.netns.policing.test_engine import TIER
from tests.netns.policing.test_standing import FILTERS

pytestmark = [
    pytest.mark.netns,
    pytest.mark.never_excused,
    pytest.mark.unrecorded("which of two records of an interface counts the naive evaluator does not know"),
]

OWNER, RIVAL = ("shop", "web-3430785"), ("tenant", "job-2308550")
INTERFACE = "calia75d02016cd"
DIGEST = hashlib.sha1(b"calnet/c1/eth0").hexdigest()
OURS = signed_alias(DIGEST, owner_text("k8s", *OWNER))
KINDS = {"ours": OURS, "an older version's": f"cni-calico:{DIGEST}", "none": ""}


@pytest.fixture(params=list(FILTERS))
def contested(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """The owner lets only port 80 in, the rival everything; "a" sends. Only the owner has an interface."""
    with lab(tmp_path) as made:
        made.always = FILTERS[request.param]
        made.put("Tier", "default", TIER)
        for space in ("default", OWNER[0], RIVAL[0]):
            made.put_profile(f"kns.{space}")
        made.add("a", "10.65.0.1", "fd00::1")
        made.connect("owner", INTERFACE, "10.65.0.2", "fd00::2")
        allow = {"action": "Allow", "protocol": "UDP", "destination": {"ports": [80]}}
        made.put("GlobalNetworkPolicy", "closed", {"selector": "app == 'web'", "ingress": [allow]})
        yield made


def put_record(node: Lab, pod: tuple[str, str], address: str, **labels: str) -> None:
    """The record of a pod on this node whose name gives the interface; ``address``: what it says that it has."""
    namespace, name = pod
    spec = {
        "orchestrator": "k8s",
        "node": NODE,
        "pod": name,
        "containerID": "c1",
        "endpoint": "eth0",
        "ipNetworks": [f"{address}/32"],
        "profiles": [f"kns.{namespace}"],
        "interfaceName": INTERFACE,
    }
    given = {"projectcalico.org__namespace": namespace, "projectcalico.org__orchestrator": "k8s"}
    node.put("WorkloadEndpoint", f"{NODE}-k8s-{name.replace('-', '--')}-eth0", spec, namespace, **given, **labels)


def set_alias(node: Lab, alias: str) -> None:
    node.host.do("link", "set", INTERFACE, "alias", alias)


def open_ports(node: Lab) -> list[int]:
    """Of the owner, as "a" sees them."""
    return [port for port in (80, 81) if node.passes("a", "owner", port)]


def is_closed(node: Lab) -> bool:
    out = any(node.passes("owner", "a", 80, version=version) for version in (4, 6))
    return not open_ports(node) and not out and not node.passes("a", "owner", 80, version=6)


def problems(node: Lab) -> str:
    return "\n".join(node.standing().get("problems", ()))


def until_said(node: Lab, *texts: str) -> None:
    until(lambda: all(text in problems(node) for text in texts), f"the status says {texts}")


def test_the_names_collide() -> None:
    assert kubernetes_veth(*OWNER) == kubernetes_veth(*RIVAL) == INTERFACE


@pytest.mark.parametrize("rival_first", [False, True])
def test_the_alias_decides(contested: Lab, rival_first: bool) -> None:
    """Whoever's record is smaller or came first; with the owner's record gone nobody gets the interface."""
    set_alias(contested, OURS)
    if rival_first:
        put_record(contested, RIVAL, "10.65.0.9")
    contested.start()
    contested.until_in_force(policies=0)
    if rival_first:
        until_said(contested, "/".join(RIVAL), "/".join(OWNER), "closed")
        assert is_closed(contested)
    put_record(contested, OWNER, "10.65.0.2", app="web")
    contested.until_in_force(endpoints=2, policies=1)
    assert open_ports(contested) == [80]
    put_record(contested, RIVAL, "10.65.0.9")
    until_said(contested, "/".join(RIVAL), f"is {'/'.join(OWNER)}'s")
    assert open_ports(contested) == [80] and contested.standing()["counts"]["disputed"] == 1
    assert "/".join(RIVAL) in contested.log()
    contested.remove("WorkloadEndpoint", f"{NODE}-k8s-{OWNER[1].replace('-', '--')}-eth0", OWNER[0])
    until_said(contested, "closed")
    assert is_closed(contested)


@pytest.mark.parametrize("kind", ["an older version's", "none"])
def test_two_without_a_proof_are_closed(contested: Lab, kind: str) -> None:
    """One alone has the interface, as upstream's pods do; of two nobody, until the alias or the records say more."""
    set_alias(contested, KINDS[kind])
    put_record(contested, OWNER, "10.65.0.2", app="web")
    contested.start()
    contested.until_in_force(endpoints=2, policies=1)
    assert open_ports(contested) == [80]
    put_record(contested, RIVAL, "10.65.0.9")
    until_said(contested, "/".join(RIVAL), "/".join(OWNER), "closed")
    assert is_closed(contested)
    set_alias(contested, OURS)
    contested.until_in_force(endpoints=2, policies=1)
    assert open_ports(contested) == [80]


def test_an_interface_that_comes_later(contested: Lab) -> None:
    """The rival's record is there before any interface; the owner's comes up with its alias in one step."""
    contested.host.do("link", "delete", INTERFACE)
    put_record(contested, RIVAL, "10.65.0.9")
    contested.start()
    contested.until_in_force(endpoints=2)
    contested.host.do("link", "add", INTERFACE, "type", "veth", "peer", "name", "gone0")
    contested.host.do("link", "set", INTERFACE, "alias", OURS, "up")
    until_said(contested, "closed", "/".join(OWNER))
    put_record(contested, OWNER, "10.65.0.2", app="web")
    contested.until_in_force(endpoints=2, policies=1)
    contested.host.do("link", "set", INTERFACE, "down")
    contested.host.do("link", "set", INTERFACE, "name", "renamed0")
    contested.until_in_force(endpoints=1, disputed=1)
