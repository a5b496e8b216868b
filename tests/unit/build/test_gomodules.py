"""Licences of Go modules: recognised by their words, and nothing is shipped whose licence is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "release"))

import gomodules
from components import Unowned

BSD = "Redistribution and use in source\n   and binary forms, with or without modification, are permitted"


@pytest.mark.parametrize(
    ("text", "licence"),
    [
        ("      Apache License\n   Version 2.0, January 2004\n", "Apache-2.0"),
        ("MIT License\n\nPermission is hereby granted, free of\ncharge, to any person", "MIT"),
        (f"{BSD}\n 3. Neither the name of Google", "BSD-3-Clause"),
        (BSD, "BSD-2-Clause"),
    ],
)
def test_licences_by_their_words(text: str, licence: str) -> None:
    assert gomodules.recognise_licence("x", text) == licence


def made(directory: Path, text: str) -> Path:
    licences = directory / "licences" / "example.org/a/b@v1.2.3"
    licences.mkdir(parents=True)
    (licences / "LICENSE").write_text(text)
    (directory / "modules").write_text("example.org/a/b v1.2.3 h1:x=\n")
    return directory


def test_a_module_with_its_text(tmp_path: Path) -> None:
    (found,) = gomodules.read_modules(made(tmp_path, BSD))
    assert (found.kind, found.name, found.version, found.licence) == (
        "golang",
        "example.org/a/b",
        "v1.2.3",
        "BSD-2-Clause",
    )
    assert found.texts == (("LICENSE", BSD),)


@pytest.mark.parametrize("text", ["", "All rights reserved.", "GNU GENERAL PUBLIC LICENSE\nVersion 3"])
def test_a_licence_that_nobody_knows_stops_the_release(tmp_path: Path, text: str) -> None:
    with pytest.raises(Unowned, match=r"the licence of example\.org/a/b is not one of those"):
        gomodules.read_modules(made(tmp_path, text))


@pytest.mark.parametrize("words", [[], ["s390x"], ["amd64/../x", "--print"]])
def test_another_processor_is_refused(words: list[str]) -> None:
    done = subprocess.run([ROOT / "build/image/plugins.sh", *words], capture_output=True, text=True)
    assert done.returncode == 2 and "known are amd64, arm64" in done.stderr


def test_versions_decide_where_they_are_kept(tmp_path: Path) -> None:
    """Another processor, another place; nothing of this machine is in its name."""
    where = {}
    for architecture in ("amd64", "arm64"):
        command = [ROOT / "build/image/plugins.sh", architecture, "--print"]
        environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
        where[architecture] = subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment
        ).stdout
        assert re.fullmatch(rf"{tmp_path}/cni-calico/plugins-{architecture}-[0-9a-f]{{8}}\n", where[architecture])
    assert where["amd64"][-9:] != where["arm64"][-9:]
