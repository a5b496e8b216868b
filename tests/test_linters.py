"""The linters and the house's rules, as tests: nobody has to remember them."""

from __future__ import annotations

import ast
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from expand import drop_types
from plugin_needs import PLUGINS, find_needs

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(sys.executable).parent
LONGEST_MODULE = 400
CAPITALISED = re.compile(r"_?[A-Z]\w*[a-z]\w*|JSON")  # not a constant
GENERATED = {
    "cni_calico/cnidataplane/dataplane_pb2.py",
    "cni_calico/datastore/etcd/etcd_pb2.py",
    "cni_calico/flows/export/goldmane_pb2.py",
    "cni_calico/nodeagent/sync/felix_pb2.py",
    "cni_calico/alp/envoy_pb2.py",
}


@cache
def files() -> tuple[Path, ...]:
    """Every file of the project, relative to its root: tracked, or new and not ignored."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(Path(name) for name in sorted(listed.split("\0")) if name and (ROOT / name).is_file())


def is_shell_script(path: Path) -> bool:
    if path.suffix == ".sh":
        return True
    with (ROOT / path).open("rb") as f:
        return re.match(rb"#! ?/(usr/)?bin/(env )?(ba|da)?sh\b", f.readline()) is not None


def run_tool(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment, "NO_COLOR": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff() -> None:
    run_tool(TOOLS / "ruff", "check", ".")


def test_ruff_format() -> None:
    run_tool(TOOLS / "ruff", "format", "--check", ".")


def test_mypy() -> None:
    run_tool(TOOLS / "mypy")


def test_mypy_of_the_build() -> None:
    sources = [p for p in files() if p.match("build/*.py") or p.match("build/release/*.py")]
    run_tool(TOOLS / "mypy", "--strict", *sources, MYPYPATH="build:build/release:build/image")


def test_layers() -> None:
    run_tool(TOOLS / "lint-imports", "--no-cache")


# contract of .importlinter -> what may do what it forbids; it lists everything else
DOORS_OF = {
    "pyroute2": {"kernel"},
    "clients": {"datastore", "slim_grpc"},
    "databases": {"datastore", "flows"},
    "processes": {"kernel"},
}


@pytest.mark.parametrize("contract", DOORS_OF)
def test_what_only_a_door_may_do_is_forbidden_to_all_others(contract: str) -> None:
    parsed = ConfigParser()
    parsed.read(ROOT / ".importlinter")
    listed = parsed[f"importlinter:contract:{contract}"]["source_modules"].split()
    others = {name for name in modules() if name.count(".") == 1 and name.split(".")[1] not in DOORS_OF[contract]}
    assert sorted(listed) == sorted(others)


# where a checker is told to look away, which it says with the reason
EXCUSED = {
    "build/lean.py": "code that it has just compiled is taken apart",
    "build/pack.py": "code that it has just compiled is taken apart",
    "build/launch/calico-ipam.python.py": "the garbage collector is switched off before anything else is imported",
    "build/launch/calico.python.py": "the same",
    "build/launch/calicoctl.py": "it looks less often, from the first import on",
    "cni_calico/ctl/node/diags.py": "a file in /tmp that is made exclusively",
    "cni_calico/nodeagent/aws/documents.py": "a parser of XML, for documents of AWS without a DTD",
    "cni_calico/packed.py": "code of the bundle is run, as every import does",
}
# split, so that this file does not find itself
EXCUSE = re.compile(r"# no" + r"qa\b|# type: ig" + r"nore|pragma: no " + r"cover")


def test_what_is_excused_from_a_check_is_named() -> None:
    found = {p.as_posix() for p in files() if p.suffix == ".py" and EXCUSE.search((ROOT / p).read_text())}
    assert found - GENERATED == set(EXCUSED)


def test_shellcheck() -> None:
    scripts = [p for p in files() if is_shell_script(p)]
    assert {"build.sh", "install-bundle.sh", "run"} <= {p.name for p in scripts}
    run_tool(TOOLS / "shellcheck", "--external-sources", *scripts)


def test_module_size() -> None:
    sizes = {
        str(p): (ROOT / p).read_text().count("\n")
        for p in files()
        if p.suffix == ".py" and p.parts[0] != "tests" and str(p) not in GENERATED
    }
    assert {name: lines for name, lines in sizes.items() if lines > LONGEST_MODULE} == {}


def test_no_attic_modules() -> None:
    attic = re.compile(r"(utils?|common|helpers?|manager|misc)\.py")
    assert [str(p) for p in files() if attic.fullmatch(p.name)] == []


def test_no_file_repeats_its_folders_name() -> None:
    found = [
        str(p)
        for p in files()
        if p.parts[0] == "cni_calico" and p.suffix == ".py" and str(p) not in GENERATED
        if p.parent.name in (p.stem, p.stem.partition("_")[0], p.stem.rpartition("_")[2])
    ]
    assert found == []


# folder and beginning -> why its files are named after what they become, not after what they hold
NAMED_BY_OTHERS = {
    ("build/launch", "calico"): "executables",
    ("install/systemd", "calico"): "units",
    ("manifests", "calico"): "upstream's manifests",
}


def test_a_beginning_that_three_files_share_is_a_folder() -> None:
    """``test_`` does not count, nor do the files of tests/golden, which are named after their cases."""
    beginnings: dict[tuple[str, str], set[str]] = {}
    for path in files():
        if path.parts[:2] != ("tests", "golden"):
            name = path.name.partition(".")[0].removeprefix("test_")
            beginnings.setdefault((path.parent.as_posix(), re.split("[_-]", name)[0]), set()).add(name)
    found = {where: sorted(names) for where, names in beginnings.items() if len(names) > 2 and where[1]}
    assert {where: names for where, names in found.items() if where not in NAMED_BY_OTHERS} == {}
    assert NAMED_BY_OTHERS.keys() <= found.keys()


# split, so that this file does not find itself
UNWANTED = {
    "a path of one machine": r"(?<![\w.~-])/(wo" + r"rk|ro" + r"ot)/",
    "a registry's host": r"\b(py" + r"pi\.org|files\.python" + r"hosted\.org|(proxy|sum)\.go" + r"lang\.org)",
    "unfinished work": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "an empty method": r"\bNotImplemented" + r"Error\b",
}


@pytest.mark.parametrize("what", UNWANTED)
def test_unwanted_text(what: str) -> None:
    pattern = re.compile(UNWANTED[what])
    found = [
        f"{path}:{number}: {line.strip()[:100]}"
        for path in files()
        if path.suffix != ".lock" and path.parts[:2] != ("tests", "golden")
        for number, line in enumerate((ROOT / path).read_text(errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_tests_do_not_sleep() -> None:
    sleep = re.compile(r"\btime\.sleep\(|\bfrom time import .*\bsleep\b")
    found = [
        str(path)
        for path in files()
        if path.suffix == ".py"
        and path.parts[0] == "tests"
        and path.parts[1] not in ("bench", "test_linters.py")
        and sleep.search((ROOT / path).read_text())
    ]
    assert found == []


# -- imports as they stand in the text: lazy ones and those for types alone included ---------------------------------

# all that a pure module may import that is not ours: it computes, and nothing else
PURE_LIBRARIES = {
    *(
        "__future__",
        "_blake2",
        "_sha1",
        "_sha256",
        "array",
        "base64",
        "binascii",
        "bisect",
        "codecs",
        "collections",
        "collections.abc",
        "contextlib",
        "dataclasses",
    ),
    *("datetime", "difflib", "enum", "errno", "functools", "graphlib", "hashlib", "html", "ipaddress"),
    "itertools",
    *("json", "jsonpatch", "jsonpath", "math", "operator", "re", "shlex", "struct", "sys", "typing", "urllib.parse"),
    *("weakref", "yaml", "zlib"),
}
PURE_OF_SYS = {"byteorder", "intern"}  # numbers and strings; the rest of it is this process
IMPURE_CALLS = {"open", "print", "input", "exec", "eval", "exit", "quit", "breakpoint", "__import__"}
CLOCKS = re.compile(r"(\w+\.)*(datetime|date)\.(now|utcnow|today)")
# imports under another name are seen through; assignments are not, so they give none of these another name
NOT_RENAMED = IMPURE_CALLS | {"sys", "datetime", "datetime.datetime", "datetime.date"}
# what pure modules may import although it has effects: they take only names from there
NAMES_FOR_PURE = {
    "cni_calico": "the version",
    "cni_calico.faults": "a fault point is declared where its request is built, and passed where that is sent",
    "cni_calico.log": "the names of its formats",
}
PURE_PLACES = ("cni", "model", "netfilter", "policy", "nodeagent.bgp.config", "nodeagent.policing.tables")


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the product by its dotted name."""
    return {
        module_name(path): ast.parse((ROOT / path).read_text())
        for path in files()
        if path.parts[0] == "cni_calico" and path.suffix == ".py"
    }


@cache
def running() -> dict[str, ast.Module]:
    """The pure modules among them, without what is there for types only."""
    trees = {name: pickle.loads(pickle.dumps(tree)) for name, tree in modules().items() if is_pure(name)}
    for tree in trees.values():
        drop_types(tree)
    return trees


@pytest.fixture(scope="module", autouse=True)
def trees_go_with_the_last_test() -> Iterator[None]:
    """The children that later tests of this process fork would copy them."""
    yield
    for kept in (modules, running, walked, imports_of, origins_of, names_read):
        kept.cache_clear()


@cache
def walked(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Everything in a tree; it does not change any more."""
    return tuple(ast.walk(tree))


@cache
def imports_of(tree: ast.AST) -> frozenset[str]:
    """The modules that a module imports anywhere."""
    found: set[str] = set()
    for node in walked(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & modules().keys()
            found.update(inside or {node.module})
    return frozenset(found)


def test_no_circle_of_imports() -> None:
    graph = {name: {other for other in imports_of(tree) if other in modules()} for name, tree in modules().items()}
    TopologicalSorter(graph).prepare()  # a CycleError names the modules of a circle


def test_one_module_of_the_policy_engine_names_the_two_packet_filters() -> None:
    """The others see what both are, ``kernel.filter.interface``: what chooses and opens one is in one place."""
    filters = ("cni_calico.kernel.filter.nf_tables", "cni_calico.kernel.filter.legacy")
    engine = {name: tree for name, tree in modules().items() if name.startswith("cni_calico.nodeagent.policing.")}
    found = {name for name, tree in engine.items() if any(other.startswith(filters) for other in imports_of(tree))}
    assert found == {"cni_calico.nodeagent.policing.enforce.filters"}


def test_only_the_kernels_door_knows_registers() -> None:
    """Everybody else says what a rule means, in the words of ``netfilter.rules``."""
    words = "cni_calico.kernel.filter.nf_tables.expressions"
    found = {name for name, tree in modules().items() if words in imports_of(tree)}
    assert found and all(name.startswith("cni_calico.kernel.filter.") for name in found)


def is_pure(name: str) -> bool:
    """Whether a module says PURE or stands in a pure place; a file without a statement has no effects either."""
    tree = modules()[name]
    by_place = name.startswith(tuple(f"cni_calico.{place}." for place in PURE_PLACES))
    return by_place or not tree.body or (ast.get_docstring(tree) or "").startswith("PURE")


@cache
def origins_of(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: after ``from os import kill as k``, k is os.kill."""
    found: dict[str, str] = {}
    for node in walked(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def full_name(node: ast.expr, origins: dict[str, str]) -> str:
    """A name, or attribute of one, by what it stands for; anything else as it is written."""
    if isinstance(node, ast.Name):
        return origins.get(node.id, node.id).removeprefix("builtins.")
    if isinstance(node, ast.Attribute):
        return f"{full_name(node.value, origins)}.{node.attr}".removeprefix("builtins.")
    return ast.unparse(node)


@cache
def names_read(tree: ast.AST) -> frozenset[str]:
    """The full names that a module reads, calls or imports from others."""
    origins = origins_of(tree)
    read = {
        full_name(node, origins)
        for node in walked(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    return frozenset(read | {name.removeprefix("builtins.") for name in origins.values()})


def names_of(tree: ast.AST, module: str) -> set[str]:
    """What is taken of a module: ``module.NAME``, whatever it is called there, or imported from it."""
    return {name.rpartition(".")[2] for name in names_read(tree) if name.rpartition(".")[0] == module}


def calls_in(tree: ast.AST) -> list[tuple[str, list[ast.expr]]]:
    """(the full name of what is called; its arguments) of every call."""
    origins = origins_of(tree)
    return [(full_name(node.func, origins), node.args) for node in walked(tree) if isinstance(node, ast.Call)]


def second_names(tree: ast.AST) -> set[str]:
    """Other names that assignments give to what has effects, or to a module or class that has some."""
    values = [node.value for node in walked(tree) if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr)]
    named = {full_name(value, origins_of(tree)) for value in values if isinstance(value, ast.Name | ast.Attribute)}
    return {f"another name for {name}" for name in named if name in NOT_RENAMED}


def effects_of(tree: ast.Module, pure: set[str]) -> list[str]:
    """What a pure module must not do: imports that are not pure, this process, clocks, files, the screen."""
    imported = imports_of(tree)
    of_ours = {name for name in imported if name.split(".")[0] == "cni_calico"}
    return sorted(
        (of_ours - pure)
        | (imported - of_ours - PURE_LIBRARIES)
        | {f"sys.{name}" for name in names_of(tree, "sys") - PURE_OF_SYS}
        | {name for name, _ in calls_in(tree) if name in IMPURE_CALLS}
        | {name for name in names_read(tree) if CLOCKS.fullmatch(name)}
        | second_names(tree)
    )


def test_what_says_pure_says_it_first() -> None:
    """Elsewhere in a module's docstring, or as a heading inside of it, the word would be read but not checked."""
    later = re.compile(r"^\s*#.*\bPURE\b", re.MULTILINE)
    found = []
    for path in files():
        if path.parts[0] == "cni_calico" and path.suffix == ".py":
            text = (ROOT / path).read_text()
            statement = ast.get_docstring(modules()[module_name(path)]) or ""
            if later.search(text) or re.search(r"\bPURE\b", statement.removeprefix("PURE:")):
                found.append(path.as_posix())
    assert found == []


def test_what_says_pure_is_pure() -> None:
    """Of ours a pure module imports pure modules alone: so what it imports through them is pure, too."""
    pure = {name for name in modules() if is_pure(name)}
    assert len(pure) > 190
    found = {name: effects_of(running()[name], pure | NAMES_FOR_PURE.keys()) for name in sorted(pure)}
    assert {name: effects for name, effects in found.items() if effects} == {}
    used = {other for name in pure for other in imports_of(running()[name])}
    assert used >= NAMES_FOR_PURE.keys() | PURE_LIBRARIES
    assert set.union(*(names_of(modules()[name], "sys") for name in pure)) == PURE_OF_SYS


@pytest.mark.parametrize(
    ("effect", "text"),
    [
        *((name, f"import {name}") for name in ("os", "fcntl", "subprocess", "socket", "time", "_socket", "pathlib")),
        ("os", "from os import environ"),
        ("time", "def f():\n    from time import time"),
        *((f"sys.{name}", f"import sys\nsys.{name}") for name in ("stdout", "stderr", "argv", "exit", "modules")),
        ("sys.exit", "from sys import exit"),
        ("datetime.datetime.now", "from datetime import datetime\nx = datetime.now()"),
        ("datetime.datetime.now", "from datetime import datetime as d\nx = d.now()"),
        ("datetime.datetime.now", "import datetime as d\nx = d.datetime.now"),
        ("another name for datetime.datetime", "from datetime import datetime\nd = datetime\nx = d.now()"),
        ("sys.argv", "import sys as s\ns.argv"),
        ("sys.argv", "from sys import argv as a"),
        ("another name for sys", "import sys\ns = sys\ns.argv"),
        ("another name for open", "o = open\no('x')"),
        ("another name for print", "p: object = print"),
        ("builtins", "import builtins"),
        ("datetime.date.today", "import datetime\nx = datetime.date.today()"),
        ("open", "with open('x') as f:\n    pass"),
        ("print", "print(1)"),
        ("cni_calico.kernel.files", "from cni_calico.kernel import files"),
    ],
)
def test_an_effect_in_a_pure_module_is_found(effect: str, text: str) -> None:
    assert effects_of(ast.parse(text), {"cni_calico.netfilter"}) == [effect]


# why a module imports in functions what its head could import; besides, modules on the path of a CNI call do because
# only some calls need it (find_needs names them), and ``main`` modules because they decide what runs
COMMAND = "what runs is decided by the command, its options or its output's form"
PROBE = "a probe of the kubelet's starts this program every few seconds"
BACKEND = "only one kind of datastore needs it"
HEAVY = "it costs milliseconds or megabytes, for a few"
LAZY = {
    "controllers.counters": HEAVY,
    "controllers.janitor.caches": BACKEND,
    "controllers.janitor.run": HEAVY,  # the work, in every agent, for the one that is elected; elections are BACKEND
    "controllers.run": BACKEND,
    "ctl.cluster.check": COMMAND,
    "ctl.command_line.completion": HEAVY,
    "ctl.command_line.flow_arguments": COMMAND,
    "ctl.command_line.parsers": COMMAND,
    "ctl.datastore.local": COMMAND,
    "ctl.encryption.between": HEAVY,
    "ctl.flows.command": COMMAND,
    "ctl.input.manifests": HEAVY,
    "ctl.input.nearest": HEAVY,
    "ctl.input.patching": HEAVY,
    "ctl.ipam.lost": BACKEND,
    "ctl.flows.places": HEAVY,
    "ctl.kube_proxy": HEAVY,
    "ctl.opening": COMMAND,
    "ctl.output.columns": COMMAND,
    "ctl.output.jsonpath": HEAVY,
    "ctl.output.render": COMMAND,
    "ctl.output.terminal": HEAVY,
    "ctl.output.texts": HEAVY,
    "ctl.output.values": COMMAND,
    "ctl.picture.show": COMMAND,
    "ctl.policy.explain": HEAVY,
    "ctl.policy.masquerading": BACKEND,
    "ctl.policy.records": HEAVY,
    "ctl.policy.seen": HEAVY,
    "ctl.resources.commands": COMMAND,
    "ctl.resources.operations": COMMAND,
    "ctl.resources.size": COMMAND,
    "ctl.settings": HEAVY,
    "kernel.named_netns": HEAVY,
    "kernel.netlink.pyroute": HEAVY,
    "model.validation.known_fields": HEAVY,
    "daemon.http_servers": HEAVY,
    "flows.host_parameters": HEAVY,
    "flows.recorder": HEAVY,
    "nodeagent.bgp.bird.probes": PROBE,
    "nodeagent.commands": COMMAND,
    "nodeagent.context.open": BACKEND,
    "nodeagent.dataplane.bandwidth": HEAVY,
    "nodeagent.dataplane.desired": HEAVY,
    "nodeagent.dataplane.later": HEAVY,  # for everybody, but only once policies are in force
    "nodeagent.dataplane.loop": BACKEND,
    "nodeagent.dataplane.moving": HEAVY,
    "nodeagent.dataplane.parts.encryption": HEAVY,
    "nodeagent.dataplane.parts.guard": HEAVY,
    "nodeagent.felix": BACKEND,
    "nodeagent.keepers.host_status": BACKEND,
    "nodeagent.keepers.owed": HEAVY,
    "nodeagent.migration.keeper": HEAVY,
    "nodeagent.parts": HEAVY,
    "nodeagent.policing.enforce.filters": HEAVY,
    "nodeagent.policing.report.dispute_events": BACKEND,
    "nodeagent.policing.report.lifelines": BACKEND,
    "nodeagent.runtimes.names": HEAVY,
    "nodeagent.sync.switch": HEAVY,
    "nodeagent.service_control": COMMAND,
    "nodeagent.startup.records": BACKEND,
    "nodeagent.status.file": PROBE,
    "nodeagent.status.metrics": HEAVY,
    "nodeagent.status.encryption_metrics": HEAVY,
    "nodeagent.status.flow_metrics": HEAVY,
    "nodeagent.status.policy_metrics": HEAVY,
    "nodeagent.status.probes": PROBE,
    "server.backends": BACKEND,
}


def imports_in_functions(tree: ast.Module) -> bool:
    functions = [node for node in walked(tree) if isinstance(node, ast.FunctionDef)]
    return any(isinstance(part, ast.Import | ast.ImportFrom) for each in functions for part in ast.walk(each))


def test_an_import_in_a_function_has_a_reason() -> None:
    on_the_path, _ = find_needs([ROOT / "build" / "launch" / f"{name}.py" for name in PLUGINS])
    found = {
        name.removeprefix("cni_calico.")
        for name, tree in modules().items()
        if imports_in_functions(tree) and name not in on_the_path and not is_main(name)
    }
    assert found == set(LAZY) and set(LAZY.values()) == {COMMAND, PROBE, BACKEND, HEAVY}


@pytest.mark.parametrize("text", ["def f():\n    import os", "class A:\n    def f(self):\n        from os import kill"])
def test_an_import_in_a_function_is_found(text: str) -> None:
    assert imports_in_functions(ast.parse(text)) and not imports_in_functions(ast.parse("import os"))


# modules other than ``main`` that write to stdout or stderr, or end the process or a thread
PRINTS_OR_ENDS = {
    "daemon.child_lines": "a child's line that is a record already goes where the log's go: to stderr",
    "daemon.ending": "a program that must end in time cannot wait for its main thread",
    "daemon.orphans": "a child whose supervisor is gone asks itself to end, as the supervisor would have asked it",
    "faults": "a test that requests it kills the process at a fault point",
    "kernel.netns": "a thread that cannot leave a pod's network namespace must not do anything else",
    "log": "without a file a log's lines go to stderr",
    "plugin.call.shim": "what the mains of both of the plugin's executables are: another module costs every call time",
}


PRINTS = re.compile(r"print|sys\.(__)?std(out|err)(__)?|traceback\.print_\w+")
ENDS = re.compile(r"exit|quit|sys\.exit|os\.(_exit|abort)|signal\.raise_signal")
SCREEN = re.compile(r"[12]|'/dev/(stdout|stderr|tty|fd/[12])'|'/proc/self/fd/[12]'")


def prints_or_ends(tree: ast.Module) -> list[str]:
    origins = origins_of(tree)
    found = {name for name in names_read(tree) if PRINTS.fullmatch(name) or ENDS.fullmatch(name)}
    for node in walked(tree):
        if isinstance(node, ast.Raise) and node.exc is not None and full_name(node.exc, origins) == "SystemExit":
            found.add("SystemExit")
    for name, arguments in calls_in(tree):
        first = arguments[0] if arguments else None
        to_screen = first is not None and SCREEN.fullmatch(ast.unparse(first)) is not None
        to_itself = isinstance(first, ast.Call) and full_name(first.func, origins) == "os.getpid"
        kills = name == "os.kill" and to_itself
        writes = name in ("open", "os.open", "os.fdopen", "os.write") and to_screen
        if name == "SystemExit" or kills or writes:
            found.add(name)
    return sorted(found)


def is_main(module: str) -> bool:
    """Whether a program begins in a module: its own name is main, or __main__."""
    return module.rpartition(".")[2] in ("main", "__main__")


def test_only_main_modules_print_and_end_the_process() -> None:
    """What is printed, and the exit status, are decided where a program begins."""
    found = {name.removeprefix("cni_calico.") for name, tree in modules().items() if prints_or_ends(tree)}
    assert {name for name in found if not is_main(name)} == set(PRINTS_OR_ENDS)


@pytest.mark.parametrize(("module", "expected"), [("ctl.main", True), ("ctl.domain", False), ("main.texts", False)])
def test_a_main_module_is_called_main(module: str, expected: bool) -> None:
    assert is_main(module) is expected


@pytest.mark.parametrize(
    "text",
    [
        *("print(1)", "import sys\nsys.stdout.write('')", "from sys import stderr", "import sys\nsys.exit(1)"),
        *("import os\nos._exit(1)", "import os\nos.write(2, b'')", "raise SystemExit(1)", "exit()"),
        *(
            "raise SystemExit",
            "import sys as s\ns.exit()",
            "import os as o\no._exit(1)",
            "import os as o\no.write(1, b'')",
        ),
        *(
            "import builtins\nbuiltins.print(1)",
            "from builtins import print as p",
            "p = print",
            "raise SystemExit from e",
        ),
        *("import signal\nsignal.raise_signal(9)", "import traceback\ntraceback.print_exc()"),
        *("open('/dev/stderr', 'w')", "open(2, 'w')", "from os import kill, getpid\nkill(getpid(), 9)"),
        "import os\nos.kill(os.getpid(), 15)",
    ],
)
def test_what_prints_or_ends_is_found(text: str) -> None:
    assert prints_or_ends(ast.parse(text))


@pytest.mark.parametrize(
    "text", ["try:\n    f()\nexcept SystemExit:\n    pass", "os.kill(child, 15)", "open('/dev/null')"]
)
def test_what_neither_prints_nor_ends_is_not_found(text: str) -> None:
    assert prints_or_ends(ast.parse(text)) == []


STARTS = re.compile(r"posix_spawnp?|fork|forkpty|(exec|spawn)[lv]p?e?|system|popen")
STARTERS = {"subprocess", "_posixsubprocess", "multiprocessing", "pty"}


def starts_processes(tree: ast.Module) -> list[str]:
    found = {f"os.{name}" for name in names_of(tree, "os") if STARTS.fullmatch(name)}
    return sorted(found | (imports_of(tree) & STARTERS))


def test_only_the_kernels_door_starts_processes() -> None:
    """All ways of the standard library, those without subprocess included."""
    found = {name for name, tree in modules().items() if starts_processes(tree)}
    assert {name for name in found if not name.startswith("cni_calico.kernel.")} == set()
    assert "cni_calico.kernel.process" in found


@pytest.mark.parametrize(
    "text", ["os.posix_spawn()", "os.fork()", "import os as o\no.execve()", "os.system('')", "import subprocess"]
)
def test_what_starts_a_process_is_found(text: str) -> None:
    assert starts_processes(ast.parse(text))


@cache
def mirrored() -> set[str]:
    """The folders of the product, below cni_calico/."""
    return {str(p.parent.relative_to("cni_calico")) for p in files() if p.parts[0] == "cni_calico"}


# test files that are not about the module of their name, or its package, but about several in their folder
OF_SEVERAL_MODULES = {
    "controllers/copies/test_copy_machine": "any order of events",
    "controllers/loadbalancer/test_load_balancer_machine": "any order of events",
    "ctl/command_line/test_help": "help, completion and corrections of every command",
    "ctl/ipam/test_commands": "every command of its group",
    "ctl/node/test_commands": "node status and node diags",
    "ctl/output/test_formats": "the formats of every command",
    "ctl/policy/test_bad_files": "every command of its group, with files that are no policies",
    "ctl/policy/test_half_readable": "every command of its group, with records that cannot be read",
    "ctl/policy/test_kubernetes": "every command of its group, on Kubernetes",
    "ctl/policy/test_path": "hosts against the naive path of a packet",
    "ctl/policy/test_predicted": "replay against the calculation, with random changes",
    "docker/test_calls": "what Docker asks, recorded",
    "flows/test_machine": "a whole recorder, in any order of events",
    "ctl/test_dropin": "what callers of upstream's program rely on",
    "ctl/test_pure": "the pure parts",
    "nodeagent/driver/test_conformance": "what a driver was told against the documents",
    "policy/judge/test_bounds": "costly policies",
    "policy/test_nothing_kept": "the calculation, after any number of changes",
    "policy/judge/test_oracle": "the judge against the decision of one packet",
    "policy/test_random_states": "the calculation against the naive evaluator",
    "datastore/etcd/test_parts": "the pure parts",
    "datastore/kubernetes/test_login_oracle": "login.py against another implementation",
    "datastore/kubernetes/test_streams": "what opening a watch meets",
    "install/test_copies": "each step of a replacement",
    "ipam/group/test_texts": "the same answers with and without a group",
    "ipam/lost/test_reclaim_machine": "any order of events",
    "ipam/test_block_vectors": "block.py against upstream's history",
    "ipam/test_lasting_machine": "any order of events",
    "ipam/test_interfaces": "several interfaces of a container",
    "ipam/test_machine": "any order of events",
    "ipam/test_overlap": "a store that writes one record at a time",
    "ipam/test_races": "single interleavings",
    "kernel/netlink/test_encoding": "our bytes against another implementation",
    "model/documents/test_codec_fuzz": "arbitrary JSON",
    "model/documents/test_golden_etcd": "what upstream stored",
    "model/kubernetes/test_golden_kubernetes": "what upstream stored",
    "model/test_zones": "addresses with a zone, in every parser",
    "model/validation/test_verdicts": "upstream's verdicts",
    "nodeagent/bgp/config/test_golden": "files that BIRD accepts",
    "nodeagent/bgp/config/test_injection": "hostile records",
    "nodeagent/context/test_relay_choice": "which relay the settings name",
    "nodeagent/status/test_standing": "what of it a pass of the data plane needs",
    "nodeagent/test_units": "the systemd units",
    "plugin/test_imports": "what a call imports",
    "nodeagent/policing/feed/test_put_aside": "texts that are read late, from the watch to the round",
    "policy/test_machine": "any order of events",
    "policy/test_scenarios": "small clusters",
    "policy/test_vectors": "upstream's records",
    "relay/test_relay_machine": "any order of events",
    "relay/test_relay_metrics": "the page of numbers",
    "server/test_meanwhile": "what a call does at the same time",
    "server/test_queue": "calls that wait their turn",
}


def test_unit_tests_mirror_the_packages() -> None:
    """A folder has the name of a package, and a test file that of a module or package in it; no package is without one.
    build/ and docs/ are about those folders.
    """
    below = [p.relative_to("tests/unit") for p in files() if p.parts[:2] == ("tests", "unit")]
    assert sorted({str(p.parent) for p in below} - mirrored() - {"build", "docs"}) == []
    found = {str(p.with_suffix("")) for p in below if p.name.startswith("test_")}
    of_product = {name for name in found if name.split("/")[0] not in ("build", "docs")}
    dotted = {name: "cni_calico." + f"/{name}".replace("/test_", "/")[1:].replace("/", ".") for name in of_product}
    others = {name for name in of_product if dotted[name] not in modules()}
    assert others == set(OF_SEVERAL_MODULES)
    packages = {str(p.parent) for p in (Path(*n.split(".")[1:]) for n in modules()) if str(p.parent) in mirrored()}
    assert sorted(packages - {str(Path(name).parent) for name in found}) == []


def _types_of(body: list[ast.stmt]) -> set[str]:
    """The classes, type aliases and TypeVars that the statements define, those of an ``if`` included."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.If):
            found |= _types_of(node.body) | _types_of(node.orelse)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_type_variable = node.value is not None and ast.unparse(node.value).startswith("TypeVar(")
            named = {name.id for name in names if isinstance(name, ast.Name)}
            found |= {name for name in named if is_type_variable or CAPITALISED.fullmatch(name)}
    return found


def test_no_type_name_twice() -> None:
    """The name of a class or of a type alias means one thing in the whole product and is defined in one place; a
    leading underscore makes no other name of it.
    """
    places: dict[str, list[str]] = {}
    for name, tree in modules().items():
        if not name.endswith("_pb2"):
            for type_name in _types_of(tree.body):
                places.setdefault(type_name.removeprefix("_"), []).append(name)
    assert {"Datastore", "Document", "Extra", "Network"} <= places.keys()  # a class, and aliases with and without an if
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


# the most attributes that the methods of a class give it: more, and nobody can say what state it may be in. Values that
# are only read (settings, records) are declared and not assigned, and may have any number.
MOST_ATTRIBUTES = {"": 21, "nodeagent.policing.": 14}


def attributes_of(node: ast.ClassDef) -> set[str]:
    """What the methods of a class, and of classes inside of it, assign to ``self``."""
    return {
        part.attr
        for part in walked(node)
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store)
        if isinstance(part.value, ast.Name) and part.value.id == "self"
    }


def test_no_class_has_more_attributes_than_a_reader_can_keep_in_mind() -> None:
    found = {
        f"{module.removeprefix('cni_calico.')}.{node.name}": len(attributes_of(node))
        for module, tree in modules().items()
        for node in walked(tree)
        if isinstance(node, ast.ClassDef)
    }
    above = {
        name: count
        for name, count in found.items()
        if any(name.startswith(room) and count > most for room, most in MOST_ATTRIBUTES.items())
    }
    assert above == {}


def test_every_way_of_giving_an_attribute_counts() -> None:
    text = """
class A:
    def __init__(self, a):
        self.a, (self.b, *self.c) = a
        self.d: int = 1
        self.a += 1
        with a as self.e:
            for self.f in self.g:
                other.h = self.i
"""
    assert attributes_of(next(ast.walk(ast.parse(text).body[0]))) == set("abcdef")


# methods that a library calls
CALLED_BY_LIBRARIES = {
    "CommandParser._check_value": "argparse's ArgumentParser",
    "AllowedNetworks._from_iterable": "collections.abc's Set",
    **{f"PackedModules.{name}": "import's loaders" for name in ("find_spec", "create_module", "exec_module")},
    **{
        f"WorkloadConnection.{name}": "asyncio's Protocol"
        for name in ("connection_made", "connection_lost", "data_received", "pause_writing", "resume_writing")
    },
}


def names_used(tree: ast.AST) -> set[str]:
    """Every name and attribute that is read, and every word of short texts: a name may be data."""
    found: set[str] = set()
    texts = {node.value for node in walked(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in walked(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in texts:
            found |= set(re.findall(r"\w+", node.value)) if len(node.value) < 60 else set()
    return found


def names_defined(body: list[ast.stmt], owner: str = "") -> set[str]:
    """Functions, classes with their methods, and what is assigned at the top, as NAME or CLASS.NAME."""
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(owner + node.name)
            found |= names_defined(node.body, f"{node.name}.") if isinstance(node, ast.ClassDef) else set()
        elif isinstance(node, ast.If):
            found |= names_defined(node.body, owner) | names_defined(node.orelse, owner)
        elif isinstance(node, ast.Assign) and not owner:
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and not owner and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.endswith("__")}


def test_nothing_is_there_for_tests_alone() -> None:
    """Every name of the product is read somewhere in it, or where it is built."""
    build = [p for p in files() if p.parts[0] == "build" and p.suffix == ".py"]
    used = set.union(*map(names_used, [*modules().values(), *(ast.parse((ROOT / p).read_text()) for p in build)]))
    found = {
        f"{module}: {name}"
        for module, tree in modules().items()
        if not module.endswith("_pb2")
        for name in names_defined(tree.body)
        if name.rpartition(".")[2] not in used and name not in CALLED_BY_LIBRARIES
    }
    assert found == set()


# suites that share nothing may each have a fixture of this name in their conftest
IN_TWO_SUITES = {"calicoctl": ["tests/contract/conftest.py", "tests/unit/ctl/conftest.py"]}
# helpers of every suite
SHARED_NAMES = {
    "soon": ["tests/deadlines.py"],
    "SOON": ["tests/deadlines.py"],
    "until": ["tests/deadlines.py"],
    "Notes": ["tests/fakes/notes.py"],
}


def defined_in(path: Path) -> tuple[set[str], set[str]]:
    """(the names of the fixtures that a file defines, its other names at the top)."""
    tree = ast.parse((ROOT / path).read_text())
    bodies = [tree.body, *(each.body for each in tree.body if isinstance(each, ast.ClassDef))]
    functions = [each for body in bodies for each in body if isinstance(each, ast.FunctionDef)]
    fixtures = {each.name for each in functions if any("fixture" in ast.unparse(by) for by in each.decorator_list)}
    named = {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    targets = [target for each in tree.body if isinstance(each, ast.Assign) for target in each.targets]
    return fixtures, (named | {target.id for target in targets if isinstance(target, ast.Name)}) - fixtures


def test_what_tests_share_is_defined_once() -> None:
    """A fixture's name means one thing wherever a test asks for it; what differs has a name that says how."""
    fixtures: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for path in files():
        if path.parts[0] == "tests" and path.suffix == ".py":
            for names, places in zip(defined_in(path), (fixtures, others), strict=True):
                for name in names:
                    places.setdefault(name, []).append(path.as_posix())
    assert {name: places for name, places in fixtures.items() if len(places) > 1} == IN_TWO_SUITES
    assert {name: others.get(name) for name in SHARED_NAMES} == SHARED_NAMES


# where a name of an attribute is data, or what has the attribute is somebody else's
REFLECTION = {
    "alp.requests": "a message has fields for each side, by name",
    "alp.synced": "a message has one of several fields, by name",
    "bounded": "libyaml's loader is not in every build of PyYAML",
    "ctl.command_line.arguments": "argparse's namespace",
    "ctl.command_line.completion": "shtab wants what completes an argument in an attribute of its own",
    "ctl.command_line.parsers": "argparse's function for translations is none of its public names",
    "ctl.flows.page.judgement": "argparse's namespace",
    "ctl.main": "tables name the commands' functions, so that only one command's module is imported",
    "ctl.ipam.release": "ValueError has no strerror",
    "daemon.supervisor": "sys.frozen, of the frozen executable",
    "datastore.etcd.link": "gRPC's errors have no common class with a code",
    "datastore.dial": "UnicodeError has no strerror",
    "datastore.kubernetes.login": "PyYAML's errors may have no place",
    "datastore.local.file": "SQLite's errors may have no code",
    "flows.database": "the same",
    "daemon.settings_table": "it makes what dataclasses would",
    "flows.deciders": "a line has the fields of a record by name; asdict would import dataclasses at every start",
    "docker.state": "an entry's file has its fields, one by one: asdict copies each value",
    "expanded": "it is what dataclasses and named tuples are made of",
    "install.main": "sys.frozen, of the frozen executable",
    "kernel.child": "ValueError has no errno",
    "kernel.netns": "os.setns is newer than the oldest Python; ValueError has no errno",
    "kernel.process": "sys.frozen, of the frozen executable; ValueError has no errno",
    "kernel.url": "http.client's errors have no errno",
    "model.documents.fields": "a table names the attributes of a record",
    "nodeagent.driver.messages": "a message has one of several fields, by name",
    "nodeagent.keepers.tunnel_addresses": "a table names the attributes of a record",
    "packed": "a module's code runs in its namespace",
    "policy.preserved": "values are written field by field",
    "server.run": "RuntimeError has no strerror",
    "slim_grpc": "an attribute of the package grpc",
}


REFLECTS = {"getattr", "hasattr", "setattr", "delattr", "vars", "operator.attrgetter"}


def reflects(tree: ast.Module) -> list[str]:
    """The ways in which a module uses an attribute by its name as text."""
    return sorted({name for name in names_read(tree) if name in REFLECTS or name.rpartition(".")[2] == "__dict__"})


def test_nobody_asks_whether_an_object_has_an_attribute() -> None:
    """What can be relied on is said by a type."""
    found = {name.removeprefix("cni_calico.") for name, tree in modules().items() if reflects(tree)}
    assert found == set(REFLECTION)


@pytest.mark.parametrize(
    "text",
    [
        *("getattr(x, 'y')", "hasattr(x, 'y')", "setattr(x, 'y', 1)", "delattr(x, 'y')", "vars(x)['y'] = 1"),
        *(
            "x.__dict__['y']",
            "import operator as o\no.attrgetter('y')",
            "from operator import attrgetter",
            "g = getattr",
        ),
    ],
)
def test_an_attribute_used_by_its_name_is_found(text: str) -> None:
    assert reflects(ast.parse(text))
