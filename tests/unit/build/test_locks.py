"""The two locks: what runs and is frozen is in one, what only tests and linters need in the other."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions

from dependencies import locked_names, unlocked_modules

from tests.conftest import ROOT

BUILD = (ROOT / "requirements.lock").read_text()
TESTS = (ROOT / "requirements-tests.lock").read_text()


def pins(lock: str) -> dict[str, tuple[str, list[str]]]:
    """Name -> version and hashes, by pip's own format: continued lines, comments."""
    found = {}
    for line in re.sub(r"\\\n", "", lock).splitlines():
        if line and not line.lstrip().startswith("#"):
            pinned, *hashes = line.split()
            name, _, version = pinned.partition("==")
            found[name] = (version, sorted(hashes))
    return found


def declared(*extras: str) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    words = [*(project["dependencies"] if not extras else ())]
    for extra in extras:
        words += project["optional-dependencies"][extra]
    return {re.split(r"[\[<>=;~! ]", word)[0].lower() for word in words}


def test_both_agree_where_both_name_a_package() -> None:
    build, tests = pins(BUILD), pins(TESTS)
    assert {name: tests[name] for name in build.keys() & tests.keys()} == {
        name: build[name] for name in build.keys() & tests.keys()
    }
    assert all(hashes for _, hashes in (*build.values(), *tests.values()))


def test_each_has_what_is_declared_for_it() -> None:
    assert declared() | declared("build") <= pins(BUILD).keys()
    assert declared("dev") <= pins(TESTS).keys()
    assert not declared("dev") & pins(BUILD).keys()


def test_what_is_frozen_does_not_depend_on_the_tests_packages() -> None:
    left_out = set(unlocked_modules(BUILD))
    assert {"pytest", "_pytest", "hypothesis", "kubernetes", "urllib3", "requests", "attr", "mypy"} <= left_out
    assert not left_out & {"grpc", "google", "yaml", "dns", "rich", "typing_extensions", "setuptools", "_yaml"}
    owners = packages_distributions()
    # a module of two distributions, one of them locked, stays
    assert left_out <= owners.keys() and "google" in owners


def test_names_are_compared_as_indexes_compare_them() -> None:
    lock = "Typing_Extensions==4.16.0 \\\n    --hash=sha256:00\n    # via x==1\nruamel.yaml==1 \\\n"
    assert locked_names(lock) == {"typing-extensions", "ruamel-yaml"}
    assert unlocked_modules("") == sorted(name for name in packages_distributions() if name.isidentifier())
