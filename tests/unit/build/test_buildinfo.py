"""BUILDINFO and the pinned compilers: what they say, and what is refused."""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
import sys
from email.parser import Parser

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "release"))

import buildinfo
import toolchain
from edition import Edition


def test_it_is_read_as_a_control_file() -> None:
    sums = {"b.deb": "22" * 32, "a.tar.gz": "11" * 32}
    text = buildinfo.render_buildinfo({"Format": "1", "Commit": "c" * 40}, [("gcc", "4:12.2.0-3"), ("tar", "1")], sums)
    fields = Parser().parsestr(text)
    assert fields.get_payload() == "" and fields["Commit"] == "c" * 40
    assert fields["Checksums-Sha256"].split() == ["11" * 32, "a.tar.gz", "22" * 32, "b.deb"]
    assert re.findall(r"(\S+) \(= (\S+)\)", fields["Installed-Packages"]) == [("gcc", "4:12.2.0-3"), ("tar", "1")]


@pytest.mark.parametrize("field", [("Two words", "x"), ("Commit", "a\nInstalled-Packages: none"), ("", "x")])
def test_no_value_writes_a_field_of_its_own(field: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="no field of a control file"):
        buildinfo.render_buildinfo(dict([field]), [], {})


def test_it_names_what_this_machine_has_and_no_path_of_it() -> None:
    fields = buildinfo.describe_build(Edition("1.0", "3f2a91c0", "amd64", 1577836800), "c" * 40, "2026-11-25T02:22:30Z")
    assert (fields["Commit"], fields["Debian"]) == ("c" * 40, "2026-11-25T02:22:30Z")
    assert (fields["Python"], fields["Build"], fields["Architecture"]) == (
        platform.python_version(),
        "3f2a91c0",
        "amd64",
    )
    lock = hashlib.sha256((ROOT / "requirements.lock").read_bytes()).hexdigest()
    assert fields["Locks"] == f"requirements.lock {lock}"
    assert not [value for value in fields.values() if str(ROOT) in value or platform.node() in value]
    packages = dict(buildinfo.read_packages())
    shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", "libc6"], capture_output=True, text=True).stdout
    assert packages["libc6"] == shown and packages.keys() >= {"gcc", "binutils", "dpkg"}


def test_a_compiler_of_another_version_is_refused() -> None:
    wanted = toolchain.parse_toolchain(toolchain.TOOLCHAIN.read_text())
    assert wanted.keys() == {"gcc", "go", "python"}
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in wanted.values()), "to the patch release"
    toolchain.require_toolchain(wanted, {"gcc": wanted["gcc"], "python": wanted["python"]})
    for name in ("gcc", "python"):
        with pytest.raises(toolchain.OtherBytes, match=f"{name} is 99.1.0 here, .* {wanted[name]} "):
            toolchain.require_toolchain(wanted, {**wanted, name: "99.1.0"})


def test_what_is_compared_is_what_the_compiler_itself_says() -> None:
    said = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
    assert toolchain.read_toolchain() == {"gcc": said, "python": sys.version.split()[0]}
