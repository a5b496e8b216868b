"""What the kernel can do, as FeatureDetectOverride says it."""

from __future__ import annotations

import pytest

from cni_calico.kernel.offload import is_checksum_broken
from cni_calico.nodeagent.context.felix import parse_felix


@pytest.mark.parametrize(
    ("text", "found", "wrong"),
    [
        ("ChecksumOffloadBroken=true", {"ChecksumOffloadBroken": True}, []),
        (" SNATFullyRandom=false, MASQFullyRandom = f ", {"SNATFullyRandom": False, "MASQFullyRandom": False}, []),
        ("IPIPDeviceIsL3=true,NFTablesSupported=false", {"IPIPDeviceIsL3": True, "NFTablesSupported": False}, []),
        ("checksumoffloadbroken=true,MASQFullyRandom=no", {"MASQFullyRandom": False}, ["checksumoffloadbroken=true"]),
        ("ChecksumOffloadBroken=maybe,NoSuch=true,,=", {}, ["ChecksumOffloadBroken=maybe", "NoSuch=true", "="]),
        ("ChecksumOffloadBroken", {}, ["ChecksumOffloadBroken"]),
    ],
)
def test_entries_that_are_wrong_are_named_and_the_others_count(
    text: str, found: dict[str, bool], wrong: list[str]
) -> None:
    for environ, spec in (({"FELIX_FEATUREDETECTOVERRIDE": text}, None), ({}, {"featureDetectOverride": text})):
        parsed = parse_felix(environ, spec)
        assert dict(parsed.settings.features) == found
        assert len(parsed.warnings) == bool(wrong)
        assert all(repr(entry) in parsed.warnings[0] for entry in wrong)


@pytest.mark.parametrize(
    ("release", "broken"),
    [
        ("5.7.0-1.el7", True),
        ("5.4.0-1043-azure", True),
        ("4.18.0-553.el8.x86_64", True),
        ("5.7", True),
        ("5.7.1", False),
        ("5.10.0-28-amd64", False),
        ("6.12.41+deb13-amd64", False),
        ("Linux", False),
    ],
)
def test_kernels_that_compute_wrong_checksums(release: str, broken: bool) -> None:
    assert is_checksum_broken(release) == broken
