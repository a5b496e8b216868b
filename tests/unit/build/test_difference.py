"""Where two archives differ: the one file in which they do is named, however deep it lies."""

from __future__ import annotations

import gzip
import io
import lzma
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import ROOT
from tests.releases import make_images, make_package

from difference import first_difference  # isort: skip
from published import Published  # isort: skip

SCRIPT = ROOT / "build" / "release" / "difference.py"
CONTENTS = st.dictionaries(st.sampled_from(["a", "b", "c", "d/e"]), st.binary(max_size=40), min_size=2)


def tarred(files: Mapping[str, bytes], **about: object) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for field, value in about.items():
                setattr(info, field, value)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return packed.getvalue()


def nested(files: Mapping[str, bytes]) -> bytes:
    return lzma.compress(tarred({"inside.tar.gz": gzip.compress(tarred(files), mtime=0)}))


@pytest.mark.parametrize(("pack", "before"), [(tarred, ""), (zipped, ""), (nested, "inside.tar.gz > ")])
@given(files=CONTENTS, data=st.data())
def test_the_file_that_differs_is_named(
    pack: Callable[[Mapping[str, bytes]], bytes], before: str, files: dict[str, bytes], data: st.DataObject
) -> None:
    changed = data.draw(st.sampled_from(sorted(files)))
    other = {**files, changed: files[changed] + b"x"}
    assert first_difference(pack(files), pack(files)) == ""
    assert first_difference(pack(files), pack(other)).startswith(f"{before}{changed} > ")
    without = {name: each for name, each in files.items() if name != changed}
    assert first_difference(pack(files), pack(without)) == f"{before}{changed}: only in the first"
    assert first_difference(pack(without), pack(files)) == f"{before}{changed}: only in the second"


@given(one=st.binary(max_size=300), other=st.binary(max_size=300))
def test_what_differs_is_never_called_equal(one: bytes, other: bytes) -> None:
    """Whatever the bytes are, those of archives that were cut off, too."""
    for left, right in (
        (one, other),
        (gzip.compress(one)[: len(other)], gzip.compress(other)),
        (nested({"a": one}), other),
    ):
        assert (first_difference(left, right) == "") == (left == right)


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (b"a\nb\nc\n", b"a\nb\nd\n", "line 3"),
        (b"\0\1\2", b"\0\1\3", "byte 3 (3 and 3 bytes)"),
        (b"\0", b"\0\1", "byte 2 (1 and 2 bytes)"),
        (tarred({"a": b""}), tarred({"a": b""}, mode=0o755), "a: mode is 0o644 and 0o755"),
        (tarred({"a": b""}, mtime=1), tarred({"a": b""}, mtime=2), "a: time is 1 and 2"),
        (tarred({"a": b"", "b": b""}), tarred({"b": b"", "a": b""}), "a: at another place"),
        (gzip.compress(b"x" * 999, 1, mtime=0), gzip.compress(b"x" * 999, 9, mtime=0), "packed otherwise"),
    ],
)
def test_what_differs_without_a_content(one: bytes, other: bytes, said: str) -> None:
    assert first_difference(one, other).startswith(said)


def test_a_package_and_an_archive_of_images(tmp_path: Path) -> None:
    packages, images = [], []
    for said in ("one", "other"):
        scratch = tmp_path / said
        scratch.mkdir()
        make_images(scratch / "images.tar", scratch, "arm64", Published(), "1.0", said)
        make_package(scratch / "package.deb", scratch, "arm64", "1.0", said)
        images.append(scratch / "images.tar")
        packages.append(scratch / "package.deb")
    done = subprocess.run([sys.executable, SCRIPT, *images], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "image 1 layer 1 > processor > line 1\n"), done.stderr
    done = subprocess.run([sys.executable, SCRIPT, *packages], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "control.tar.xz > ./control > line 5\n"), done.stderr
    assert subprocess.run([sys.executable, SCRIPT, images[0], images[0]]).returncode == 0
    done = subprocess.run([sys.executable, SCRIPT, images[0], tmp_path / "none"], capture_output=True, text=True)
    assert (
        done.returncode == 1
        and done.stderr == f"difference.py: cannot read {tmp_path / 'none'}: No such file or directory\n"
    )
