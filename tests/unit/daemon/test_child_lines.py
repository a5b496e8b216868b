"""Whatever a child prints, standard error has records of one form."""

import json
import re
import subprocess
import sys

import pytest

PROGRAM = """
import os, subprocess
from cni_calico.daemon.child_lines import ChildLines
from cni_calico.log import Log
lines = ChildLines(Log("error", as_json={as_json}))
subprocess.run({command!r}, stdout=lines.fd, stderr=lines.fd)
lines.close()
"""
PRINTED = [
    "2026-01-02 03:04:05.678 <WARN> Kernel dropped some netlink messages",
    "<ERR> no such protocol",
    "bird: Starting",
    "<FATAL> Shutdown completed",
    "<FATAL> Out of memory",
    "Traceback (most recent call last):",
    "",
]


def told(printed, *, as_json):
    command = [sys.executable, "-c", f"import sys; sys.stderr.write({printed!r})"]
    program = PROGRAM.format(as_json=as_json, command=command)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_as_json():
    ours = '{"time": "2026-01-02T03:04:05.678Z", "level": "info", "pid": 7, "message": "ours"}'
    first, *rest = map(json.loads, told("\n".join([ours, *PRINTED]), as_json=True))
    assert first["pid"] == 7 and first["message"] == "ours"
    assert [(each["level"], each["context"], each["message"]) for each in rest] == [
        ("warning", "bird", "Kernel dropped some netlink messages"),
        ("error", "bird", "no such protocol"),
        ("warning", "bird", "Starting"),
        ("info", "bird", "Shutdown completed"),
        ("error", "bird", "Out of memory"),
        ("info", "output", "Traceback (most recent call last):"),
    ]


def test_as_text():
    ours = ["2026-01-02 03:04:05.678 [INFO][7] agent: ours", "\tand more"]
    passed, more, *rest = told("\n".join([*ours, *PRINTED]), as_json=False)
    assert [passed, more] == ours
    form = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[(\w+)\]\[\d+\] (\w+): .+")
    assert [form.fullmatch(line).groups() for line in rest] == [
        ("WARNING", "bird"),
        ("ERROR", "bird"),
        ("WARNING", "bird"),
        ("INFO", "bird"),
        ("ERROR", "bird"),
        ("INFO", "output"),
    ]


@pytest.mark.parametrize("printed", ["without an end", "x" * 100_000, "\x00\udcff\n"])
def test_what_is_no_line(printed):
    printed = printed.encode("utf-8", "surrogateescape").decode("latin-1")
    found = [json.loads(line)["message"] for line in told(printed, as_json=True)]
    assert "".join(found).startswith(printed[:1]) and len("".join(found)) >= len(printed.strip())
