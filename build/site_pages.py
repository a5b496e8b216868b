"""Lays the project's pages out as one tree for the documentation site.

    site_pages.py DIRECTORY

Rule: the pages are those of the repository, links between them included; nothing is written for the site alone. The
keys of the releases stand beside them, once there are some.

docs/ becomes the root of the tree. The pages beside README.md join it, README.md itself as ``about.md``
(``index.md`` is the start page). A link to a file that is no page, such as a manifest, becomes the file's name.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parent / "release"))

from published import read_published
from verification_keys import write_keys

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
RENAMED = {"README.md": "about.md"}


def pages(root: Path = ROOT) -> dict[Path, str]:
    """Every page and picture of the repository, and its place in the tree."""
    found = {path: RENAMED.get(path.name, path.name) for path in sorted(root.glob("*.md"))}
    beside = (path for path in sorted((root / "docs").rglob("*")) if path.is_file())
    return found | {path: path.relative_to(root / "docs").as_posix() for path in beside}


def render(page: Path, places: dict[Path, str]) -> str:
    """The text of a page, its links as they are from its place in the tree."""
    here = PurePosixPath(places[page])

    def relinked(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        path, hash_, heading = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return match.group(0)
        place = places.get((page.parent / path).resolve())
        if place is None:
            return text if text.startswith("`") else f"{text} (`{path.removeprefix('../')}`)"
        up = "../" * (len(here.parts) - 1)
        return f"{picture}[{text}]({up}{place}{hash_}{heading})"

    return LINK.sub(relinked, page.read_text())


def write_tree(directory: Path, root: Path = ROOT) -> None:
    """Write all pages below ``directory``, which need not exist."""
    places = {path.resolve(): place for path, place in pages(root).items()}
    for path, place in places.items():
        target = directory / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(render(path, places))
        else:
            shutil.copyfile(path, target)


if __name__ == "__main__":
    write_tree(Path(sys.argv[1]))
    write_keys(Path(sys.argv[1]), read_published().keys)
