"""Compiles the native front (build/front): ``calico`` and ``calico-ipam`` as static programs that need no C library.

Rule: every constant that the C sources share with the Python ones is written into ``protocol.h`` from those; a warning
is an error; the same sources and compiler give the same bytes, whatever the directory.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from elf import read_elf

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "build" / "front"
NAMES = ("calico", "calico-ipam")
WARNINGS = (
    "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion", "-Wcast-qual",
    "-Wstrict-prototypes", "-Wundef", "-Wvla", "-Wformat=2", "-Wno-missing-field-initializers", "-Werror",
)  # fmt: skip
COMMON = ("-std=c11", "-O2", "-g0", *WARNINGS)
# position-independent, without a dynamic linker, without relocations; the three functions that the compiler may call
# are written as loops, which it must not turn into calls of the functions themselves
FREESTANDING = (
    "-ffreestanding", "-fno-stack-protector", "-fno-asynchronous-unwind-tables", "-fno-tree-loop-distribute-patterns",
    "-fvisibility=hidden", "-fPIE", "-static-pie", "-nostdlib", "-nostartfiles", "-Wl,--build-id=none,--no-undefined",
    "-Wl,-z,noexecstack,-z,norelro,-z,noseparate-code,--gc-sections,-s",
)  # fmt: skip
SANITIZED = ("-DHOSTED", "-D_GNU_SOURCE", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def compiler_version(compiler: str = "gcc") -> str:
    done = subprocess.run([compiler, "-dumpfullversion", "-dumpmachine"], capture_output=True, text=True, check=True)
    return done.stdout.replace("\n", " ").strip()


def compile_front(name: str, out: Path, header: Path, *, compiler: str = "gcc", sanitized: bool = False) -> None:
    """One executable, ``out``. ``header`` is a directory with the ``protocol.h`` of write_header."""
    options = [*COMMON, *(SANITIZED if sanitized else FREESTANDING), f"-I{header}", f'-DEXECUTABLE="{name}"']
    command = [compiler, *options, "-o", str(out), "front.c"]
    done = subprocess.run(command, cwd=SOURCE, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        raise SystemExit(f"cannot compile {name}: {compiler} failed\n{done.stderr}")
    if not sanitized:
        require_free(out)


def require_free(path: Path) -> None:
    """Refuse a program that would need a dynamic linker, a library or a relocation."""
    found = read_elf(path)
    if found.interpreter is not None or found.needed or found.relocations:
        raise SystemExit(f"cannot use {path}: it is not free of the host's dynamic linker and libraries")


def write_header(directory: Path) -> None:
    """``protocol.h`` in that directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "protocol.h").write_text(render_header())


def render_header() -> str:
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from cni_calico import directories
    from cni_calico.cni.answer import answer_error
    from cni_calico.cni.environment import CALLER_VARIABLES
    from cni_calico.cni.versions import CURRENT, SUPPORTED, VERSION_ANSWER
    from cni_calico.errors import PythonNotExecutable
    from cni_calico.plugin.call import protocol, shim

    begin, end = VERSION_ANSWER.split("%s")
    broken = PythonNotExecutable("cannot execute the Python part of this plugin")
    defined: dict[str, int | str] = {
        "PROTOCOL_VERSION": protocol.VERSION,
        "FRAME_MAGIC": protocol.MAGIC.decode(),
        "HEADER_BYTES": protocol.HEADER_BYTES,
        "BODY_MAX": protocol.BODY_MAX,
        "NAMES_WITH_NETNS": b",".join((protocol.NETNS, protocol.ROOT, protocol.MOUNTS)).decode(),
        "NAMES_WITHOUT_NETNS": b",".join((protocol.ROOT, protocol.MOUNTS)).decode(),
        "CONNECT_S": int(protocol.CONNECT_S),
        "PATIENCE_MS": int(protocol.PATIENCE_S * 1000),
        "PATIENCE_MIN_MS": int(protocol.PATIENCE_MIN_S * 1000),
        "PATIENCE_VARIABLE": protocol.PATIENCE_VARIABLE,
        "RUN_DIRECTORY_VARIABLE": "CALICO_RUN_DIR",
        "RUN_DIRECTORY": directories.RUN_DIR,
        "SOCKET_NAME": directories.CNI_SOCKET,
        "VARIABLES": "".join(f"{name}\0" for name in CALLER_VARIABLES),
        "SUPPORTED_VERSIONS": " ".join(SUPPORTED),
        "CURRENT_VERSION": CURRENT,
        "VERSION_BEGIN": begin,
        "VERSION_END": end + "\n",
        "SERVE_HERE": shim.SERVE_HERE,
        "SERVE_HERE_STUCK": shim.SERVE_HERE_STUCK,
        "CANNOT_EXECUTE": answer_error(broken, CURRENT).stdout,
    }
    lines = [f"#define {name} {_literal(value)}" for name, value in defined.items()]
    return "\n".join(["// Written by build/native.py.", "#pragma once", *lines, ""])


def _literal(value: int | str) -> str:
    if isinstance(value, int):
        return f"{value}u"
    return '"' + re.sub(r"[^ !#-\[\]-~]", lambda found: f"\\{ord(found[0]):03o}", value) + '"'


def main(arguments: Sequence[str]) -> None:
    """``native.py DIR [COMPILER]``: only the front, for inspection."""
    directory = Path(arguments[0])
    write_header(directory)
    for name in NAMES:
        compile_front(name, directory / name, directory, compiler=[*arguments, "gcc"][1])


if __name__ == "__main__":
    main(sys.argv[1:])
