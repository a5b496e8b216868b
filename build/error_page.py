"""Prints docs/errors.md from cni_calico/errors.py: `python -m build.error_page > docs/errors.md`."""

from __future__ import annotations

import inspect

from cni_calico import errors

BLAME = {
    "user": "whoever wrote the configuration or the request",
    "node": "this host",
    "cluster": "the datastore, or what is stored in it",
    "bug": "cni-calico itself",
}

HEAD = """# Error codes

Every failure is a CNI error object on stdout, `{"cniVersion", "code", "msg", "details"}`, with exit status 1: `msg`
says what could not be done and why, `details` what to do about it. Codes below 100 are the CNI specification's; a
runtime repeats a call that failed with 11. This page is made from the code.

| code | condition | where to look | what it means |
|---|---|---|---|
"""


def classes(base: type[errors.CalicoError]) -> list[type[errors.CalicoError]]:
    found = [base]
    for sub in base.__subclasses__():
        found += classes(sub)
    return found


def render() -> str:
    rows = []
    for item in sorted(set(classes(errors.CalicoError)), key=lambda c: (c.code, c.__name__)):
        if item is errors.CalicoError or item.__module__ != errors.__name__:
            continue
        meaning = " ".join((inspect.getdoc(item) or "").split("\n\n")[0].split())
        if item.hint:
            meaning += f" *{item.hint}.*"
        rows.append(f"| {item.code} | `{item.__name__}` | {BLAME[item.blame]} | {meaning} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(render(), end="")
