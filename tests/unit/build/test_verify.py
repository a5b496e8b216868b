"""build/release/verify.sh on release directories, with openssl alone: what is right, what is wrong, and how it says so.

The signatures are openssl's own, in the form that cosign writes; tests/e2e/publishing checks real ones of cosign.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.releases import VERSION, make_releases

sys.path.insert(0, str(ROOT / "build" / "release"))

from join import join
from published import Published

VERIFY = ROOT / "build/release/verify.sh"


def run(*words: str | Path, **environment: str) -> tuple[int, str]:
    """Status, and what was said."""
    done = subprocess.run(
        [VERIFY, *words], capture_output=True, text=True, timeout=60, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout + done.stderr


def make_key(directory: Path, name: str) -> Path:
    """The public half; the private one has no suffix."""
    private, public = directory / name, directory / f"{name}.pub"
    options = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(private)]
    subprocess.run(["openssl", "genpkey", *options], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)], check=True)
    return public


def sign(spoilt: Path, public: Path) -> None:
    sums = spoilt / "SHA256SUMS"
    command = ["openssl", "dgst", "-sha256", "-sign", str(public.with_suffix("")), str(sums)]
    signature = subprocess.run(command, check=True, capture_output=True).stdout
    (spoilt / "SHA256SUMS.sig").write_bytes(signature)
    digest = base64.b64encode(hashlib.sha256(sums.read_bytes()).digest()).decode()
    message = {
        "messageDigest": {"algorithm": "SHA2_256", "digest": digest},
        "signature": base64.b64encode(signature).decode(),
    }
    bundle = {
        "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
        "verificationMaterial": {"publicKey": {"hint": "x"}},
        "messageSignature": message,
    }
    (spoilt / "SHA256SUMS.sigstore.json").write_text(json.dumps(bundle))


def add_line(spoilt: Path) -> None:
    with (spoilt / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  more\n")


@pytest.fixture(scope="module")
def two_keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    directory = tmp_path_factory.mktemp("keys")
    return make_key(directory, "ours"), make_key(directory, "other")


@pytest.fixture(scope="module")
def signed_release(two_keys: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("release")
    join(directory / "out", make_releases(directory / "made", Published()), Published(), Path("/nonexistent"))
    sign(directory / "out", two_keys[0])
    return directory / "out"


@pytest.fixture
def spoilt(signed_release: Path, tmp_path: Path) -> Path:
    """A copy to spoil."""
    return Path(shutil.copytree(signed_release, tmp_path / "release"))


def test_right(signed_release: Path, two_keys: tuple[Path, Path]) -> None:
    ours, other = two_keys
    assert run("--key", ours, signed_release) == (0, f"{signed_release}: signed, and every file is as signed\n")
    assert run("--key", other, "--key", ours, f"{signed_release}/")[0] == 0, "one of several keys"
    assert run("--unsigned", signed_release) == (0, "")
    name = f"cni-calico-{VERSION}-images.tar"
    assert run("--key", ours, signed_release / name) == (0, f"{signed_release / name}: signed, and as signed\n")


def test_one_file_needs_only_the_list_beside_it(
    signed_release: Path, two_keys: tuple[Path, Path], tmp_path: Path
) -> None:
    for name in ("calico.yaml", "SHA256SUMS", "SHA256SUMS.sig"):
        shutil.copy(signed_release / name, tmp_path)
    assert run("--key", two_keys[0], tmp_path / "calico.yaml")[0] == 0
    (tmp_path / "calico.yaml").write_bytes((signed_release / "calico.yaml").read_bytes()[:-1])
    status, said = run("--key", two_keys[0], tmp_path / "calico.yaml")
    assert status == 1 and "only a part was fetched" in said
    (tmp_path / "mine.yaml").write_text("x")
    status, said = run("--key", two_keys[0], tmp_path / "mine.yaml")
    assert status == 1 and "SHA256SUMS does not list mine.yaml" in said


def test_a_file_with_several_keys_and_the_one_beside_the_script(
    signed_release: Path, two_keys: tuple[Path, Path], tmp_path: Path
) -> None:
    both = tmp_path / "cni-calico.pub"
    both.write_text(two_keys[1].read_text() + two_keys[0].read_text())
    assert run("--key", both, signed_release)[0] == 0
    shutil.copy(VERIFY, tmp_path)
    done = subprocess.run([tmp_path / "verify.sh", signed_release], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    der = (
        subprocess.run(["openssl", "pkey", "-pubin", "-in", key, "-outform", "DER"], capture_output=True).stdout
        for key in (two_keys[1], two_keys[0])
    )
    assert run("--fingerprint", both) == (0, "".join(f"{hashlib.sha256(each).hexdigest()}\n" for each in der))


def unsigned(spoilt: Path) -> None:
    (spoilt / "SHA256SUMS.sig").unlink()


def no_bundle(spoilt: Path) -> None:
    (spoilt / "SHA256SUMS.sigstore.json").unlink()


def other_bundle(spoilt: Path) -> None:
    bundle = spoilt / "SHA256SUMS.sigstore.json"
    document = json.loads(bundle.read_text())
    document["messageSignature"]["messageDigest"]["digest"] = base64.b64encode(b"x" * 32).decode()
    bundle.write_text(json.dumps(document))


def other_bundle_signature(spoilt: Path) -> None:
    bundle = spoilt / "SHA256SUMS.sigstore.json"
    document = json.loads(bundle.read_text())
    document["messageSignature"]["signature"] = base64.b64encode(b"x" * 70).decode()
    bundle.write_text(json.dumps(document))


def one_byte(spoilt: Path) -> None:
    path = spoilt / f"cni-calico-{VERSION}-images.tar"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def more(spoilt: Path) -> None:
    (spoilt / "more").write_text("x")


def hidden(spoilt: Path) -> None:
    (spoilt / ".more").write_text("x")


def dangling(spoilt: Path) -> None:
    (spoilt / "more").symlink_to("/nonexistent")


def less(spoilt: Path) -> None:
    (spoilt / "crds.yaml").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unsigned, "is not signed: it has no SHA256SUMS.sig"),
        (add_line, "was changed after it was signed, or signed with another key than"),
        (no_bundle, "has no SHA256SUMS.sigstore.json"),
        (other_bundle, "is a signature of another file than SHA256SUMS"),
        (other_bundle_signature, "SHA256SUMS.sigstore.json was made with another key"),
        (one_byte, f"cni-calico-{VERSION}-images.tar is not what SHA256SUMS says"),
        (more, "has more, which SHA256SUMS does not list"),
        (hidden, "has .more, which SHA256SUMS does not list"),
        (dangling, "has more, which SHA256SUMS does not list"),
        (less, "lacks crds.yaml, which SHA256SUMS lists"),
    ],
)
def test_wrong(spoilt: Path, two_keys: tuple[Path, Path], spoil: Callable[[Path], None], said: str) -> None:
    spoil(spoilt)
    status, text = run("--key", two_keys[0], spoilt)
    assert status == 1 and said in text, text
    assert text.count("\n") == 1


def test_another_key(signed_release: Path, two_keys: tuple[Path, Path]) -> None:
    status, text = run("--key", two_keys[1], signed_release)
    assert status == 1 and "signed with another key than" in text


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"{'0' * 64}  ../../etc/passwd", "none of sha256sum"),
        (f"{'0' * 64} *calico.yaml", "none of sha256sum"),
        (f"{'0' * 64}  calico.yaml", "names calico.yaml twice"),
        (f"{'0' * 64}  -rf", "none of sha256sum"),
    ],
)
def test_a_hostile_list_is_refused_even_if_it_is_signed(
    spoilt: Path, two_keys: tuple[Path, Path], line: str, said: str
) -> None:
    with (spoilt / "SHA256SUMS").open("a") as file:
        file.write(line + "\n")
    sign(spoilt, two_keys[0])
    status, text = run("--key", two_keys[0], spoilt)
    assert status == 1 and said in text, text


def test_what_cannot_be_checked(signed_release: Path, two_keys: tuple[Path, Path], tmp_path: Path) -> None:
    key = ("--key", two_keys[0])
    for words, said in (
        ((), "what is to be checked?"),
        ((*key, tmp_path / "nothing"), "there is no"),
        ((*key, "example.org/node"), "there is no example.org/node, and it is no image either"),
        (("--key", tmp_path / "none", signed_release), "cannot read the key"),
        (("--key", signed_release / "images.txt", signed_release), "has no public key"),
        ((signed_release,), "with which key?"),
        ((*key, "--identity", "x", signed_release), "--key or --identity, not both"),
        (("--unknown",), "unknown option --unknown"),
    ):
        status, text = run(*words)
        assert status == 2 and said in text, text
    # neither cosign nor openssl
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "mktemp", "rm", "sha256sum", "grep", "cut", "sort", "uniq", "head", "env"):
        (tools / name).symlink_to(str(shutil.which(name)))
    status, text = run(*key, signed_release, PATH=str(tools))
    assert (status, text) == (2, "verify.sh: cannot check this: no openssl; install the package openssl\n")
    status, text = run("--identity", "x", signed_release, PATH=str(tools))
    assert status == 2 and "install version 3 of it" in text


def test_a_check_that_was_cut_off_proves_nothing(tmp_path: Path) -> None:
    """cosign, or whoever ends it, takes the shell that asks it along."""
    (tmp_path / "cosign").write_text("#!/bin/sh\nkill -KILL $PPID\n")
    (tmp_path / "cosign").chmod(0o755)
    script = '. "$1"; make_scratch; keys=(any); require_signature place/node sha256:0 "the image"; echo signed'
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script, "x", VERIFY], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and done.stdout == ""
    assert "the image: nobody could say whether it is signed" in done.stderr


def test_help() -> None:
    status, text = run("--help")
    assert status == 0 and text.startswith("Checks where") and "--fingerprint FILE" in text
