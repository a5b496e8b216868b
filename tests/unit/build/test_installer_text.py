"""install.sh as a release has it: with its keys it needs no options, and nothing ends the quotes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "release"))

from installer import INSTALLER, render_installer

KEY = "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----\n"
RELEASES = "https://releases.example/cni-calico"


def test_a_shell_reads_what_was_filled_in(tmp_path: Path) -> None:
    text = render_installer(INSTALLER.read_text(), "1.2.3", RELEASES, KEY + KEY)
    head = text[: text.index("\nHOME_DIR=")]
    done = subprocess.run(
        ["sh", "-c", f'{head}\nprintf "%s|%s|%s" "$VERSION" "$RELEASES" "$KEYS"'], capture_output=True, text=True
    )
    assert done.stdout == f"1.2.3|{RELEASES}|{KEY}{KEY}".rstrip()
    assert subprocess.run(["sh", "-n"], input=text, text=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("version", "releases", "keys"),
    [
        ("1.2.3'; reboot; '", RELEASES, KEY),
        ("1.2.3", "https://x.example/'; reboot; '", KEY),
        ("1.2.3", "http://x.example", KEY),
        ("1.2.3", RELEASES, KEY + KEY.replace("MFkw", "'; reboot; '")),
        ("1.2.3", RELEASES, "-----BEGIN PRIVATE KEY-----\nMFkw\n-----END PRIVATE KEY-----\n"),
    ],
)
def test_what_does_not_belong_there(version: str, releases: str, keys: str) -> None:
    with pytest.raises(ValueError, match="no "):
        render_installer(INSTALLER.read_text(), version, releases, keys)


def test_a_rendered_one_is_not_rendered_again() -> None:
    text = render_installer(INSTALLER.read_text(), "1.2.3")
    with pytest.raises(ValueError, match="no place for VERSION"):
        render_installer(text, "1.2.4")
