"""Packs the modules of a program's start into one file of the contents directory, ``packs/NAME``.

Rule: it has the code of the .pyc files, which stay: cni_calico/packed.py imports from it, and whatever is not in it as
usual. What is packed is found in the compiled modules: what the first ones import in their heads, and so on.

The file: eight bytes (little-endian) that say how long what follows is; a marshalled dictionary of module names, each
with the offset of its code after that, its length, and whether it is a package; the marshalled code, one after another.
"""

from __future__ import annotations

import dis
import marshal
from _imp import is_frozen
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

DIRECTORY = "packs"
# by the launcher's name: what a program imports in functions at every start
STARTS = {
    "calico-node": (
        "cni_calico.nodeagent.main",
        "cni_calico.nodeagent.context.open",
        "cni_calico.nodeagent.felix",
        "cni_calico.nodeagent.dataplane.apply",
        "cni_calico.nodeagent.parts",
        "cni_calico.datastore.etcd.store",
        "cni_calico.datastore.kubernetes.store",
        "cni_calico.datastore.local.store",
    ),
}
_HEAD = 16  # of a .pyc file


def write_packs(contents: Path) -> None:
    """Write the pack of each program that has one."""
    (contents / DIRECTORY).mkdir()
    for name, first in STARTS.items():
        index: dict[str, tuple[int, int, bool]] = {}
        packed = bytearray()
        for module, path in sorted(select_modules(contents, first).items()):
            code = path.read_bytes()[_HEAD:]
            index[module] = len(packed), len(code), path.stem == "__init__"
            packed += code
        head = marshal.dumps(index)
        (contents / DIRECTORY / name).write_bytes(len(head).to_bytes(8, "little") + head + packed)


def select_modules(contents: Path, first: tuple[str, ...]) -> dict[str, Path]:
    """The files of all modules that these import in their heads, by name. One that is missing is an error."""
    found: dict[str, Path] = {}
    todo = list(first)
    while todo:
        name = todo.pop()
        path = _file(contents, name)
        if name in found or is_frozen(name):
            continue
        if path is None:
            if name in first:
                raise SystemExit(f"cannot pack {name}: it is not in {contents}")
            continue  # built in, in C, or absent here
        found[name] = path
        package = name if path.stem == "__init__" else name.rpartition(".")[0]
        code = marshal.loads(path.read_bytes()[_HEAD:])  # noqa: S302 (just compiled)
        for imported in _imports(code, package):
            parts = imported.split(".")
            todo += (".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found


def _file(contents: Path, module: str) -> Path | None:
    path = contents.joinpath(*module.split("."))
    candidates = (path / "__init__.pyc", path.with_name(f"{path.name}.pyc"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _imports(code: CodeType, package: str) -> Iterator[str]:
    """What a module names in its head, with what could be submodules."""
    instructions = list(dis.get_instructions(code))
    for level, names, instruction in zip(instructions, instructions[1:], instructions[2:], strict=False):
        if instruction.opname != "IMPORT_NAME":
            continue
        name = str(instruction.argval)
        if level.argval:
            base = package.rsplit(".", level.argval - 1)[0]
            name = f"{base}.{name}" if name else base
        yield name
        yield from (f"{name}.{each}" for each in names.argval or () if each != "*")
