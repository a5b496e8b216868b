"""Manifests and chart with an image's digest, and the list of a release's images.

Rule: nothing but the image's name changes; a name that is not the release's own is refused, so that nothing is
published that names an image nobody signed.
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

from made import Unjoinable

_IMAGE = re.compile(r"(?m)^(\s*(?:- )?image: *)(\S+)$")
_CHART_DIGEST = re.compile(r'(?m)^(image:\n(?:(?: .*)?\n)*?  digest: *)""$')


def pin_images(text: str, digests: Mapping[str, str], name: str) -> str:
    """``digests``: full name of an image -> digest of its index; ``name``: of the file, for the error."""

    def pin(match: re.Match[str]) -> str:
        if match[2] not in digests:
            raise Unjoinable(f"{name} has an image that this release does not: {match[2]}")
        return f"{match[1]}{match[2]}@{digests[match[2]]}"

    return _IMAGE.sub(pin, text)


def images_in(text: str) -> set[str]:
    """What a manifest's containers run."""
    return {match[2] for match in _IMAGE.finditer(text)}


def pin_chart(chart: Path, out: Path, digest: str) -> None:
    """A chart with the digest of its image as default; packed so that the same chart gives the same bytes."""
    packed, count = io.BytesIO(), 0
    zipped = gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=6, mtime=0)
    with tarfile.open(chart) as old, zipped, tarfile.open(fileobj=zipped, mode="w") as new:
        for member in old:
            file = old.extractfile(member)
            data = file.read() if file is not None else b""
            if member.name.count("/") == 1 and member.name.endswith("/values.yaml"):
                text, count = _CHART_DIGEST.subn(rf'\g<1>"{digest}"', data.decode())
                data = text.encode()
            member.size = len(data)
            new.addfile(member, io.BytesIO(data))
    if count != 1:
        raise Unjoinable(f'{chart} has no place for a digest: its values.yaml wants  image: {{digest: ""}}')
    out.write_bytes(packed.getvalue())


def list_images(digests: Mapping[str, str]) -> tuple[str, str]:
    """images.txt and images-digests.txt."""
    names = sorted(digests)
    return "".join(f"{name}\n" for name in names), "".join(f"{name}@{digests[name]}\n" for name in names)
