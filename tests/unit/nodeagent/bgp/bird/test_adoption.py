"""Whose file the agent, which is root, writes for a BIRD that another service runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cni_calico.kernel.files import Files
from cni_calico.nodeagent.bgp.bird.adoption import (
    KEPT_SUFFIX,
    MARK,
    _config_file,
    is_bird,
    keep_first,
    may_write,
    parse_greeting,
)

USER = 4711


@pytest.fixture
def rooted(tmp_path: Path) -> Path:
    """A directory below /run, because everybody may write in /tmp."""
    if os.geteuid():
        pytest.skip("netns: needs root")
    made = Path("/run") / f"cni-calico-{os.getpid()}-{tmp_path.name}"
    (made / "theirs").mkdir(parents=True)
    made.chmod(0o755)
    os.chown(made / "theirs", USER, USER)
    return made


def test_who_may_name_which_file(rooted: Path) -> None:
    try:
        (rooted / "link").symlink_to("/etc")
        (rooted / "theirs" / "link").symlink_to("/etc")
        for file, root, theirs in (
            ("theirs/bird.conf", True, True),
            ("bird.conf", True, False),
            ("link/passwd", True, False),
            ("theirs/link/passwd", True, False),
            ("theirs/deeper/bird.conf", True, False),
        ):
            assert may_write(str(rooted / file), 0) == root
            assert may_write(str(rooted / file), USER) == theirs, file
        rooted.chmod(0o777)
        assert not may_write(str(rooted / "theirs" / "bird.conf"), USER)
    finally:
        (rooted / "link").unlink()
        (rooted / "theirs" / "link").unlink()
        (rooted / "theirs").rmdir()
        rooted.rmdir()


def test_what_was_there_is_kept_once_and_not_through_a_link(tmp_path: Path) -> None:
    file, kept, other = tmp_path / "bird.conf", tmp_path / f"bird.conf{KEPT_SUFFIX}", tmp_path / "other"
    assert keep_first(str(file), Files()) == ""
    file.write_text(f"{MARK}. Changes are overwritten.\n")
    assert keep_first(str(file), Files()) == ""
    file.write_text("router id 1.2.3.4;\n")
    kept.symlink_to(other)
    assert keep_first(str(file), Files()) == str(kept)
    assert kept.read_text() == "router id 1.2.3.4;\n" and not kept.is_symlink() and not other.exists()
    file.write_text("router id 5.6.7.8;\n")
    assert keep_first(str(file), Files()) == "" and kept.read_text() == "router id 1.2.3.4;\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([b"/usr/sbin/bird", b"-s", b"/run/bird.ctl"], True),
        ([b"bird2", b"-f"], True),
        ([b"birdc", b"-s", b"/run/bird.ctl"], False),
        ([b"/usr/sbin/birdcl", b"-s/run/bird.ctl"], False),
        ([b"/usr/bin/bird_exporter", b"-bird.socket", b"/run/bird.ctl"], False),
        ([b"bird6", b"-c", b"/etc/bird6.conf"], True),
        ([b"bird-lg-go"], False),
        ([], False),
    ],
)
def test_whoever_speaks_to_a_bird_is_none(words: list[bytes], expected: bool) -> None:
    assert is_bird(words) == expected


def test_a_file_behind_other_mounts_is_not_the_one_here(rooted: Path) -> None:
    """A BIRD of another container: the same path is another file there, unless the directory is shared."""
    theirs = rooted / "theirs"
    shared = rooted / "shared"
    shared.mkdir()
    script = f"mount -t tmpfs none {theirs} && echo ready && exec sleep 1000"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, text=True) as bird:
        try:
            assert bird.stdout is not None and bird.stdout.readline() == "ready\n"
            for directory, pid, seen in (
                (theirs, bird.pid, False),
                (shared, bird.pid, True),
                (theirs, os.getpid(), True),
            ):
                file = str(directory / "bird.conf")
                for words in ([b"bird", b"-c", file.encode()], [b"bird", b"-c" + file.encode()]):
                    assert _config_file(words, pid) == (file if seen else "")
        finally:
            bird.kill()
            for made in (theirs, shared, rooted):
                made.rmdir()


@pytest.mark.parametrize("text", ["BIRD 1.6.8 ready.", "BIRD v0.3.3+birdv1.6.8 ready."])
def test_the_greetings_of_the_old_kind(text: str) -> None:
    """Debian's, as its bird and bird6 say it, and upstream's."""
    assert parse_greeting(text) == (1, 6, 8)
