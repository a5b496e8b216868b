"""build/release/sign.sh: a list of sums that cosign and openssl both verify, and what is not signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.publishing.conftest import Keys, cosign, make_signed, run, succeed
from tests.releases import make_releases

from join import join  # isort: skip
from published import Published  # isort: skip

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def unsigned_release(signed: Path, tmp_path: Path) -> Path:
    """Not signed yet."""
    directory = Path(shutil.copytree(signed, tmp_path / "release"))
    for name in ("SHA256SUMS.sig", "SHA256SUMS.sigstore.json"):
        (directory / name).unlink()
    return directory


def test_both_programs_accept_it(signed: Path, cosign_keys: Keys) -> None:
    sums = signed / "SHA256SUMS"
    command = ["openssl", "dgst", "-sha256", "-verify", cosign_keys.public, "-signature", f"{sums}.sig", sums]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "Verified OK\n"
    options = ["--key", cosign_keys.public, "--insecure-ignore-tlog", "--bundle", f"{sums}.sigstore.json"]
    cosign("verify-blob", *options, sums)
    succeed("verify.sh", "--key", cosign_keys.public, signed)


def test_what_is_signed_is_left_as_it_is(signed: Path, cosign_keys: Keys) -> None:
    before = {path: path.read_bytes() for path in signed.iterdir()}
    assert "is signed already" in succeed("sign.sh", "--key", cosign_keys.ours, signed)
    assert {path: path.read_bytes() for path in signed.iterdir()} == before


def test_a_wrong_passphrase(unsigned_release: Path, cosign_keys: Keys) -> None:
    status, said = run("sign.sh", "--key", cosign_keys.ours, unsigned_release, COSIGN_PASSWORD="no")
    assert (status, said) == (
        1,
        f"sign.sh: cannot open the key {cosign_keys.ours}: COSIGN_PASSWORD is not its passphrase\n",
    )
    assert not list(unsigned_release.glob("SHA256SUMS.*"))


@pytest.mark.parametrize("spoil", ["changed", "more", "less"])
def test_sums_that_do_not_fit_are_not_signed(unsigned_release: Path, cosign_keys: Keys, spoil: str) -> None:
    if spoil == "less":
        (unsigned_release / "crds.yaml").unlink()
    else:
        (unsigned_release / {"changed": "crds.yaml", "more": "more"}[spoil]).write_text("x")
    status, said = run("sign.sh", "--key", cosign_keys.ours, unsigned_release)
    assert status == 1 and ("crds.yaml" in said or "has more, which" in said)
    assert not list(unsigned_release.glob("SHA256SUMS.*"))


def test_a_key_that_others_may_read(unsigned_release: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    key = Path(shutil.copy(cosign_keys.ours, tmp_path / "open.key"))
    key.chmod(0o644)
    said = succeed("sign.sh", "--key", key, unsigned_release)
    assert f"warning: others may read {key} (mode 644): chmod 600 {key}" in said
    succeed("verify.sh", "--key", cosign_keys.public, unsigned_release)


def test_a_key_that_is_none(unsigned_release: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    (tmp_path / "no.key").write_text("x")
    (tmp_path / "no.key").chmod(0o600)
    status, said = run("sign.sh", "--key", tmp_path / "no.key", unsigned_release)
    assert status == 1 and f"cannot use the key {tmp_path / 'no.key'}" in said
    status, said = run("sign.sh", "--key", tmp_path / "absent", unsigned_release)
    assert status == 2 and "cannot read the key" in said


def test_without_a_key_the_list_needs_a_key_first(unsigned_release: Path) -> None:
    status, said = run("sign.sh", "--keyless", unsigned_release, SIGNING_IDENTITY="https://example.org/workflow")
    assert status == 1 and "has no key's signature yet" in said
    status, said = run("sign.sh", "--keyless", unsigned_release, GITHUB_WORKFLOW_REF="")
    assert status == 2 and "as whom?" in said


def test_users_have_the_keys_that_the_release_carries(cosign_keys: Keys, tmp_path: Path) -> None:
    """Two, one of which signs; a third cannot."""
    directory = tmp_path / "keys"
    directory.mkdir()
    for key in (cosign_keys.ours, cosign_keys.other):
        shutil.copy(key.with_suffix(".pub"), directory)
    prints = [succeed("verify.sh", "--fingerprint", path).strip() for path in sorted(directory.iterdir())]
    published = Published("registry.example/cni-calico", "https://example.org/releases", keys=tuple(prints))
    join(tmp_path / "out", make_releases(tmp_path / "made", published), published, directory)
    carried = tmp_path / "out/cni-calico.pub"
    assert succeed("verify.sh", "--fingerprint", carried).split() == prints
    cosign("generate-key-pair", "--output-key-prefix", tmp_path / "third")
    status, said = run("sign.sh", "--key", tmp_path / "third.key", tmp_path / "out")
    assert status == 1 and "users of this release do not have the key" in said and not list(tmp_path.glob("out/*.sig"))
    succeed("sign.sh", "--key", cosign_keys.other, tmp_path / "out")
    succeed("verify.sh", "--key", carried, tmp_path / "out")


def test_the_signature_is_of_this_list(signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    other = make_signed(tmp_path, cosign_keys, "0.2.0")
    for name in ("SHA256SUMS.sig", "SHA256SUMS.sigstore.json"):
        mixed = Path(shutil.copytree(signed, tmp_path / name))
        shutil.copy(other / name, mixed)
        status, said = run("verify.sh", "--key", cosign_keys.public, mixed)
        assert status == 1 and ("was changed after it was signed" in said or "of another file" in said)
