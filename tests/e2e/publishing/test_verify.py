"""build/release/verify.sh on what registries have: what is not as it was signed ends with status 1, and why."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.publishing.conftest import Keys, cosign, make_signed, run, succeed
from tests.e2e.publishing.registry import CRANE, KINDS, Registry, running
from tests.releases import VERSION

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(60), pytest.mark.timeout(900)]

OFFLINE = '{"mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json"}'


def crane(*words: str) -> str:
    return subprocess.run([CRANE, *words], check=True, capture_output=True, text=True, timeout=60).stdout.strip()


def copied(full_registry: Registry, name: str) -> str:
    """The released image in another place, without its signatures, which a copy leaves behind."""
    target = f"127.0.0.1:{full_registry.port}/{name}/node:v{VERSION}"
    crane("copy", f"{full_registry.prefix}/node:v{VERSION}", target)
    return target


def by_digest(image: str) -> str:
    return f"{image.rpartition(':')[0]}@{crane('digest', image)}"


def signing(tmp_path: Path) -> list[str]:
    config = tmp_path / "offline.json"
    config.write_text(OFFLINE)
    return ["--yes", f"--signing-config={config}"]


def test_not_signed(full_registry: Registry, cosign_keys: Keys) -> None:
    image = copied(full_registry, "unsigned")
    assert run("verify.sh", "--key", cosign_keys.public, image) == (1, f"verify.sh: {image} is not signed\n")


def test_attested_only(full_registry: Registry, signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    """cosign verify is content with that."""
    image = copied(full_registry, "attested")
    bill = signed / f"cni-calico-{VERSION}-amd64.cdx.json"
    words = ["--key", cosign_keys.ours, *signing(tmp_path), "--type", "cyclonedx", "--predicate", bill]
    cosign("attest", *words, by_digest(image))
    cosign("verify", "--key", cosign_keys.public, "--insecure-ignore-tlog", by_digest(image))
    status, said = run("verify.sh", "--key", cosign_keys.public, image)
    assert (status, said) == (1, f"verify.sh: {image} is not signed: it has attestations only\n")


def test_another_key(full_registry: Registry, cosign_keys: Keys, tmp_path: Path) -> None:
    image = f"{full_registry.prefix}/node:v{VERSION}"
    status, said = run("verify.sh", "--key", cosign_keys.other.with_suffix(".pub"), image)
    assert status == 1 and f"{image} has no signature by" in said
    theirs = copied(full_registry, "theirs")
    cosign("sign", "--key", cosign_keys.other, *signing(tmp_path), by_digest(theirs))
    status, said = run("verify.sh", "--key", cosign_keys.public, theirs)
    assert status == 1 and f"{theirs} has no signature by" in said
    assert run("verify.sh", "--key", cosign_keys.public, "--key", cosign_keys.other.with_suffix(".pub"), image)[0] == 0


def with_signatures(full_registry: Registry, name: str, source: str) -> str:
    """The image as a mirror has it."""
    target = f"127.0.0.1:{full_registry.port}/{name}/node"
    repository, _, tag = source.rpartition(":")
    for each in (tag, *(each for each in crane("ls", repository).split() if each.startswith("sha256-"))):
        crane("copy", f"{repository}:{each}", f"{target}:{each}")
    return f"{target}:{tag}"


def test_a_tag_that_was_moved_to_another_version(
    full_registry: Registry, old_release: Registry, cosign_keys: Keys
) -> None:
    """To an image that we did sign."""
    image = with_signatures(full_registry, "moved", f"{old_release.prefix}/node:v0.0.9")
    succeed("verify.sh", "--key", cosign_keys.public, image)
    moved = f"{image.rpartition(':')[0]}:v{VERSION}"
    crane("tag", image, f"v{VERSION}")
    status, said = run("verify.sh", "--key", cosign_keys.public, moved)
    assert (status, said) == (1, f"verify.sh: the tag of {moved} was moved: what it leads to is version 0.0.9\n")
    original = crane("digest", f"{full_registry.prefix}/node:v{VERSION}")
    status, said = run("verify.sh", "--key", cosign_keys.public, f"{moved}@{original}")
    assert status == 1 and f"was moved: it leads to {crane('digest', image)}" in said


@pytest.fixture(scope="module")
def old_release(cosign_keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    directory = tmp_path_factory.mktemp("old")
    with running("crane", directory / "registry") as found:
        succeed(
            "publish.sh",
            "--registry",
            found.prefix,
            "--key",
            cosign_keys.ours,
            make_signed(directory, cosign_keys, "0.0.9"),
        )
        yield found


def test_a_tag_that_was_moved_to_another_image(full_registry: Registry, cosign_keys: Keys) -> None:
    """Of the same release: the controllers', or the one of one processor."""
    image = with_signatures(full_registry, "controllers", f"{full_registry.prefix}/kube-controllers:v{VERSION}")
    status, said = run("verify.sh", "--key", cosign_keys.public, image)
    assert (status, said) == (1, f"verify.sh: {image} was moved: it is the image kube-controllers\n")
    image = with_signatures(full_registry, "single", f"{full_registry.prefix}/node:v{VERSION}")
    crane("tag", f"{image.rpartition(':')[0]}@{crane('digest', '--platform=linux/arm64', image)}", f"v{VERSION}")
    status, said = run("verify.sh", "--key", cosign_keys.public, image)
    assert status == 1 and f"{image} is neither an image for several processors nor a chart" in said


def test_a_chart_of_another_version(full_registry: Registry, cosign_keys: Keys) -> None:
    chart = f"{full_registry.prefix}/charts/cni-calico"
    crane("tag", f"{chart}:{VERSION}", "9.9.9")
    status, said = run("verify.sh", "--key", cosign_keys.public, f"oci://{chart}:9.9.9")
    assert status == 1 and "was moved: what it leads to is version" in said
    crane("copy", f"{chart}:{VERSION}", f"127.0.0.1:{full_registry.port}/unsigned/charts/cni-calico:{VERSION}")
    status, said = run(
        "verify.sh", "--key", cosign_keys.public, f"127.0.0.1:{full_registry.port}/unsigned/charts/cni-calico:{VERSION}"
    )
    assert status == 1 and "is not signed" in said


def test_a_chart_under_another_name(full_registry: Registry, cosign_keys: Keys) -> None:
    source = f"{full_registry.prefix}/charts/cni-calico"
    other = f"127.0.0.1:{full_registry.port}/renamed/charts/node"
    for tag in crane("ls", source).split():
        crane("copy", f"{source}:{tag}", f"{other}:{tag}")
    status, said = run("verify.sh", "--key", cosign_keys.public, f"oci://{other}:{VERSION}")
    assert (status, said) == (1, f"verify.sh: {other}:{VERSION} was moved: it is the chart cni-calico\n")


def without_a_platform(index: dict[str, Any]) -> None:
    index["manifests"].pop()


def of_another_name(index: dict[str, Any]) -> None:
    index["annotations"]["org.opencontainers.image.title"] = "nodes"


def two_processors_in_one(index: dict[str, Any]) -> None:
    first, second = index["manifests"]
    second["digest"], second["size"] = first["digest"], first["size"]


def of_another_version(index: dict[str, Any]) -> None:
    index["annotations"]["org.opencontainers.image.version"] = "9.9.9"


@pytest.mark.parametrize(
    ("change", "tag", "said"),
    [
        (without_a_platform, f"v{VERSION}", "is for linux/amd64, and a release is for linux/amd64 linux/arm64"),
        (of_another_name, f"v{VERSION}", "it is the image nodes"),
        (two_processors_in_one, f"v{VERSION}", f"calls itself linux/amd64 {VERSION}"),
        (of_another_version, "v9.9.9", f"calls itself linux/amd64 {VERSION}"),
    ],
)
def test_an_index_that_lies_although_it_is_signed(
    full_registry: Registry,
    cosign_keys: Keys,
    tmp_path: Path,
    change: Callable[[dict[str, Any]], None],
    tag: str,
    said: str,
) -> None:
    """Signed by mistake: what a release is made of is checked all the same."""
    place = f"127.0.0.1:{full_registry.port}/{change.__name__}"
    index = json.loads(
        crane("manifest", with_signatures(full_registry, change.__name__, f"{full_registry.prefix}/node:v{VERSION}"))
    )
    change(index)
    put(full_registry, f"{change.__name__}/node", tag, json.dumps(index).encode())
    cosign("sign", "--key", cosign_keys.ours, *signing(tmp_path), by_digest(f"{place}/node:{tag}"))
    status, text = run("verify.sh", "--key", cosign_keys.public, f"{place}/node:{tag}")
    assert status == 1 and said in text, text


def put(full_registry: Registry, repository: str, tag: str, index: bytes) -> None:
    headers = {"Content-Type": "application/vnd.oci.image.index.v1+json"}
    address = f"http://127.0.0.1:{full_registry.port}/v2/{repository}/manifests/{tag}"
    urllib.request.urlopen(urllib.request.Request(address, index, headers, method="PUT"), timeout=30).close()


@pytest.mark.parametrize("kind", KINDS)
def test_one_byte_of_a_layer(kind: str, signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    """In the registry's own storage."""
    with running(kind, tmp_path / "registry", on_disk=True) as empty_registry:
        succeed("publish.sh", "--registry", empty_registry.prefix, "--key", cosign_keys.ours, signed)
        image = f"{empty_registry.prefix}/node:v{VERSION}"
        manifest = json.loads(crane("manifest", "--platform=linux/arm64", image))
        digest = manifest["layers"][0]["digest"].removeprefix("sha256:")
        found = [path for path in (tmp_path / "registry").rglob("*") if path.is_file() and digest in str(path)]
        (blob,) = (path for path in found if path.name in (digest, "data"))
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        blob.write_bytes(data)
        status, said = run("verify.sh", "--key", cosign_keys.public, image)
        assert status == 1 and "is not what was signed" in said, said


def test_what_is_not_there(full_registry: Registry, cosign_keys: Keys) -> None:
    for name in (f"{full_registry.prefix}/node:v9.9.9", f"{full_registry.prefix}/nodes:v1", "127.0.0.1:1/x/node:v1"):
        status, said = run("verify.sh", "--key", cosign_keys.public, name)
        assert status == 2 and f"cannot fetch {name}" in said
