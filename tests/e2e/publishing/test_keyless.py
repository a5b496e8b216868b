"""A release that a workflow signs as itself, with services of this machine: signed, published, mirrored; refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.publishing.conftest import Keys, make_signed, run, succeed
from tests.e2e.publishing.identity import IDENTITY, ISSUER, Identity, vouching
from tests.e2e.publishing.registry import Registry, running
from tests.releases import VERSION

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(60), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def vouched_for(identity: Identity, cosign_keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with a key's signature and the workflow's."""
    release = make_signed(tmp_path_factory.mktemp("vouched"), cosign_keys)
    assert "SHA256SUMS: signed" in succeed("sign.sh", "--keyless", release, **identity.settings())
    return release


def test_both_signatures_are_there(vouched_for: Path, identity: Identity, cosign_keys: Keys) -> None:
    succeed("verify.sh", *identity.trust, vouched_for)
    succeed("verify.sh", *identity.trust, vouched_for / "install.sh")
    succeed("verify.sh", "--key", cosign_keys.public, vouched_for)
    # signed already: nothing is written
    before = (vouched_for / "SHA256SUMS.sigstore.json").read_bytes()
    assert succeed("sign.sh", "--keyless", vouched_for, **identity.settings()) == ""
    assert (vouched_for / "SHA256SUMS.sigstore.json").read_bytes() == before


def test_a_keys_signature_comes_first(vouched_for: Path, identity: Identity, tmp_path: Path) -> None:
    unsigned = Path(shutil.copytree(vouched_for, tmp_path / "unsigned"))
    (unsigned / "SHA256SUMS.sig").unlink()
    status, said = run("sign.sh", "--keyless", unsigned, **identity.settings())
    assert status == 1 and "has no key's signature yet" in said


def test_somebody_else(
    vouched_for: Path, identity: Identity, cosign_keys: Keys, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    trusted = ("--trusted-root", identity.trusted_root)
    for words, said in (
        (("--identity", f"{IDENTITY}x", *trusted), f"was not signed by {IDENTITY}x"),
        (("--identity", IDENTITY.replace("release.yml", "test.yml"), *trusted), "test.yml"),
        (("--identity", IDENTITY, "--issuer", "https://issuer.example", *trusted), ISSUER),
    ):
        status, found = run("verify.sh", *words, vouched_for)
        assert status == 1 and said in found, found
    with vouching(tmp_path / "others") as others:
        status, found = run("verify.sh", *others.trust, vouched_for)
        assert status == 1 and f"was not signed by {IDENTITY}" in found
    # a key alone is nobody's identity, and a changed list is nobody's
    status, found = run("verify.sh", *identity.trust, make_signed(tmp_path_factory.mktemp("key"), cosign_keys))
    assert status == 1 and f"was not signed by {IDENTITY}" in found
    changed = Path(shutil.copytree(vouched_for, tmp_path / "changed"))
    with (changed / "SHA256SUMS").open("a") as listed:
        listed.write(f"{'0' * 64}  more\n")
    status, found = run("verify.sh", *identity.trust, changed)
    assert status == 1 and f"was not signed by {IDENTITY}" in found


def test_what_is_not_said(vouched_for: Path, identity: Identity, cosign_keys: Keys, tmp_path: Path) -> None:
    none = tmp_path / "none"
    for words, said in (
        (("--identity", IDENTITY, "--trusted-root", none), f"cannot read {none}"),
        (
            ("--key", cosign_keys.public, "--trusted-root", identity.trusted_root),
            "--trusted-root belongs to --identity",
        ),
        (("--key", cosign_keys.public, "--identity", IDENTITY), "--key or --identity, not both"),
    ):
        status, found = run("verify.sh", *words, vouched_for)
        assert status == 2 and said in found, found
    settings = identity.settings()
    for name, said in (("SIGNING_CONFIG", "which SIGNING_CONFIG names"), ("TRUSTED_ROOT", f"cannot read {none}")):
        status, found = run("sign.sh", "--keyless", vouched_for, **{**settings, name: str(none)})
        assert status == 2 and said in found, found


def test_published_mirrored_and_checked_by_it(
    vouched_for: Path, identity: Identity, cosign_keys: Keys, empty_registry: Registry, tmp_path: Path
) -> None:
    settings = identity.settings()
    said = succeed("publish.sh", "--registry", empty_registry.prefix, "--keyless", vouched_for, **settings)
    assert f"node:v{VERSION} ->" in said
    names = [f"{empty_registry.prefix}/node:v{VERSION}", f"{empty_registry.prefix}/kube-controllers:v{VERSION}"]
    names.append(f"oci://{empty_registry.prefix}/charts/cni-calico:{VERSION}")
    for name in names:
        succeed("verify.sh", *identity.trust, name)
        status, found = run("verify.sh", "--key", cosign_keys.public, name)
        assert status == 1, found
        status, found = run("verify.sh", *identity.trust, "--identity", f"{IDENTITY}x", name)
        assert status == 1 and f"has no signature by {IDENTITY}x" in found
    again = succeed("publish.sh", "--registry", empty_registry.prefix, "--keyless", vouched_for, **settings)
    assert "is there: " in again and "signed\n" not in again and "pushed" not in again
    with running("crane", tmp_path / "mirror") as mirror:
        succeed("mirror.sh", *identity.trust, empty_registry.prefix, mirror.prefix)
        succeed("verify.sh", *identity.trust, f"{mirror.prefix}/node:v{VERSION}")


def test_a_workflow_that_nobody_asked_for(
    identity: Identity, cosign_keys: Keys, empty_registry: Registry, tmp_path: Path
) -> None:
    """Of somebody's branch: its own signature does not publish our release under the identity that users know."""
    release = make_signed(tmp_path, cosign_keys)
    theirs = identity.settings("somebody/cni-calico/.github/workflows/release.yml@refs/heads/main")
    succeed("sign.sh", "--keyless", release, **theirs)
    status, found = run("publish.sh", "--registry", empty_registry.prefix, "--keyless", release, **identity.settings())
    assert status == 1 and "was not signed by" in found and empty_registry.tags() == {}
