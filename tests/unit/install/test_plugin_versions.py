"""Whether the image's plugin takes the place of the host's: what they print, read from real processes too."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.install.plugin_versions import Version, parse_version, read_version, reason_to_stay

numbers = st.integers(0, 10**9 - 1)
versions = st.tuples(numbers, numbers, numbers)


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        # as the reference plugins print it: 1.9.1, 1.1.1 of Debian 12, k3s's own build, without a version
        (b"CNI portmap plugin v1.9.1\nCNI protocol versions supported: 0.1.0, 1.1.0\n", (1, 9, 1)),
        (b"CNI host-local plugin version v1.1.1\n", (1, 1, 1)),
        (b"CNI portmap plugin v1.6.0-k3s1\nCNI protocol versions supported: 0.1.0\n", (1, 6, 0)),
        (b"CNI portmap plugin version unknown\nCNI protocol versions supported: 0.1.0, 1.1.0\n", None),
        (b'{"code":4,"msg":"required env variables [CNI_COMMAND] missing"}', None),
        (b"CNI portmap plugin v1.9\n", None),
        (b"CNI portmap plugin v1.9.1.2\n", None),
        (b"CNI portmap plugin v1.9." + b"1" * 4000, None),
        (b"", None),
        (b"\xff\x00CNI portmap plugin v", None),
    ],
)
def test_what_is_printed(answer: bytes, version: Version | None) -> None:
    assert parse_version(answer) == version


@given(st.binary(max_size=200), versions)
def test_any_answer_is_a_version_or_none(noise: bytes, version: Version) -> None:
    parse_version(noise)
    said = "CNI x plugin v{}.{}.{}\n".format(*version)
    assert parse_version(said.encode() + noise) == version


@given(versions, versions)
def test_only_an_older_one_is_replaced(host: Version, ours: Version) -> None:
    assert (reason_to_stay(host, ours) == "") is (list(host) < list(ours))
    assert reason_to_stay(None, ours) and reason_to_stay(host, None) and reason_to_stay(None, None)


def test_a_plugin_is_asked_by_starting_it(tmp_path: Path) -> None:
    plugin = tmp_path / "portmap"
    assert read_version(str(plugin)) is None
    plugin.write_text('#!/bin/sh\n[ -z "$CNI_COMMAND" ] || exit 9\necho CNI portmap plugin v1.2.3 >&2\nexit 1\n')
    assert read_version(str(plugin)) is None, "it cannot be executed"
    plugin.chmod(0o755)
    assert read_version(str(plugin)) == (1, 2, 3)
    plugin.write_text("#!/bin/sh\ncat /dev/zero\n")
    assert read_version(str(plugin)) is None, "it floods us"
    (tmp_path / "link").symlink_to("nowhere")
    assert read_version(str(tmp_path / "link")) is None
