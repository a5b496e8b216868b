"""The frozen executables as they are built: they start, cheaply, and carry what they need and nothing else."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cni_calico import __version__
from tests.conftest import ROOT

pytestmark = pytest.mark.bundle

PLUGINS = ("calico", "calico-ipam")
UNCLEAR = '{"cniVersion":"9.9.9"}'  # the native front leaves it to Python
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
# all that the interpreter and the answer to VERSION load from the contents directory, when it is Python that answers
START_MODULES = (
    "__future__", "encodings/__init__", "encodings/aliases", "encodings/utf_8", "cni_calico/__init__",
    "cni_calico/plugin/__init__", "cni_calico/plugin/main", "cni_calico/plugin/ipam/__init__",
    "cni_calico/plugin/ipam/main", "cni_calico/plugin/call/__init__", "cni_calico/plugin/call/shim",
)  # fmt: skip


def run(executable: Path, *arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([executable, *arguments], input=stdin, capture_output=True, text=True, env=environment)


def contents_of(directory: Path) -> Path:
    """The contents directory that the executables belong to."""
    (found,) = (
        d
        for d in directory.glob(".calico-*")
        if subprocess.run(["sha256sum", "-c", d / "executables"], cwd=directory, capture_output=True).returncode == 0
    )
    return found


def test_nothing_in_it_depends_on_where_it_was_built(bundle: Path) -> None:
    """No installer's notes (RECORD has hashes of scripts that begin with their directory), no path of the sources."""
    contents = contents_of(bundle)
    files = [path for path in (*contents.rglob("*"), *bundle.glob("calico*")) if path.is_file()]
    notes = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}
    assert [path for path in files if path.name in notes] == []
    assert list(contents.glob("shtab-*.dist-info/METADATA")), "what a program asks for its version stays"
    assert [path for path in files if str(ROOT).encode() in path.read_bytes()] == []


def test_no_executable_hides_one_of_the_host(bundle: Path) -> None:
    """People put its directory first on their PATH."""
    names = {line.split()[1] for line in (contents_of(bundle) / "executables").read_text().splitlines()}
    assert "calico-install" in names
    assert {name for name in names if not name.startswith("calico")} == set()


@pytest.mark.parametrize("name", PLUGINS)
def test_version(bundle: Path, name: str) -> None:
    done = run(bundle / name, stdin='{"cniVersion":"1.0.0"}', CNI_COMMAND="VERSION")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"cniVersion": "1.0.0", "supportedVersions": VERSIONS}


# but for the plugins, which a runtime calls, and calicoctl, whose answer has more lines
PROGRAMS = (
    "calico-docker", "calico-install", "calico-kube-controllers", "calico-netavark", "calico-node", "calico-typha",
)  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_who_asks_for_help_or_the_version_starts_nothing(bundle: Path, tmp_path: Path, name: str) -> None:
    root = str(tmp_path)
    environ = {"CALICO_INSTALL_ROOT": root, "CALICO_RUN_DIR": root, "HOME": root}
    for option in ("-h", "--help"):
        done = run(bundle / name, option, **environ)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith(f"usage: {name} ")
    for option in ("-v", "--version"):
        done = run(bundle / name, option, **environ)
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(rf"v{re.escape(__version__)}\+[0-9a-f]+\n", done.stdout)
    assert run(bundle / name, "--hepl", **environ).returncode != 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PLUGINS)
def test_an_error_is_one_json_object(bundle: Path, name: str) -> None:
    done = run(bundle / name, stdin='{"cniVersion":"1.0.0","name":"n","type":"t"}', CNI_COMMAND="NOSUCH")
    assert done.returncode == 1
    assert json.loads(done.stdout)["code"] == 4


def test_the_upgrade_is_in_it(bundle: Path) -> None:
    done = run(bundle / "calico-ipam", "-upgrade")
    assert done.returncode == 1 and "refusing to migrate" in done.stderr


@pytest.mark.parametrize("name", PLUGINS)
def test_works_without_any_environment_or_locale(bundle: Path, name: str) -> None:
    done = subprocess.run([bundle / name, "-v"], capture_output=True, env={}, cwd="/")
    assert (done.returncode, done.stderr) == (0, b"")
    done = subprocess.run([bundle / name, "-v"], capture_output=True, env={"LC_ALL": "tr_TR.ISO-8859-9"}, cwd="/")
    assert (done.returncode, done.stderr) == (0, b"")


def test_version_needs_few_modules(bundle: Path, tmp_path: Path) -> None:
    contents = contents_of(bundle)
    small = tmp_path / contents.name
    small.mkdir()
    for library in contents.glob("lib*.so*"):
        (small / library.name).symlink_to(library)
    for module in START_MODULES:
        (small / module).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(contents / f"{module}.pyc", small / f"{module}.pyc")
    for name in PLUGINS:
        for part in (f"{name}.python", name):
            shutil.copy(bundle / part, tmp_path / part)
            done = run(tmp_path / part, stdin=UNCLEAR, CNI_COMMAND="VERSION")
            assert (done.returncode, done.stderr) == (0, ""), part


def test_every_executable_is_small(bundle: Path) -> None:
    """What is large is shared: the modules and libraries lie in the contents directory once."""
    names = [line.split()[1] for line in (contents_of(bundle) / "executables").read_text().splitlines()]
    assert set(PLUGINS) <= set(names)
    assert {name: (bundle / name).stat().st_size for name in names if (bundle / name).stat().st_size > 200_000} == {}
    assert {name: (bundle / name).stat().st_size for name in PLUGINS if (bundle / name).stat().st_size > 20_000} == {}


@pytest.mark.parametrize("name", PLUGINS)
def test_version_needs_no_python(bundle: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(bundle / name, tmp_path / name)
    done = run(tmp_path / name, stdin='{"cniVersion":"0.4.0"}', CNI_COMMAND="VERSION")
    assert (done.returncode, json.loads(done.stdout)["cniVersion"]) == (0, "0.4.0")
    done = run(tmp_path / name, stdin=UNCLEAR, CNI_COMMAND="VERSION")
    assert (done.returncode, json.loads(done.stdout)["code"]) == (1, 136)


@pytest.mark.parametrize("name", PLUGINS)
def test_what_an_executable_asks_its_python_for_is_known_there(bundle: Path, tmp_path: Path, name: str) -> None:
    """No server: the front gives the call, and the input it did not read, to the Python beside it."""
    environ = {"CNI_COMMAND": "GC", "CNI_PATH": "/x", "CALICO_RUN_DIR": str(tmp_path)}
    done = run(bundle / name, stdin='{"cniVersion":"1.1.0","name":"n","type":"calico"}', **environ)
    assert done.returncode == 1 and json.loads(done.stdout)["code"] == 7, done
    assert "unknown arguments" in run(bundle / name, "-x", "y").stderr


@pytest.mark.parametrize("name", PLUGINS)
@pytest.mark.parametrize("arguments", [("once",), ("once", "-v"), ("", "two words"), ("-", "-x"), ("--", "-v")])
def test_arguments_that_are_no_flags(bundle: Path, tmp_path: Path, name: str, arguments: tuple[str, ...]) -> None:
    """Ignored in a call, which the native front answers, hands to Python, or sends to a server."""
    version = run(bundle / name, *arguments, stdin='{"cniVersion":"1.0.0"}', CNI_COMMAND="VERSION")
    assert (version.returncode, version.stderr) == (0, "")
    assert json.loads(version.stdout) == {"cniVersion": "1.0.0", "supportedVersions": VERSIONS}
    conf = {"cniVersion": "1.1.0", "name": "n", "type": "calico", "nodename": "n1", "log_file_path": "",
            "datastore_type": "local", "datastore_path": f"{tmp_path}/none/store.db"}  # fmt: skip
    environ = {"CNI_PATH": "/x", "CALICO_RUN_DIR": str(tmp_path), "CALICO_STATE_DIR": str(tmp_path)}
    call = {**environ, "CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": ""}
    done = run(bundle / name, *arguments, stdin=json.dumps(conf), **call)
    plain = run(bundle / name, stdin=json.dumps(conf), **call)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout), done
    without_a_call = run(bundle / name, *arguments)
    assert without_a_call.returncode != 0, "outside of a call they are a mistake"


def test_calicoctl_says_what_it_is_compatible_with(bundle: Path, tmp_path: Path) -> None:
    """Without any configuration: Kubespray takes the third word of the first line and asserts a minimum."""
    done = run(bundle / "calicoctl", "-c", "/etc/calico/calicoctl.cfg", "version", HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    first, own = done.stdout.splitlines()
    assert first == "Client Version:    v3.32.1" and first.split()[2] == "v3.32.1"
    assert own.startswith("cni-calico: ")


def test_starts_once(bundle: Path, tmp_path: Path) -> None:
    """PyInstaller's loader would execute itself a second time to set LD_LIBRARY_PATH."""
    trace = tmp_path / "trace"
    preload = {**os.environ, "LD_DEBUG": "statistics", "LD_DEBUG_OUTPUT": str(trace)}
    subprocess.run([bundle / "calico", "-v"], env=preload, check=True, capture_output=True)
    (output,) = tmp_path.iterdir()
    assert output.read_text().count("total startup time") == 1


def test_bundle_has_no_development_tools(bundle: Path) -> None:
    contents = contents_of(bundle)
    unwanted = {
        *("_pytest", "hypothesis", "mypy", "PyInstaller", "pip", "ruff", "setuptools", "grpc_tools", "pygments"),
        *("filelock", "idna", "kubernetes", "pydantic", "requests", "urllib3"),
    }
    assert {p.name.partition(".")[0] for p in contents.iterdir()} & unwanted == set()
    assert not (contents / "base_library.zip").exists()


def test_manifest_lists_every_file(bundle: Path) -> None:
    contents = contents_of(bundle)
    listed = {line.split("  ", 1)[1] for line in (contents / "manifest").read_text().splitlines()}
    found = {str(p.relative_to(contents)) for p in contents.rglob("*") if p.is_file()}
    assert found - listed == {"manifest", "executables", "placeholders"}
    assert listed <= found
    subprocess.run(["sha256sum", "--quiet", "-c", "manifest"], cwd=contents, check=True)


def test_building_again_changes_nothing(bundle: Path) -> None:
    root = bundle.parents[1]
    freeze = [root / ".venv/bin/python", root / "build/freeze.py", bundle]
    wanted = subprocess.run([*freeze, "--print-contents"], capture_output=True, text=True, check=True).stdout.strip()
    before = {p.name: p.stat().st_ino for p in bundle.iterdir()}
    current = contents_of(bundle).name
    done = subprocess.run([root / "build/build.sh", bundle], capture_output=True, text=True, check=True)
    if current == wanted:  # sources may have been edited since this session built them
        assert done.stdout == ""
        assert {p.name: p.stat().st_ino for p in bundle.iterdir()} == before
    else:
        assert "freezing" in done.stdout


IMPORT_ALL = """
import os, sys, encodings
contents = sys.argv[1]
start = set(sys.modules)
encodings.__path__[:] = [contents + "/encodings"]
sys.path[:] = [contents + "/python3.11/lib-dynload", contents]
sys.frozen = True
import importlib
failed = {}
for name in sys.argv[2:]:
    try:
        module, _, attribute = name.partition(":")
        if attribute and not hasattr(importlib.import_module(module), attribute):
            module += "." + attribute
        importlib.import_module(module)
    except Exception as e:
        failed[name] = repr(e)
origins = {n: m.__spec__.origin for n, m in sys.modules.items() if n not in start and getattr(m, "__spec__", None)}
outside = {n: origin for n, origin in origins.items()
           if origin not in (None, "built-in", "frozen") and not origin.startswith(contents)}
print(failed, outside)
"""


def imported_modules() -> set[str]:
    """Every module of the project, and what they import of others, inside functions too (MODULE or MODULE:NAME)."""
    found = set()
    for path in (ROOT / "cni_calico").rglob("*.py"):
        found.add(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith("cni_calico"):
                found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return found


def test_every_module_is_there_with_all_it_imports(bundle: Path) -> None:
    """By an interpreter that sees nothing but the contents directory."""
    contents = contents_of(bundle)
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-c", IMPORT_ALL, contents, *sorted(imported_modules())],
        env={"LD_LIBRARY_PATH": str(contents)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{} {}"


def test_codecs_that_nothing_uses_are_left_out(bundle: Path) -> None:
    """A megabyte of tables. An encoding that needs one is not known, as any other that does not exist."""
    contents = contents_of(bundle)
    assert [path.name for path in (contents / "python3.11/lib-dynload").glob("_codecs_*")] == []
    script = """
import sys, encodings
encodings.__path__[:] = [sys.argv[1] + "/encodings"]
sys.path[:] = [sys.argv[1] + "/python3.11/lib-dynload", sys.argv[1]]
for name in ("big5", "gb18030", "shift_jis"):
    try: b"x".decode(name)
    except LookupError as e: print(e)
print(b"\\xe9".decode("latin-1"), b"\\x82".decode("cp437"), "\\xe9.example".encode("idna"))
"""
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-S", "-X", "utf8", "-c", script, contents],
        env={"LD_LIBRARY_PATH": str(contents)},
        capture_output=True,
        text=True,
    )
    unknown = [f"unknown encoding: {name}" for name in ("big5", "gb18030", "shift_jis")]
    assert done.stdout.splitlines() == [*unknown, "\u00e9 \u00e9 b'xn--9ca.example'"], done.stderr


@pytest.mark.slow
def test_two_builds_have_the_same_bytes(tmp_path: Path) -> None:
    """Also in two places, at two times."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout
    archive = tmp_path / "sources.tar"
    subprocess.run(["tar", "--null", "-T", "-", "-cf", archive], input=listed, cwd=ROOT, check=True)
    found = []
    for name in ("first", "second/and/deeper"):
        tree = tmp_path / name
        tree.mkdir(parents=True)
        subprocess.run(["tar", "-xf", archive], cwd=tree, check=True)
        (tree / ".venv").symlink_to(ROOT / ".venv")
        freeze = [tree / ".venv/bin/python", tree / "build/freeze.py", tree / "dist"]
        subprocess.run(freeze, check=True, capture_output=True)
        sums = subprocess.run(
            "find . -type f -print0 | sort -z | xargs -0 sha256sum", shell=True, cwd=tree / "dist", capture_output=True
        )
        found.append(sums.stdout)
    assert found[0] and found[0] == found[1]
