"""Handles that outlast pods, read back: whose they are is never taken for somebody else's."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.lasting import (
    CONTAINER,
    IDENTITY,
    STICKY,
    VMI_NAME,
    AddressOwners,
    Identity,
    KeptHandle,
    LastingKind,
    parse_kept,
)

# words of which names consist that look like something else
WORDS = ["a", "vmi", "sts", "id", "ns", "0", "vm-1"]
labels = st.sampled_from(WORDS)
dotted = st.lists(labels, min_size=1, max_size=4).map(".".join)
containers = st.sampled_from(["c0ffee" + 58 * "0", 64 * "1"])
POD = {"node": "n1", "namespace": "ns", "pod": "p", "timestamp": "t"}


@st.composite
def identities(draw: Any) -> tuple[Identity, dict[str, str]]:
    """With what its pod's or container's allocation says."""
    kind = draw(st.sampled_from(LastingKind))
    network, namespace, name = draw(dotted), draw(labels), draw(dotted)
    if draw(st.booleans()):
        network = (network + "-" + 100 * "x")[: draw(st.sampled_from([70, 110]))]  # its handle may be shortened
    if kind is LastingKind.STATEFUL:
        name = f"{name}.{draw(st.integers(0, 99))}"
    said = {**POD, "namespace": namespace, VMI_NAME if kind is LastingKind.MACHINE else IDENTITY: name}
    if kind is LastingKind.NAMED and draw(st.booleans()):
        said = {"node": "n1", IDENTITY: name, CONTAINER: draw(containers), "interface": "eth0"}
    return Identity(kind, network, namespace, name), said


@given(identities(), st.booleans())
def test_an_identity_is_read_back(found: tuple[Identity, dict[str, str]], is_kubernetes: bool) -> None:
    identity, said = found
    handle = identity.handle_id(is_kubernetes=is_kubernetes)
    kept = parse_kept(handle, said)
    if handle.endswith(f".{identity.name}"):
        assert kept == KeptHandle(identity.kind, identity.namespace, identity.name)
    else:  # shortened: what is said of it is all there is
        assert kept == KeptHandle(identity.kind, said.get("namespace", ""), identity.name)


@given(dotted, containers | dotted, st.sampled_from(["", ".eth0"]))
def test_an_ordinary_handle_is_nobodys(network: str, container: str, interface: str) -> None:
    """Whatever its network is called."""
    assert parse_kept(f"{network}.{container}{interface}", POD) is None
    assert parse_kept(f"{network}.{container}{interface}", {"node": "n1"}) is None


@given(dotted, containers)
def test_the_oldest_releases_handles_are_nobodys(network: str, container: str) -> None:
    assert parse_kept(f"{network}.{container}", {}) is None


@given(identities())
def test_without_an_owner(found: tuple[Identity, dict[str, str]]) -> None:
    """A machine's handle alone is read right or not at all; of others what is left says whose they are."""
    identity, said = found
    handle = identity.handle_id(is_kubernetes=True)
    right = KeptHandle(identity.kind, identity.namespace, identity.name)
    left = AddressOwners({**said, STICKY: "keep"}).without(lambda owner: True)
    assert not left
    if identity.kind is LastingKind.MACHINE:
        assert left == AddressOwners()
        kept = parse_kept(handle, {})
        assert kept is not None and (kept == right or not kept.name)
    else:
        assert parse_kept(handle, left.active) == right and left.active[STICKY] == "keep"
