"""published.toml: what is refused in it, and what pages and manifests say once it is filled."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "release"))

from published import ABOUT_RELEASES, PUBLISHED, Published, Unpublishable, parse_published, read_published, render_tree
from verification_keys import PUBLIC, fingerprint, write_keys

KEY = "ab" * 32
FILLED = f"""
registry = "registry.example/team/cni-calico"
releases = "https://example.org/releases"
apt = "https://example.org/apt"
keys = ["{KEY}"]
"""


def test_the_repository_says_that_nothing_is_published() -> None:
    assert read_published() == Published()


def test_filled() -> None:
    found = parse_published(FILLED)
    assert found.image("node", "1.2.3") == "registry.example/team/cni-calico/node:v1.2.3"
    assert found.keys == (KEY,) and found.identity == ""
    # the file has a line for everything that can be said
    assert set(re.findall(r"(?m)^(\w+) = ", PUBLISHED.read_text())) == set(Published.__dataclass_fields__)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("registry = ", "cannot read published.toml"),
        ('repository = "a"', "nobody reads repository; known are registry"),
        ("registry = 5", "registry is no text"),
        ('registry = "a.example/b"', "filled in half: releases, keys missing"),
        ('releases = "https://a.example"', "filled in half: registry, keys missing"),
        ('keys = ["abc"]', "64 hex digits"),
        (FILLED.replace("registry.example/team", "https://registry.example/team"), "registry is 'https:"),
        (FILLED.replace("team", "Team"), "in small letters"),
        (FILLED.replace("/cni-calico", "/cni-calico/"), "without a slash at its end"),
        (FILLED.replace("https://example.org/releases", "http://example.org/releases"), "wanted is https://"),
        (FILLED.replace("org/apt", "org/apt/"), "apt is 'https://example.org/apt/'"),
        (FILLED + 'homepage = "example.org"', "homepage is 'example.org'"),
        (FILLED.replace("org/apt", "org/$(reboot)"), "apt is 'https:"),
        (FILLED + 'identity = "https://a"', "identity and issuer belong together"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(Unpublishable, match=said):
        parse_published(text)


def copied(directory: Path) -> Path:
    """The pages and manifests of a tarball."""
    directory.mkdir()
    for page in ROOT.glob("*.md"):
        shutil.copy(page, directory)
    for name in ("docs", "manifests"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("source", "*.py", "__pycache__"))
    return directory


def test_nothing_changes_while_it_is_empty(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    render_tree(tree, Published(), "1.2.3")
    assert {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()} == before


def test_pages_and_manifests_say_where(tmp_path: Path) -> None:
    tree = copied(tmp_path / "tree")
    published = parse_published(FILLED)
    render_tree(tree, published, "1.2.3")
    said = 0
    for path in (*tree.rglob("*.md"), *tree.rglob("*.yaml")):
        text = path.read_text()
        if path.name not in ABOUT_RELEASES:
            assert "localhost/cni-calico" not in text, path
            assert "published -->" not in text and "<!-- published" not in text, path
            assert not re.search(r"\{(registry|releases|apt)\}", text), path
            said += text.count(published.registry)
    assert said > 15
    for name in ("calico.yaml", "calico-typha.yaml", "chart/values.yaml"):
        assert list(yaml.safe_load_all((tree / "manifests" / name).read_text()))
    page = (tree / "docs/kubernetes.md").read_text()
    assert "for file in cni-calico-1.2.3-linux-amd64.tar.xz SHA256SUMS SHA256SUMS.sig; do" in page
    assert f"curl -fsSLO {published.releases}/v1.2.3/$file; done\nopenssl dgst -sha256 -verify" in page


def test_a_page_has_both_or_neither() -> None:
    """A block that does not end would be left as it is, and be shown."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        text = path.read_text()
        if path.name not in ABOUT_RELEASES:
            blocks = re.findall(r"(?s)<!-- unpublished -->\n(?:(?!<!-- ).)*<!-- published\n(?:(?!<!-- ).)*-->\n", text)
            assert len(blocks) == text.count("<!-- unpublished -->") == text.count("<!-- published\n"), path


def test_the_keys_are_where_users_get_them(tmp_path: Path) -> None:
    """Of a tarball and of the site: in the order of published.toml, and none that it does not name."""
    keys, out = tmp_path / "keys", tmp_path / "out"
    keys.mkdir()
    out.mkdir()
    texts = [f"-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n" for text in ("QUFB", "QkJC")]
    for name, text in zip(("2026", "2027"), texts, strict=True):
        (keys / f"{name}.pub").write_text(text)
    write_keys(out, (), tmp_path / "none")
    assert not list(out.iterdir())
    write_keys(out, [fingerprint(text) for text in reversed(texts)], keys)
    assert (out / PUBLIC).read_text() == texts[1] + texts[0]
    with pytest.raises(Unpublishable, match="build/release/keys has a key"):
        write_keys(out, [fingerprint(texts[0])], keys)
