"""The documentation site: every page is in it, and every link in it leads to a file of it."""

from __future__ import annotations

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import site_pages as pages

ROOT = Path(__file__).parents[3]


class References(HTMLParser):
    """What a page links to and loads, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places.add(given.get("id", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        loads = tag in ("img", "script", "iframe") or (tag == "link" and given.get("rel") != "canonical")
        self.loaded += [given[name] for name in ("src", "href") if loads and name in given]


def test_links_are_as_they_must_be_in_one_tree(tmp_path: Path) -> None:
    (tmp_path / "docs" / "sub").mkdir(parents=True)
    (tmp_path / "README.md").write_text("[hosts](docs/hosts.md#one) [out](https://example.org/a) [file](LICENSE)")
    (tmp_path / "CHANGES.md").write_text("[about](README.md) [here](#here)")
    (tmp_path / "docs" / "hosts.md").write_text("[back](../README.md) ![picture](sub/a.svg) [`x.yaml`](../x.yaml)")
    (tmp_path / "docs" / "sub" / "deep.md").write_text("[up](../hosts.md) [changes](../../CHANGES.md)")
    (tmp_path / "docs" / "sub" / "a.svg").write_text("<svg/>")
    pages.write_tree(tmp_path / "out", tmp_path)
    written = {p.relative_to(tmp_path / "out").as_posix(): p.read_text() for p in (tmp_path / "out").rglob("*.*")}
    assert written == {
        "about.md": "[hosts](hosts.md#one) [out](https://example.org/a) file (`LICENSE`)",
        "CHANGES.md": "[about](about.md) [here](#here)",
        "hosts.md": "[back](about.md) ![picture](sub/a.svg) `x.yaml`",
        "sub/deep.md": "[up](../hosts.md) [changes](../CHANGES.md)",
        "sub/a.svg": "<svg/>",
    }


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "build/site/mkdocs.yml").read_text().partition("\nnav:")[2]
    named = re.findall(r"(\S+\.md)$", navigation, re.M)
    assert sorted(named) == sorted(place for place in pages.pages().values() if place.endswith(".md"))


@pytest.mark.slow
def test_the_site_is_whole(tmp_path: Path) -> None:
    site = tmp_path / "site"
    subprocess.run([ROOT / "build/site/build.sh", site], check=True, capture_output=True, timeout=600)
    read = {path: References(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(read) > len(pages.pages()) / 2
    wrong = []
    for page, found in read.items():
        for target in found.links + found.loaded:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                if target in found.loaded:
                    wrong.append(f"{page.name} loads {target}")
                continue
            path = (page.parent / unquote(url.path)).resolve() if url.path else page
            if (
                not path.is_relative_to(site)
                or not path.is_file()
                or (path in read and url.fragment not in read[path].places)
            ):
                wrong.append(f"{page.name}: {target}")
    assert wrong == []
