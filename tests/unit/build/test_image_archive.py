"""What an image says of how it runs: command or entry point, user."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


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
