"""What the reference plugins consist of: the Go modules that build/image/plugins.sh found in them, with licences.

Rule: the list comes from the programs themselves (``go version -m``); a module whose licence is not recognised stops
the release.
"""

from __future__ import annotations

from pathlib import Path

from components import Component, Unowned

# what stands in a licence's text -> SPDX; the first that fits
_LICENCES = (
    (("Apache License", "Version 2.0, January 2004"), "Apache-2.0"),
    (("Permission is hereby granted, free of charge",), "MIT"),
    (("Redistribution and use in source and binary forms", "Neither the name"), "BSD-3-Clause"),
    (("Redistribution and use in source and binary forms",), "BSD-2-Clause"),
)


def read_modules(made: Path) -> list[Component]:
    """The components of the directory that build/image/plugins.sh prints, sorted. Raises Unowned."""
    rows = (line.split() for line in (made / "modules").read_text().splitlines())
    return sorted(_component(path, version, made / "licences" / f"{path}@{version}") for path, version, _ in rows)


def _component(path: str, version: str, licences: Path) -> Component:
    texts = tuple((file.name, file.read_text(errors="replace")) for file in sorted(licences.iterdir()))
    return Component("golang", path, version, recognise_licence(path, "\n".join(text for _, text in texts)), texts)


def recognise_licence(name: str, text: str) -> str:
    """Its SPDX identifier. Raises Unowned."""
    words = " ".join(text.split())
    for parts, licence in _LICENCES:
        if all(part in words for part in parts):
            return licence
    raise Unowned(f"cannot release: the licence of {name} is not one of those that build/release/gomodules.py knows")
