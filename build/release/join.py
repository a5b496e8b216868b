#!/usr/bin/env python3
"""Joins what build/release.sh made for each processor to one release: ``join.py OUT IN...``.

OUT gets the files of every IN and, in the place of their lists, one SHA256SUMS of everything; each image as an index
of both processors (``cni-calico-V-images.tar``), images.txt and images-digests.txt; the manifests and the chart with
digests; provenance.json; install.sh, verify.sh, mirror.sh and the public keys; and, once published.toml says where
releases are, krew's manifest and Homebrew's formula. It must not exist yet. Then comes build/release/sign.sh.

Rule: everything is read and compared before OUT appears, which it does whole; the same IN gives the same bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "image"))

from archive import write_tar
from brew import render_formula
from indexes import Images, join_platforms
from installer import INSTALLER, render_installer
from krew import render_manifest
from listed import Listed, Unlisted
from made import Made, Unjoinable, digest_of, read_made, require_one_release
from pinned import images_in, list_images, pin_chart, pin_images
from provenance import render_provenance
from published import PUBLISHED, Published, read_published
from verification_keys import KEYS, join_keys

ROOT = Path(__file__).resolve().parent.parent.parent
NAME = "cni-calico"
MANIFESTS = (
    *("calico.yaml", "etcd/calico-etcd.yaml", "calico-v3.yaml", "crds.yaml", "crds-v3.yaml", "admission-v3.yaml"),
    *("calico-typha.yaml", "calico-typha-v3.yaml", "calico-webhooks.yaml"),
)
SCRIPTS = tuple(ROOT / "build" / "release" / name for name in ("verify.sh", "mirror.sh"))


def read_manifests(tarball: Path) -> dict[str, str]:
    """File name -> text, of those that a release has beside its tarballs."""
    found: dict[str, str] = {}
    with tarfile.open(tarball) as tar:
        for member in tar:
            place = member.name.partition("/manifests/")[2]
            if place in MANIFESTS and (file := tar.extractfile(member)) is not None:
                found[place.rpartition("/")[2]] = file.read().decode()
    if len(found) != len(MANIFESTS):
        raise Unjoinable(f"{tarball} has not every manifest: wanted are {', '.join(MANIFESTS)} below manifests/")
    return found


def _read_images(made: Sequence[Made], version: str) -> Images:
    archives = {}
    for each in made:
        name = f"{NAME}-{version}-images-{each.architecture}.tar"
        if name not in each.sums:
            raise Unjoinable(f"{each.directory} has no {name}")
        archives[each.architecture] = (each.directory / name, each.fields["Build"])
    return join_platforms(archives, version)


def _drafts(made: Sequence[Made], version: str, published: Published) -> dict[str, str]:
    """File name -> content of what leads to the release elsewhere; none of a release that is published nowhere."""
    if not published.releases:
        return {}
    sums = {name: digest for each in made for name, digest in each.sums.items()}
    listed = Listed(version, f"{published.releases}/v{version}", sums)
    home = published.homepage or published.releases
    try:
        return {"kubectl-calico.yaml": render_manifest(listed, home), f"{NAME}.rb": render_formula(listed, home)}
    except Unlisted as e:
        raise Unjoinable(str(e)) from e


def _copy(made: Sequence[Made], out: Path, without: str) -> None:
    for each in made:
        for name in each.sums:
            if name != without and not (out / name).exists():
                shutil.copyfile(each.directory / name, out / name)
        shutil.copyfile(each.buildinfo, out / each.buildinfo.name)


def join(out: Path, directories: Sequence[Path], published: Published, keys: Path) -> None:
    """Raises Unjoinable or Unpublishable; OUT is not there then."""
    if out.exists():
        raise Unjoinable(f"{out} exists: name a directory that does not, or remove it")
    made = sorted((read_made(directory) for directory in directories), key=lambda each: each.architecture)
    require_one_release(made)
    version = made[0].fields["Version"]
    images = _read_images(made, version)
    for name in images.digests:
        if not name.startswith(f"{published.registry}/"):
            raise Unjoinable(
                f"the images are named {name}, and published.toml says {published.registry}: make the release again"
                " with build/release.sh"
            )
    tarballs = [each.directory / f"{NAME}-{version}-linux-{each.architecture}.tar.xz" for each in made]
    manifests, *others = (read_manifests(tarball) for tarball in tarballs)
    if any(other != manifests for other in others):
        raise Unjoinable(f"the manifests in {' and '.join(map(str, tarballs))} differ")
    pinned = {name: pin_images(text, images.digests, name) for name, text in manifests.items()}
    used = {name for text in manifests.values() for name in images_in(text)}
    if len(used) != 1:
        raise Unjoinable(f"the manifests run several images, the chart has one digest: {', '.join(sorted(used))}")
    public = join_keys(sorted(keys.glob("*.pub")), published.keys)
    try:
        installer = render_installer(INSTALLER.read_text(), version, published.releases, public)
    except ValueError as e:
        raise Unjoinable(f"cannot write install.sh: {e}") from e
    drafts = _drafts(made, version, published)
    chart = f"{NAME}-chart-{version}.tgz"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as scratch:
        new = Path(scratch) / "release"
        new.mkdir()
        _copy(made, new, without=chart)
        pin_chart(made[0].directory / chart, new / chart, images.digests[used.pop()])
        for name, text in (pinned | drafts).items():
            (new / name).write_text(text)
        write_tar(new / f"{NAME}-{version}-images.tar", images.files)
        (new / "images.txt").write_text(list_images(images.digests)[0])
        (new / "images-digests.txt").write_text(list_images(images.digests)[1])
        for script in SCRIPTS:
            shutil.copyfile(script, new / script.name)
        (new / INSTALLER.name).write_text(installer)
        if public:
            (new / f"{NAME}.pub").write_text(public)
        for path in new.iterdir():
            path.chmod(0o755 if path.suffix == ".sh" else 0o644)
        sums = {path.name: digest_of(path) for path in new.iterdir()}
        (new / "provenance.json").write_text(render_provenance(made, sums, images, published))
        sums["provenance.json"] = digest_of(new / "provenance.json")
        (new / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items())))
        os.rename(new, out)


def main() -> None:
    words = argparse.ArgumentParser(
        prog="join.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument("out", type=Path, metavar="OUT")
    words.add_argument("made", type=Path, nargs="+", metavar="IN", help="an OUT of build/release.sh")
    words.add_argument(
        "--published", type=Path, default=PUBLISHED, help="where releases are published (default: %(default)s)"
    )
    words.add_argument("--keys", type=Path, default=KEYS, help="the directory of public keys (default: %(default)s)")
    given = words.parse_args()
    join(given.out, given.made, read_published(given.published), given.keys)


if __name__ == "__main__":
    main()
