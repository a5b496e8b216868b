"""Links between the pages lead somewhere, and every page can be reached from README.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")


def targets(page: Path) -> list[tuple[str, str]]:
    """(file or "" for the page itself, heading or "") of every link to our own pages."""
    found = [link for link in LINK.findall(page.read_text()) if not re.match(r"[a-z]+:", link)]
    return [(path, heading) for path, _, heading in (link.partition("#") for link in found)]


def anchors(page: Path) -> set[str]:
    """The anchors that a heading gets: lower case, spaces as dashes, without punctuation."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for path, heading in targets(page):
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (heading and target.suffix == ".md" and heading not in anchors(target)):
            wrong.append(f"{path}#{heading}")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_are_named_exist(page: Path) -> None:
    named = re.findall(r"(?<![\w/.-])tests/[\w/.-]+\.(?:py|sh|json|yaml|toml)\b", page.read_text())
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_page_is_reachable() -> None:
    seen, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        todo += [(page.parent / path).resolve() for path, _ in targets(page) if path]
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in seen] == []


def test_the_comparison_of_the_first_page_is_the_other_ones() -> None:
    """Its rows are rows of docs/comparison.md, word by word."""
    (table,) = re.findall(r"(?ms)^## Compared$.*?^\|---.*?$\n(.*?)\n\n", (ROOT / "README.md").read_text())
    rows = table.splitlines()
    assert len(rows) > 10 and set(rows) <= set((ROOT / "docs" / "comparison.md").read_text().splitlines())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_deletes_what_is_stored(page: Path) -> None:
    """The manifests have the definitions of Calico's custom resources, which take all of them along."""
    blocks = re.findall(r"(?s)```sh\n(.*?)```", page.read_text())
    assert not [line for block in blocks for line in block.splitlines() if re.search(r"delete .*-f .*\.yaml", line)]


def test_every_script_of_a_release_says_what_it_refuses_and_which_test_shows_it() -> None:
    text = (ROOT / "docs/build.md").read_text().partition("What each script refuses")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert all("test_" in row[-1] for row in rows)
    told = {name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])}
    # those that people call; the others are parts of these
    called = {
        "root.sh",
        "join.py",
        "sign.sh",
        "verify.sh",
        "publish.sh",
        "apt.py",
        "rebuild.sh",
        "install.sh",
        "mirror.sh",
    }
    assert told == called | {"krew.py", "brew.py", "release.sh"}
    assert {path.name for path in (ROOT / "build/release").glob("*.sh")} - told == {"foreign.sh", "inside.sh"}
