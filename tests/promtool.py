"""Prometheus' own tool, which says what is wrong with metrics and rules."""

from __future__ import annotations

import subprocess


def complaints(page: str) -> str:
    """What ``promtool check metrics`` has to say about a page; nothing when all is well."""
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True)
    return done.stderr + done.stdout + (f"exit status {done.returncode}" if done.returncode else "")


def undescribed(page: str) -> set[str]:
    """Samples whose metric has no HELP or no TYPE."""
    known: dict[str, set[str]] = {"HELP": set(), "TYPE": set()}
    samples = set()
    for line in page.splitlines():
        if line.startswith("# "):
            known[line.split()[1]].add(line.split()[2])
        else:
            samples.add(line.partition("{")[0].split()[0])
    described = known["HELP"] & known["TYPE"]
    suffixes = ("", "_bucket", "_sum", "_count")
    return {name for name in samples if not any(name.removesuffix(suffix) in described for suffix in suffixes)}
