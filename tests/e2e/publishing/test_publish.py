"""build/release/publish.sh: what a registry and the pages have afterwards, and what is refused before a write."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import LAB_CACHE
from tests.e2e.publishing.conftest import Keys, make_signed, run, succeed
from tests.e2e.publishing.registry import Registry, environment, running
from tests.releases import VERSION, make_package

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(60), pytest.mark.timeout(900)]

NODE = f"team/cni-calico/node:v{VERSION}"


def expected(release: Path) -> dict[str, str]:
    lines = (release / "images-digests.txt").read_text().split()
    return {line.partition("@")[0].rpartition("/")[2].partition(":")[0]: line.partition("@")[2] for line in lines}


def test_what_is_there_afterwards(full_registry: Registry, signed: Path, cosign_keys: Keys) -> None:
    digests = expected(signed)
    found = full_registry.versions()
    for name, digest in digests.items():
        for tag in (f"v{VERSION}", "v0.1", "latest"):
            assert found.pop(f"team/cni-calico/{name}:{tag}") == digest
    assert list(found) == [f"team/cni-calico/charts/cni-calico:{VERSION}"]
    for name in (*(f"{name}:v{VERSION}" for name in digests), "node:latest", "node:v0.1"):
        assert "signed, with its platforms" in succeed(
            "verify.sh", "--key", cosign_keys.public, f"{full_registry.prefix}/{name}"
        )
    digest = digests["node"]
    succeed("verify.sh", "--key", cosign_keys.public, f"{full_registry.prefix}/node@{digest}")
    succeed("verify.sh", "--key", cosign_keys.public, f"{full_registry.prefix}/node:v{VERSION}@{digest}")


def statements(
    full_registry: Registry, repository: str, digest: str, kind: str, cosign_keys: Keys
) -> list[dict[str, object]]:
    name = f"{full_registry.prefix}/{repository}@{digest}"
    command = [
        "cosign",
        "verify-attestation",
        "--key",
        cosign_keys.public,
        "--insecure-ignore-tlog",
        "--type",
        kind,
        name,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return [json.loads(base64.b64decode(json.loads(line)["payload"])) for line in done.stdout.splitlines()]


def test_bills_of_materials_and_provenance_are_about_the_digests(
    full_registry: Registry, signed: Path, cosign_keys: Keys
) -> None:
    digest = expected(signed)["node"]
    index = full_registry.get(f"team/cni-calico/node/manifests/{digest}")
    bills = {
        each: json.loads((signed / f"cni-calico-{VERSION}-{each}.cdx.json").read_text()) for each in ("amd64", "arm64")
    }
    for entry in index["manifests"]:
        (found,) = statements(full_registry, "node", entry["digest"], "cyclonedx", cosign_keys)
        assert found["predicate"] == bills[entry["platform"]["architecture"]]
        assert [each["digest"]["sha256"] for each in found["subject"]] == [entry["digest"].removeprefix("sha256:")]
    found = [each["predicate"] for each in statements(full_registry, "node", digest, "cyclonedx", cosign_keys)]
    assert len(found) == 2 and all(each in found for each in bills.values())
    (provenance,) = statements(full_registry, "node", digest, "slsaprovenance1", cosign_keys)
    assert provenance["predicate"] == json.loads((signed / "provenance.json").read_text())["predicate"]


@pytest.mark.helm
def test_helm_pulls_the_chart_that_was_pushed(
    full_registry: Registry, signed: Path, cosign_keys: Keys, tmp_path: Path
) -> None:
    chart = f"oci://{full_registry.prefix}/charts/cni-calico"
    command = [LAB_CACHE / "bin/helm", "pull", chart, "--version", VERSION, "--plain-http", "-d", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    pulled, released = tmp_path / f"cni-calico-{VERSION}.tgz", signed / f"cni-calico-chart-{VERSION}.tgz"
    assert pulled.read_bytes() == released.read_bytes()
    succeed("verify.sh", "--key", cosign_keys.public, f"{chart}:{VERSION}")
    for manifest, values in (("calico.yaml", "kubernetes"), ("calico-etcd.yaml", "etcd")):
        command = [LAB_CACHE / "bin/helm", "template", "x", released, "--set", f"datastore={values}"]
        rendered = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        images = set(re.findall(r'image: "?([^"\s]+)', rendered))
        assert images == set(re.findall(r"(?m)^ *image: (\S+)", (signed / manifest).read_text()))


def test_the_index_of_the_archive_goes_into_a_registry_as_it_is(full_registry: Registry, signed: Path) -> None:
    """Whoever has no cosign: one command of skopeo's."""
    archive = signed / f"cni-calico-{VERSION}-images.tar"
    for name, digest in expected(signed).items():
        source = f"oci-archive:{archive}:localhost/cni-calico/{name}:v{VERSION}"
        target = f"docker://127.0.0.1:{full_registry.port}/by-hand/{name}:v{VERSION}"
        command = ["skopeo", "copy", "--quiet", "--all", "--dest-tls-verify=false", source, target]
        subprocess.run(command, check=True, capture_output=True, env=environment())
        assert full_registry.digest(f"by-hand/{name}:v{VERSION}") == digest
        for entry in full_registry.get(f"by-hand/{name}/manifests/{digest}")["manifests"]:
            manifest = full_registry.get(f"by-hand/{name}/manifests/{entry['digest']}")
            config = full_registry.get(f"by-hand/{name}/blobs/{manifest['config']['digest']}")
            assert config["architecture"] == entry["platform"]["architecture"]


def test_again_changes_nothing(full_registry: Registry, signed: Path, cosign_keys: Keys) -> None:
    before = full_registry.tags()
    said = succeed("publish.sh", "--registry", full_registry.prefix, "--key", cosign_keys.ours, signed)
    assert full_registry.tags() == before
    assert (
        f"is there: {full_registry.prefix}/node:v{VERSION}" in said and "signed\n" not in said and "pushed" not in said
    )


def test_a_dry_run_writes_nothing(empty_registry: Registry, signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    pages = tmp_path / "www"
    options = ("--registry", empty_registry.prefix, "--pages", pages, "--dry-run")
    said = succeed("publish.sh", *options, signed, SIGNING_KEY=str(cosign_keys.ours))
    for name, digest in expected(signed).items():
        assert f"push, sign, check, then tag: {empty_registry.prefix}/{name}:v{VERSION} ({digest})" in said
    assert "then lead to it: v0.1 latest" in said and f"write the page: {pages}/releases/v{VERSION}" in said
    assert empty_registry.tags() == {} and not pages.exists()


@contextmanager
def gpg_home(home: Path, *key: str) -> Iterator[Path]:
    """gpg's directory with one key. Its agent listens below a short path, and ends with it."""
    home.chmod(0o700)
    words = ["--batch", "--quiet", "--passphrase", "", *key]
    subprocess.run(["gpg", "--homedir", home, *words], check=True, capture_output=True)
    yield home
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False)


@pytest.fixture
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    words = ("--quick-generate-key", "packages@localhost", "ed25519", "sign", "never")
    with gpg_home(tmp_path_factory.mktemp("gpg"), *words) as home:
        yield home


@pytest.fixture
def expired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    at = "--faked-system-time=20200101T000000"
    words = (at, "--quick-generate-key", "old@localhost", "ed25519", "sign", "1d")
    with gpg_home(tmp_path_factory.mktemp("gpg"), *words) as home:
        yield home


def test_older_versions_do_not_take_latest_and_other_bytes_are_refused(
    empty_registry: Registry, signed: Path, cosign_keys: Keys, gpg: Path, tmp_path: Path
) -> None:
    options = ("--registry", empty_registry.prefix, "--key", cosign_keys.ours, "--pages", tmp_path / "www")
    newer = make_signed(tmp_path / "newer", cosign_keys, "0.2.0")
    status, said = run("publish.sh", *options, newer)
    assert status == 1 and "CHANGELOG.md says nothing about 0.2.0" in said and empty_registry.tags() == {}
    succeed("publish.sh", *options[:4], newer)
    said = succeed("publish.sh", *options, signed, GNUPGHOME=str(gpg), APT_KEY="packages@localhost")
    assert said.endswith(f"{tmp_path}/www/apt: written and signed\n{tmp_path}/www/releases/v{VERSION}: written\n")
    listed = (tmp_path / "www/apt/dists/stable/main/binary-arm64/Packages").read_text()
    assert f"\nVersion: {VERSION}\n" in listed
    found = {name.rpartition("/")[2]: digest for name, digest in empty_registry.versions().items() if "/node:" in name}
    assert found == {
        "node:v0.1.0": expected(signed)["node"],
        "node:v0.1": expected(signed)["node"],
        "node:v0.2.0": expected(newer)["node"],
        "node:v0.2": expected(newer)["node"],
        "node:latest": expected(newer)["node"],
    }
    page = tmp_path / "www/releases" / f"v{VERSION}"
    assert {path.name for path in page.iterdir()} == {path.name for path in signed.iterdir()}
    assert "First release." in page.with_name(f"v{VERSION}.md").read_text()
    assert not (tmp_path / "www/releases/latest").exists()
    # the same version once more, from other sources
    other = make_signed(tmp_path / "other", cosign_keys, "0.2.0", contents="other")
    before = empty_registry.tags()
    status, said = run("publish.sh", *options[:4], other)
    assert status == 1 and "was published with other bytes" in said and empty_registry.tags() == before


def test_refused_before_anything_is_written(
    empty_registry: Registry, signed: Path, cosign_keys: Keys, expired: Path, tmp_path: Path
) -> None:
    spoiled = Path(shutil.copytree(signed, tmp_path / "spoiled"))
    (spoiled / "crds.yaml").write_text("x")
    registry_words = ("--registry", empty_registry.prefix)
    no_key = {"APT_KEY": "nobody@localhost", "GNUPGHOME": str(tmp_path)}
    pages = ("--key", cosign_keys.ours, "--pages", tmp_path / "www")
    old_key = {"APT_KEY": "old@localhost", "GNUPGHOME": str(expired)}
    for words, more, status, said in (
        ((*registry_words, "--key", cosign_keys.ours, spoiled), {}, 1, "crds.yaml is not what SHA256SUMS says"),
        ((*registry_words, "--key", cosign_keys.other, signed), {}, 1, "signed with another key"),
        ((*registry_words, "--key", cosign_keys.ours, signed), {"COSIGN_PASSWORD": "no"}, 1, "a wrong passphrase"),
        (("--key", cosign_keys.ours, signed), {}, 1, "or try it with --registry PREFIX"),
        ((*registry_words, *pages, signed), no_key, 1, "gpg has no secret key nobody@localhost"),
        ((*registry_words, *pages, signed), old_key, 1, "has expired: apt would refuse what it signs"),
        ((*registry_words, signed), {}, 2, "Set SIGNING_KEY"),
        ((*registry_words, "--keyless", signed), {}, 2, "SIGNING_IDENTITY"),
        ((*registry_words, "--key", cosign_keys.ours, tmp_path / "none"), {}, 2, "build/release/join.py makes it"),
        (("--key", cosign_keys.ours, "--registry", "127.0.0.1:1/x", signed), {}, 1, "cannot ask 127.0.0.1:1/x"),
    ):
        found = run("publish.sh", *words, **more)
        assert found[0] == status and said in found[1], found
    assert empty_registry.tags() == {} and not (tmp_path / "www").exists()


def test_a_package_that_the_pages_have_with_other_bytes_stops_before_the_push(
    empty_registry: Registry, signed: Path, cosign_keys: Keys, gpg: Path, tmp_path: Path
) -> None:
    pool = tmp_path / "www/apt/pool"
    pool.mkdir(parents=True)
    deb = pool / f"cni-calico-bundle_{VERSION}_amd64.deb"
    make_package(deb, tmp_path, "amd64", VERSION, "something else")
    before = sorted(tmp_path.joinpath("www").rglob("*"))
    words = ("--registry", empty_registry.prefix, "--key", cosign_keys.ours, "--pages", tmp_path / "www", signed)
    status, said = run("publish.sh", *words, GNUPGHOME=str(gpg), APT_KEY="packages@localhost")
    assert status == 1 and f"{deb.name} is there already with other bytes" in said, said
    assert empty_registry.tags() == {} and sorted(tmp_path.joinpath("www").rglob("*")) == before


def test_a_registry_with_a_password(signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    """It comes from the environment and is printed nowhere."""
    secret = "very secret: $word"
    hashed = "$2b$04$c7ff2DRZTpjmcQvTIIngEOMqMxwkvo91WDSIT2VW0yMbTHMfiN7sa"
    (tmp_path / "htpasswd").write_text(f"robot:{hashed}\n")
    more = f"auth: {{htpasswd: {{realm: x, path: {tmp_path / 'htpasswd'}}}}}"
    with running("docker-registry", tmp_path / "registry", more) as empty_registry:
        options = ("--registry", empty_registry.prefix, "--key", cosign_keys.ours, signed)
        status, said = run("publish.sh", *options, REGISTRY_USER="robot", REGISTRY_PASSWORD="no")
        assert status == 1 and "cannot ask" in said
        said = succeed("publish.sh", *options, REGISTRY_USER="robot", REGISTRY_PASSWORD=secret)
        assert f"node:v{VERSION} ->" in said and secret not in said
        assert base64.b64encode(f"robot:{secret}".encode()).decode() not in said
