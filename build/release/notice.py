"""NOTICE: what is shipped, and the licence text of all of it.

Rule: each text stands once, below the names of everything that is under it.
"""

from __future__ import annotations

from collections.abc import Sequence

from components import Component

RULE = "=" * 100


def render_notice(
    title: str, bundle: Sequence[Component], plugins: Sequence[Component], image: Sequence[Component]
) -> str:
    """``bundle``: in the executables and beside them; ``plugins``: in the reference plugins; ``image``: the Debian
    packages below them in the image.
    """
    lines = [
        title,
        "",
        "Licensed under the Apache License, Version 2.0; its text is in the file LICENSE.",
        "",
        "It is shipped together with the following, each under its own licence, whose text stands below. The source of",
        "every Debian package is the source package of the version named with it, in Debian's archive.",
        "",
        *_table(
            "In the executables and the directory beside them (in the tarball, the packages and the image)", bundle
        ),
        *_table("In the reference plugins (in the tarball and the image): Go modules", plugins),
        *_table("In the image besides: Debian 12", image),
    ]
    users: dict[tuple[str, str], list[str]] = {}
    for component in [*bundle, *plugins, *image]:
        for file, text in component.texts:
            users.setdefault((file if file[0].isupper() else "", text.strip("\n")), []).append(component.name)
    for (_, text), names in users.items():
        lines += [RULE, *_wrapped(sorted(set(names))), RULE, "", text, ""]
    return "\n".join(lines)


def _table(title: str, components: Sequence[Component]) -> list[str]:
    rows = [
        (each.name, each.version, (each.source and f"source: {each.source}") or each.licence) for each in components
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
    return [title, "", *(f"  {a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows), ""]


def _wrapped(names: Sequence[str], width: int = 100) -> list[str]:
    lines = [""]
    for name in names:
        if len(lines[-1]) + len(name) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{name}"
    return lines
