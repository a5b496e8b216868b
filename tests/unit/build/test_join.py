"""build/release/join.py: what a release of both processors has, and what is refused before anything is written."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.releases import ARCHITECTURES, VERSION, make_release, make_releases, write_lists

from archive import digest, read_files  # isort: skip
from join import join  # isort: skip
from made import Unjoinable, parse_sums  # isort: skip
from pinned import images_in  # isort: skip
from published import Published  # isort: skip

HERE = Published()
THERE = Published(
    registry="registry.example/team/cni-calico", releases="https://example.org/releases", keys=("a" * 64,)
)
WITH_IMAGES = (
    *("calico.yaml", "calico-v3.yaml", "calico-etcd.yaml", "calico-typha.yaml", "calico-typha-v3.yaml"),
    "calico-webhooks.yaml",
)
NO_KEYS = Path("/nonexistent")


@pytest.fixture(scope="module")
def two_made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return list(make_releases(tmp_path_factory.mktemp("made"), HERE))


@pytest.fixture(scope="module")
def joined(two_made: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("joined") / "release"
    join(out, two_made, HERE, NO_KEYS)
    return out


def test_everything_is_in_the_list_of_sums(two_made: list[Path], joined: Path) -> None:
    sums = parse_sums((joined / "SHA256SUMS").read_text(), "SHA256SUMS")
    assert sums.keys() == {path.name for path in joined.iterdir()} - {"SHA256SUMS"}
    assert sums == {name: hashlib.sha256((joined / name).read_bytes()).hexdigest() for name in sums}
    for directory in two_made:
        for path in directory.iterdir():
            if path.name not in ("SHA256SUMS", f"cni-calico-chart-{VERSION}.tgz"):
                assert (joined / path.name).read_bytes() == path.read_bytes()
    assert (joined / "verify.sh").stat().st_mode & 0o777 == 0o755
    assert not (joined / "kubectl-calico.yaml").exists() and not (joined / "cni-calico.rb").exists()
    assert f"\nVERSION='{VERSION}'\nRELEASES=''\nKEYS=''\n" in (joined / "install.sh").read_text()


@pytest.mark.parametrize("name", ["crds.yaml", "crds-v3.yaml", "admission-v3.yaml"])
def test_definitions_and_admission_policies_come_as_they_are(joined: Path, name: str) -> None:
    assert (joined / name).read_bytes() == (ROOT / "manifests" / name).read_bytes()


def test_an_index_names_both_platforms(two_made: list[Path], joined: Path) -> None:
    files = read_files(joined / f"cni-calico-{VERSION}-images.tar")
    top = json.loads(files["index.json"])["manifests"]
    assert [each["annotations"]["io.containerd.image.name"] for each in top] == [
        f"localhost/cni-calico/{name}:v{VERSION}" for name in ("node", "kube-controllers")
    ]
    for each in top:
        index = json.loads(files["blobs/" + each["digest"].replace(":", "/")])
        assert index["annotations"]["org.opencontainers.image.version"] == VERSION
        assert [entry["platform"]["architecture"] for entry in index["manifests"]] == list(ARCHITECTURES)
        for entry in index["manifests"]:
            manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
            config = json.loads(files["blobs/" + manifest["config"]["digest"].replace(":", "/")])
            assert config["architecture"] == entry["platform"]["architecture"]
    for path, data in files.items():
        assert not path.startswith("blobs/") or digest(data) == path.removeprefix("blobs/").replace("/", ":")


def test_the_list_of_images_has_all_that_is_named(joined: Path) -> None:
    names = (joined / "images.txt").read_text().split()
    digests = dict(line.split("@") for line in (joined / "images-digests.txt").read_text().split())
    index = json.loads(read_files(joined / f"cni-calico-{VERSION}-images.tar")["index.json"])
    assert digests == {each["annotations"]["io.containerd.image.name"]: each["digest"] for each in index["manifests"]}
    assert list(digests) == names
    for name in WITH_IMAGES:
        found = images_in((joined / name).read_text())
        assert found == {f"{names[1]}@{digests[names[1]]}"}
        plain = re.sub("@sha256:[0-9a-f]{64}", "", (joined / name).read_text())
        original = ROOT / "manifests" / ("etcd" if "etcd" in name else ".") / name
        assert plain == original.read_text(), "nothing else differs"
    values = yaml.safe_load(chart_file(joined, "values.yaml"))
    assert values["image"]["digest"] == digests[names[1]]


def chart_file(joined: Path, name: str) -> bytes:
    with tarfile.open(joined / f"cni-calico-chart-{VERSION}.tgz") as tar:
        file = tar.extractfile(f"cni-calico/{name}")
        assert file is not None
        return file.read()


def test_the_order_and_place_of_the_directories_change_nothing(
    two_made: list[Path], joined: Path, tmp_path: Path
) -> None:
    places = [Path(shutil.copytree(each, tmp_path / "elsewhere" / str(i))) for i, each in enumerate(reversed(two_made))]
    join(tmp_path / "again", places, HERE, NO_KEYS)
    assert (tmp_path / "again/SHA256SUMS").read_text() == (joined / "SHA256SUMS").read_text()


def test_published_names_are_in_everything(tmp_path: Path) -> None:
    key = public_key(tmp_path)
    text = subprocess.run(["openssl", "pkey", "-pubin", "-in", key, "-outform", "DER"], capture_output=True, check=True)
    published = Published(**{**THERE.__dict__, "keys": (hashlib.sha256(text.stdout).hexdigest(),)})
    join(tmp_path / "out", make_releases(tmp_path / "made", published), published, key.parent)
    assert (tmp_path / "out/cni-calico.pub").read_text() == key.read_text()
    installer = (tmp_path / "out/install.sh").read_text()
    assert f"RELEASES='{published.releases}'\nKEYS='{key.read_text().rstrip()}'\n" in installer
    assert (tmp_path / "out/images.txt").read_text().split()[0].startswith("registry.example/team/cni-calico/")
    values = yaml.safe_load(chart_file(tmp_path / "out", "values.yaml"))
    parts = ("node", "cni", "kubeControllers", "typha", "webhooks")
    assert {values[part]["registry"] for part in parts} == {published.registry}
    for name in WITH_IMAGES:
        text_of_it = (tmp_path / "out" / name).read_text()
        assert "localhost/" not in text_of_it and "build/image/build.sh" not in text_of_it
        assert all(document is None or "kind" in document for document in yaml.safe_load_all(text_of_it))


def test_krew_and_homebrew_find_it(tmp_path: Path) -> None:
    """Once it is known where."""
    key = public_key(tmp_path)
    text = subprocess.run(["openssl", "pkey", "-pubin", "-in", key, "-outform", "DER"], capture_output=True, check=True)
    known = {"keys": (hashlib.sha256(text.stdout).hexdigest(),), "homepage": "https://example.org"}
    published = Published(**{**THERE.__dict__, **known})
    made = make_releases(tmp_path / "made", published)
    join(tmp_path / "out", made, published, key.parent)
    sums = parse_sums((tmp_path / "out/SHA256SUMS").read_text(), "SHA256SUMS")
    manifest = yaml.safe_load((tmp_path / "out/kubectl-calico.yaml").read_text())
    assert manifest["spec"]["version"] == f"v{VERSION}" and manifest["spec"]["homepage"] == "https://example.org"
    for platform in manifest["spec"]["platforms"]:
        place, _, name = platform["uri"].rpartition("/")
        assert place == f"{published.releases}/v{VERSION}" and platform["sha256"] == sums[name]
    formula = (tmp_path / "out/cni-calico.rb").read_text()
    assert f'sha256 "{sums[f"calicoctl-{VERSION}.pyz"]}"' in formula and 'homepage "https://example.org"' in formula
    assert {"kubectl-calico.yaml", "cni-calico.rb"} <= sums.keys()
    (made[1] / f"kubectl-calico_{VERSION}_linux_arm64.tar.gz").unlink()
    write_lists(made[1], "arm64", {})
    with pytest.raises(Unjoinable, match=r"SHA256SUMS does not list kubectl-calico_.*_linux_arm64"):
        join(tmp_path / "other", made, published, key.parent)
    assert not (tmp_path / "other").exists()


def public_key(directory: Path) -> Path:
    keys = directory / "keys"
    keys.mkdir()
    options = ["-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", str(directory / "private")]
    subprocess.run(["openssl", "genpkey", *options], check=True, capture_output=True)
    command = ["openssl", "pkey", "-in", str(directory / "private"), "-pubout", "-out", str(keys / "one.pub")]
    subprocess.run(command, check=True, capture_output=True)
    return keys / "one.pub"


def test_provenance_names_every_file_and_image(joined: Path) -> None:
    statement = json.loads((joined / "provenance.json").read_text())
    assert (statement["_type"], statement["predicateType"]) == (
        "https://in-toto.io/Statement/v1",
        "https://slsa.dev/provenance/v1",
    )
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    sums = parse_sums((joined / "SHA256SUMS").read_text(), "SHA256SUMS")
    del sums["provenance.json"]
    assert sums.items() <= subjects.items()
    lines = [line.split("@sha256:") for line in (joined / "images-digests.txt").read_text().split()]
    assert dict(lines).items() <= subjects.items()
    materials = [each["uri"] for each in statement["predicate"]["buildDefinition"]["resolvedDependencies"]]
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=arm64&distro=bookworm" in materials
    assert statement["predicate"]["runDetails"]["builder"]["id"] == "urn:cni-calico:release"


def other_layer(directory: Path) -> None:
    """One byte of a layer, in sums that fit."""
    (archive,) = directory.glob("*-images-*.tar")
    with tarfile.open(archive) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        content = {name: file.read() for name, file in files.items() if file is not None}
    name = max((name for name in content if content[name][:2] == b"\x1f\x8b"), key=lambda each: len(content[each]))
    content[name] = content[name][:-1] + bytes([content[name][-1] ^ 1])
    with tarfile.open(archive, "w") as tar:
        for path, data in content.items():
            info = tarfile.TarInfo(path)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    write_lists(directory, "arm64", {})


def changed_file(directory: Path) -> None:
    (path,) = directory.glob("*.deb")
    path.write_bytes(b"x")


def extra_file(directory: Path) -> None:
    (directory / "more").write_text("x")


def lost_file(directory: Path) -> None:
    next(iter(directory.glob("*.cdx.json"))).unlink()


def no_sums(directory: Path) -> None:
    (directory / "SHA256SUMS").unlink()


def no_buildinfo(directory: Path) -> None:
    next(iter(directory.glob("BUILDINFO-*"))).unlink()


def other_build(directory: Path) -> None:
    write_lists(directory, "arm64", {"Build": "00000000"})


def other_commit(directory: Path) -> None:
    write_lists(directory, "arm64", {"Commit": "f" * 40})


def two_forms(directory: Path) -> None:
    (directory / f"cni-calico-chart-{VERSION}.tgz").write_bytes(b"x")
    write_lists(directory, "arm64", {})


def upward(directory: Path) -> None:
    sums = directory / "SHA256SUMS"
    sums.write_text(sums.read_text() + f"{'a' * 64}  ../../etc/passwd\n")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (other_layer, "is damaged: sha256:"),
        (changed_file, "is not what SHA256SUMS says"),
        (extra_file, "not exactly the files of its SHA256SUMS: more"),
        (lost_file, "not exactly the files of its SHA256SUMS: .*cdx.json"),
        (no_sums, "has no SHA256SUMS: build/release.sh did not end"),
        (no_buildinfo, "it has no BUILDINFO"),
        (other_build, "Build is 0123abcd in .* and 00000000"),
        (other_commit, "Commit is 0123456789.* and ffff"),
        (two_forms, "cni-calico-chart-.* is in two forms"),
        (upward, "no line of sha256sum: .*passwd"),
    ],
)
def test_refused(two_made: list[Path], tmp_path: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoiled = Path(shutil.copytree(two_made[1], tmp_path / "in"))
    spoil(spoiled)
    with pytest.raises(Unjoinable, match=said):
        join(tmp_path / "out", [two_made[0], spoiled], HERE, NO_KEYS)
    assert [path.name for path in tmp_path.iterdir()] == ["in"], "nothing is written"


def test_other_versions_and_processors_are_refused(two_made: list[Path], tmp_path: Path) -> None:
    other = make_release(tmp_path / "other", "arm64", HERE, version="0.1.1")
    for given, said in (
        ([two_made[0], other], "Version is 0.1.0 in .* and 0.1.1"),
        ([two_made[0]], "no release for arm64"),
        ([two_made[0], two_made[0], two_made[1]], "two releases for amd64"),
        ([tmp_path], "it has no BUILDINFO"),
    ):
        with pytest.raises(Unjoinable, match=said):
            join(tmp_path / "out", given, HERE, NO_KEYS)
    with pytest.raises(Unjoinable, match=r"cannot write install\.sh: no address of releases"):
        join(tmp_path / "out", two_made, Published(releases="https://x.example/'; reboot; '"), NO_KEYS)
    with pytest.raises(Unjoinable, match="make the release again"):
        join(tmp_path / "out", two_made, THERE, NO_KEYS)
    (tmp_path / "out").mkdir()
    with pytest.raises(Unjoinable, match="exists"):
        join(tmp_path / "out", two_made, HERE, NO_KEYS)


def test_by_its_command(two_made: list[Path], tmp_path: Path) -> None:
    script = ROOT / "build/release/join.py"
    done = subprocess.run([sys.executable, script, tmp_path / "out", two_made[0]], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and done.stderr.startswith("no release for arm64")
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and "join.py OUT IN..." in done.stdout
