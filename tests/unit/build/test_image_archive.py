"""What an image says of how it runs: command or entry point, user."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "image"))

from archive import read_files


def config_of(archive: Path) -> dict[str, Any]:
    return read(archive)[1]


def read(archive: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The image's manifest, and its configuration."""
    with tarfile.open(archive) as tar:

        def blob(path: str) -> Any:
            found = tar.extractfile(path)
            assert found is not None
            return json.loads(found.read())

        [image] = blob("index.json")["manifests"]
        manifest = blob("blobs/sha256/" + image["digest"].removeprefix("sha256:"))
        config: dict[str, Any] = blob("blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:"))["config"]
    return manifest, config


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--command", "/a", "run"], {"Cmd": ["/a", "run"]}),
        (["--user", "999", "--entrypoint", "/w", "/k"], {"User": "999", "Entrypoint": ["/w", "/k"]}),
    ],
)
def test_how_it_runs(tmp_path: Path, options: list[str], said: dict[str, Any]) -> None:
    tree, out = tmp_path / "tree", tmp_path / "image.tar"
    tree.mkdir()
    (tree / "file").write_text("x")
    archive = str(ROOT / "build/image/archive.py")
    command = [sys.executable, archive, str(out), "--name", "localhost/a:1", "--tree", str(tree)]
    subprocess.run([*command, "--env", "A=b", *options], check=True, timeout=60)
    assert config_of(out) == {"Env": ["A=b"], "WorkingDir": "/", **said}


def test_labels_are_where_tools_look(tmp_path: Path) -> None:
    tree, out = tmp_path / "tree", tmp_path / "image.tar"
    tree.mkdir()
    labels = {"org.opencontainers.image.version": "1", "note": "a=b c"}
    words = [word for name, text in labels.items() for word in ("--label", f"{name}={text}")]
    archive = str(ROOT / "build/image/archive.py")
    command = [sys.executable, archive, str(out), "--name", "localhost/a:1", "--tree", str(tree), *words]
    subprocess.run([*command, "--command", "/a"], check=True, timeout=60)
    manifest, config = read(out)
    assert manifest["annotations"] == config["Labels"] == labels


def make(tree: Path, out: Path, name: str, command: str) -> None:
    archive = str(ROOT / "build/image/archive.py")
    words = [sys.executable, archive, str(out), "--name", name, "--arch", "arm64", "--tree", str(tree)]
    subprocess.run([*words, "--command", command], check=True, timeout=60)


def test_two_images_in_one_archive(tmp_path: Path) -> None:
    """By the OCI layout, which containerd reads, and by Docker's list, which podman and docker read."""
    tree, one, two, out = (tmp_path / name for name in ("tree", "one.tar", "two.tar", "out.tar"))
    tree.mkdir()
    (tree / "file").write_text("x")
    make(tree, one, "localhost/a:1", "/a")
    make(tree, two, "localhost/b:1", "/b")
    join = [sys.executable, str(ROOT / "build/image/archive.py"), str(out), "--join", str(one), str(two)]
    subprocess.run(join, check=True, timeout=60)
    files = read_files(out)
    index, docker = json.loads(files["index.json"]), json.loads(files["manifest.json"])
    names = [entry["annotations"]["org.opencontainers.image.ref.name"] for entry in index["manifests"]]
    assert names == ["localhost/a:1", "localhost/b:1"] == [tag for entry in docker for tag in entry["RepoTags"]]
    for entry, listed, command in zip(index["manifests"], docker, ("/a", "/b"), strict=True):
        assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
        manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
        assert listed["Config"] == "blobs/" + manifest["config"]["digest"].replace(":", "/")
        assert listed["Layers"] == ["blobs/" + each["digest"].replace(":", "/") for each in manifest["layers"]]
        assert json.loads(files[listed["Config"]])["config"]["Cmd"] == [command]
    assert len([name for name in files if name.startswith("blobs/")]) == 5, "the layer they share is there once"
    again = subprocess.run([*join[:-1], str(one)], capture_output=True, text=True, timeout=60)
    assert again.returncode == 1 and "two archives have an image of the same name" in again.stderr


@pytest.mark.netns
def test_podman_loads_both(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "file").write_text("x")
    for name in ("a", "b"):
        make(tree, tmp_path / f"{name}.tar", f"localhost/cct-{name}:1", f"/{name}")
    archive = str(ROOT / "build/image/archive.py")
    archives = [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]
    subprocess.run([sys.executable, archive, str(tmp_path / "out.tar"), "--join", *archives], check=True, timeout=60)
    with tempfile.TemporaryDirectory(prefix="cct-") as run:  # podman wants a short path
        podman = ["podman", f"--root={tmp_path}/store", f"--runroot={run}", "--storage-driver=vfs"]
        subprocess.run([*podman, "load", "-q", "-i", tmp_path / "out.tar"], check=True, timeout=120)
        listed = subprocess.run(
            [*podman, "images", "--format={{.Repository}}:{{.Tag}}"], capture_output=True, text=True
        )
    assert sorted(listed.stdout.split()) == ["localhost/cct-a:1", "localhost/cct-b:1"]
