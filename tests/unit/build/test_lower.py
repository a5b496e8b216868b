"""The image's lower layer, of small roots made here: what is taken, what comes along, and what is refused."""

from __future__ import annotations

import gzip
import io
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "image"))

import lower
from elf import read_elf

TRIPLET = "usr/lib/x-linux-gnu"


class Debian:
    """A root with a shell that needs a C library, and a package that nothing needs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for directory in ("usr/bin", "usr/sbin", TRIPLET, "etc/alternatives", "var/lib/dpkg/info"):
            (root / directory).mkdir(parents=True)
        for name in ("bin", "sbin", "lib"):
            (root / name).symlink_to(f"usr/{name}")
        self.status: list[str] = []
        shell, library = Path("/bin/sh").resolve(), read_elf(Path("/bin/sh").resolve())
        assert library.interpreter is not None
        self.library = library.needed[0]
        self.linker = library.interpreter.text.lstrip("/")
        (root / self.linker).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(shell, root / "usr/bin/dash")
        (root / "usr/bin/sh").symlink_to("dash")
        shutil.copy(Path(f"/{self.linker}").resolve(), root / self.linker)
        shutil.copy(Path(f"/{self.linker}").resolve(), root / TRIPLET / "libreal.so.1.2")  # any library
        (root / TRIPLET / self.library).symlink_to("libreal.so.1.2")
        self.package("dash", "bin/dash", "bin/sh")
        self.package("libc6", self.linker, f"lib/x-linux-gnu/{self.library}", "lib/x-linux-gnu/libreal.so.1.2")
        self.package("unneeded", "usr/bin/unneeded")
        self.file("usr/bin/unneeded", "#!/bin/sh\n")

    def package(self, name: str, *files: str, copyright_: str = "Expat") -> None:
        self.file(f"usr/share/doc/{name}/copyright", copyright_)
        listed = [*files, f"usr/share/doc/{name}/copyright"]
        self.file(f"var/lib/dpkg/info/{name}.list", "/.\n" + "".join(f"/{file}\n" for file in listed))
        self.status.append(f"Package: {name}\nStatus: install ok installed\nVersion: 1\n")
        self.file("var/lib/dpkg/status", "\n".join(self.status))

    def file(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def layer(self) -> dict[str, tarfile.TarInfo]:
        return {member.name: member for member in self.tar()}

    def tar(self) -> tarfile.TarFile:
        return tarfile.open(fileobj=io.BytesIO(gzip.decompress(lower.render_layer(lower.Root(self.root)))))

    def text(self, path: str) -> str:
        file = self.tar().extractfile(path)
        assert file is not None
        return file.read().decode()


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    monkeypatch.setattr(lower, "TAKEN", {"dash": lower.PROGRAMS})
    return Debian(tmp_path / "root")


def test_a_program_comes_with_its_libraries_and_their_packages(debian: Debian) -> None:
    layer = debian.layer()
    real = {f"{TRIPLET}/{debian.library}", f"{TRIPLET}/libreal.so.1.2", debian.linker}
    assert real | {"usr/bin/dash", "usr/bin/sh", "bin", "lib", "tmp", "var/run"} <= layer.keys()
    assert "usr/bin/unneeded" not in layer
    assert layer["usr/bin/sh"].linkname == "dash" and layer["bin"].linkname == "usr/bin"
    packages = [line for line in debian.text("var/lib/dpkg/status").splitlines() if line.startswith("Package")]
    assert packages == ["Package: dash", "Package: libc6"]
    documents = {name.split("/")[3] for name in layer if name.startswith("usr/share/doc/") and name.count("/") > 3}
    assert documents == {"dash", "libc6"}


def test_the_same_root_gives_the_same_bytes_at_any_time(debian: Debian) -> None:
    first = lower.render_layer(lower.Root(debian.root))
    for path in debian.root.rglob("*"):
        if not path.is_symlink():
            path.touch()
    assert lower.render_layer(lower.Root(debian.root)) == first
    assert {(member.mtime, member.uname) for member in debian.layer().values()} == {(0, "")}


def test_the_name_of_an_alternative_comes_with_what_it_leads_to(debian: Debian) -> None:
    (debian.root / "etc/alternatives/shell").symlink_to("/usr/bin/dash")
    (debian.root / "etc/alternatives/other").symlink_to("/usr/bin/unneeded")
    (debian.root / "usr/sbin/shell").symlink_to("/etc/alternatives/shell")
    (debian.root / "usr/sbin/other").symlink_to("/etc/alternatives/other")
    layer = debian.layer()
    assert layer["usr/sbin/shell"].linkname == "/etc/alternatives/shell" and "etc/alternatives/shell" in layer
    assert not {"usr/sbin/other", "etc/alternatives/other"} & layer.keys()


def test_a_copyright_file_that_another_package_has_is_there_as_a_file(debian: Debian) -> None:
    shutil.rmtree(debian.root / "usr/share/doc/libc6")
    (debian.root / "usr/share/doc/libc6").symlink_to("unneeded")
    layer = debian.layer()
    assert layer["usr/share/doc/libc6"].isdir() and debian.text("usr/share/doc/libc6/copyright") == "Expat"


def test_nobody_runs_anything_as_another_user(debian: Debian) -> None:
    (debian.root / "usr/bin/dash").chmod(0o6755)
    assert debian.layer()["usr/bin/dash"].mode == 0o755


def test_the_day_of_a_password_is_not_that_of_the_installation(debian: Debian) -> None:
    debian.file("etc/shadow", "root:*:20781:0:99999:7:::\ndaemon:*:20781:0:99999:7:::\n")
    assert debian.text("etc/shadow") == "root:*:18262:0:99999:7:::\ndaemon:*:18262:0:99999:7:::\n"


def remove_library(debian: Debian) -> None:
    (debian.root / TRIPLET / debian.library).unlink()


def remove_copyright(debian: Debian) -> None:
    (debian.root / "usr/share/doc/libc6/copyright").unlink()


def disown(debian: Debian) -> None:
    debian.file("var/lib/dpkg/info/libc6.list", "/.\n")


def uninstall(debian: Debian) -> None:
    debian.file("var/lib/dpkg/status", debian.status[1])


def empty(debian: Debian) -> None:
    shutil.rmtree(debian.root / "var/lib/dpkg")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (remove_library, r"usr/bin/dash needs \S+, which is not in "),
        (remove_copyright, "libc6 comes without its copyright file"),
        (disown, r"no package has \S+"),
        (uninstall, "dash not installed in "),
        (empty, "no Debian root"),
    ],
)
def test_what_would_be_incomplete_is_not_made(debian: Debian, damage: object, why: str) -> None:
    assert callable(damage)
    damage(debian)
    with pytest.raises(lower.Incomplete, match=why):
        lower.render_layer(lower.Root(debian.root))
