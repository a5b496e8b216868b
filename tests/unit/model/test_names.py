"""Aliases of host interfaces: what is written is read back, whatever the names, and fits into the kernel's field."""

import pytest

from cni_calico.model.names import (
    ALIAS_MAX,
    attachment_digest,
    digest_in,
    owner_in,
    owner_text,
    select_owner,
    shown_owner,
    signed_alias,
    valid_object_name,
)

DIGEST = attachment_digest("calnet", "c1", "eth0")
POD = owner_text("k8s", "space", "web-0")


def test_the_forms() -> None:
    alias = signed_alias(DIGEST, POD)
    assert alias == f"cni-calico/2:{DIGEST}/k8s/space/web-0"
    assert (digest_in(alias), owner_in(alias), shown_owner(POD)) == (DIGEST, POD, "space/web-0")
    assert (digest_in(f"cni-calico:{DIGEST}"), owner_in(f"cni-calico:{DIGEST}")) == (DIGEST, "")
    for other in ("", "an administrator's", f"calico:{DIGEST}/k8s/space/web-0"):
        assert digest_in(other) == owner_in(other) == ""


@pytest.mark.parametrize(
    "names", [("n" * 63, "p" * 253), ("n" * 63, "p" * 134), ("space", "\u00e4"), ("a\nb", "c"), ("~x", "c")]
)
def test_names_that_do_not_fit(names: tuple[str, str]) -> None:
    """They are told apart by a digest of all of them; what fits is for people."""
    owner = owner_text("k8s", *names)
    alias = signed_alias(DIGEST, owner)
    assert len(alias.encode()) <= ALIAS_MAX and owner_in(alias) == owner and alias.isprintable()
    assert owner.startswith("k8s/~") and shown_owner(owner).endswith("...")
    assert owner != owner_text("k8s", names[0], names[1] + "x") != owner_text("k8s", names[0] + "x", names[1])


def test_the_longest_that_fits() -> None:
    room = ALIAS_MAX - len(signed_alias(DIGEST, owner_text("k8s", "n", "")))
    assert not owner_text("k8s", "n", "p" * room).startswith("k8s/~")
    assert owner_text("k8s", "n", "p" * (room + 1)).startswith("k8s/~")


def test_whose_an_interface_is() -> None:
    other = owner_text("k8s", "tenant", "job")
    signed = signed_alias(DIGEST, POD)
    assert select_owner(signed, {POD, other}) == POD and select_owner(signed, {other}) == ""
    for unsigned in ("", f"cni-calico:{DIGEST}"):
        assert select_owner(unsigned, [other, other]) == other and select_owner(unsigned, [POD, other]) == ""


@pytest.mark.parametrize("name", ["a", "net1.c0ffee", "a-b.c", "0.1", "a" * 253])
def test_names_of_objects(name):
    assert valid_object_name(name)


@pytest.mark.parametrize("name", ["", "Net.c1", "net_1.c1", "a..b", ".a", "a.", "-a", "a-.b", "a.-b", "ä", "a" * 254])
def test_names_that_no_object_has(name):
    assert not valid_object_name(name)
