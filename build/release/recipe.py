#!/usr/bin/env python3
"""BUILDINFO as a recipe, for build/release/rebuild.sh: ``recipe.py WHAT BUILDINFO``. WHAT is fields
(processor, commit, version, epoch and the date of Debian's lists, in one line), packages (of the build root, a line
NAME=VERSION for each), pins (preferences of apt that take exactly these) or sums (a line SHA-256 NAME for each file).

Rule: what is printed has the form that build/release.sh writes, so a shell and apt can read it; all else is refused.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from made import ARCHITECTURES, Unjoinable, parse_buildinfo

_PINNED = 1001  # apt: also where that means an older version
_FORMS = {
    "Architecture": "|".join(ARCHITECTURES),
    "Commit": "[0-9a-f]{40}",
    "Version": r"[0-9][0-9A-Za-z.+~]*",
    "Source-Date-Epoch": "[0-9]{1,11}",
    "Debian": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
}


class NoRecipe(SystemExit):
    """What nobody could make again, and why."""


@dataclass(frozen=True)
class Recipe:
    """``fields``: of _FORMS; ``packages``: name and version; ``sums``: file name -> SHA-256, as they were published."""

    fields: dict[str, str]
    packages: Sequence[tuple[str, str]]
    sums: dict[str, str]


def parse_recipe(text: str, name: str) -> Recipe:
    """Raises NoRecipe."""
    try:
        fields, sums, packages = parse_buildinfo(text, name)
    except Unjoinable as e:
        raise NoRecipe(str(e)) from e
    if fields["Commit"].endswith(" (changed)"):
        raise NoRecipe(f"{name} is of a trial that was made from changed sources, which nobody else has")
    for field, form in _FORMS.items():
        if not re.fullmatch(form, fields.get(field, "")):
            raise NoRecipe(f"cannot read {name}: {field} is {fields.get(field, '')[:80]!r}")
    if not packages or not sums:
        raise NoRecipe(f"cannot read {name}: it lists no {'packages' if sums else 'files'}; was it cut off?")
    for package, version in packages:
        if not re.fullmatch(r"[a-z0-9][a-z0-9+.-]+ [0-9][0-9A-Za-z.+~:-]*", f"{package} {version}"):
            raise NoRecipe(f"cannot read {name}: no package of Debian: {package[:80]} {version[:80]}")
    return Recipe({field: fields[field] for field in _FORMS}, packages, sums)


def read_recipe(path: Path) -> Recipe:
    """Raises NoRecipe."""
    try:
        text = path.read_text()
    except (OSError, UnicodeError) as e:
        raise NoRecipe(f"cannot read {path}: {e}") from e
    return parse_recipe(text, str(path))


def render_pins(packages: Sequence[tuple[str, str]]) -> str:
    """As apt_preferences(5) wants them."""
    return "".join(
        f"Package: {name}\nPin: version {version}\nPin-Priority: {_PINNED}\n\n" for name, version in packages
    )


def render(recipe: Recipe, what: str) -> str:
    if what == "fields":
        return " ".join(recipe.fields.values()) + "\n"
    if what == "pins":
        return render_pins(recipe.packages)
    if what == "packages":
        return "".join(f"{name}={version}\n" for name, version in recipe.packages)
    return "".join(f"{digest} {name}\n" for name, digest in recipe.sums.items())


def main() -> None:
    words = sys.argv[1:]
    if len(words) != 2 or words[0] not in ("fields", "pins", "packages", "sums"):
        sys.exit(f"{__doc__}")
    print(render(read_recipe(Path(words[1])), words[0]), end="")


if __name__ == "__main__":
    main()
