"""What of a contents directory the plugins calico and calico-ipam do not need; it is left out where only they go.

Rule: found by import statements, including those inside functions: what no module that a plugin may import names is for
the other programs. The standard library, and files that belong to no package, stay.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from expand import drop_types

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "cni_calico"
FILE = "unneeded"  # build/install-bundle.sh reads it
PLUGINS = ("calico.python", "calico-ipam.python")
_BUILT_IN = frozenset((f"{PROJECT}.expanded",))  # imported by what build/expand.py writes
# manual page and completions of calicoctl; the units that it installs; what the agent starts from
_OTHERS = ("share", "install", "packs")


def write_unneeded(contents: Path) -> None:
    """Write the file FILE of a contents directory: its paths that no plugin needs, a directory with a slash."""
    paths = select_unneeded(contents, [ROOT / "build" / "launch" / f"{plugin}.py" for plugin in PLUGINS])
    paths += [f"{other}/" for other in _OTHERS if (contents / other).is_dir()]
    (contents / FILE).write_text("".join(f"{path}\n" for path in sorted(paths)))


def select_unneeded(contents: Path, launchers: list[Path]) -> list[str]:
    """The paths of a contents directory that no program begun by one of ``launchers`` needs. Modules of the project may
    be among these: what a program imports by a name that it puts together.
    """
    needed, packages = find_needs(launchers)
    return [*_unneeded_modules(contents, needed), *_unneeded_packages(contents, packages)]


def find_needs(launchers: list[Path], *, as_written: bool = False) -> tuple[set[str], set[str]]:
    """(modules of the project, names of other top-level packages) that a program may import.

    ``as_written``: it runs from the sources, in which imports for annotations alone are still there.
    """
    modules = set(_BUILT_IN).union(*map(_own_names, launchers))
    others: set[str] = set()
    todo = [*launchers, *(path for name in _BUILT_IN if (path := _source(name)))]
    while todo:
        for name in _imports(todo.pop(), as_written=as_written):
            parts = name.split(".")
            if parts[0] != PROJECT:
                others.add(parts[0])
                continue
            for count in range(1, len(parts) + 1):
                module = ".".join(parts[:count])
                path = _source(module)
                if path is not None and module not in modules:
                    modules.add(module)
                    todo.append(path)
    return modules, others


def _own_names(path: Path) -> Iterator[str]:
    """Of a module of the project, and of the packages that it is in."""
    if path.is_relative_to(ROOT / PROJECT):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _imports(path: Path, *, as_written: bool) -> Iterator[str]:
    tree = ast.parse(path.read_bytes())
    if not as_written:
        drop_types(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _source(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _unneeded_modules(contents: Path, needed: set[str]) -> Iterator[str]:
    """Whole directories where nothing in them is needed."""
    wanted = {path.relative_to(ROOT).with_suffix(".pyc") for name in needed if (path := _source(name))}
    whole: list[Path] = []
    for path in sorted((contents / PROJECT).rglob("*")):
        relative = path.relative_to(contents)
        if any(parent in whole for parent in relative.parents):
            continue
        if path.is_dir() and not any(relative in one.parents for one in wanted):
            whole.append(relative)
            yield f"{relative}/"
        elif path.suffix == ".pyc" and relative not in wanted:
            yield str(relative)


def _unneeded_packages(contents: Path, needed: set[str]) -> Iterator[str]:
    """Others' packages that neither a plugin nor what it imports requires."""
    belongs = packages_distributions()
    required: set[str] = set()
    todo = [name for package in needed for name in belongs.get(package, ())]
    while todo:
        name = _normal(todo.pop())
        if name not in required:
            required.add(name)
            try:
                todo += [line for line in requires(name) or () if "extra ==" not in line]
            except PackageNotFoundError:  # for another platform
                continue
    for path in sorted(contents.iterdir()):
        is_metadata = path.name.endswith(".dist-info")
        name = path.name.rpartition("-")[0] if is_metadata else path.name.partition(".")[0]
        owners = {_normal(owner) for owner in ([name] if is_metadata else belongs.get(name, ()))}
        if owners and not owners & required:
            yield f"{path.name}/" if path.is_dir() else path.name


def _normal(requirement: str) -> str:
    """The name of a distribution, of a line that may say more."""
    return re.split(r"[^\w.-]", requirement, maxsplit=1)[0].lower().replace("_", "-")
