"""Where releases are published: published.toml as a value, and texts with its names.

Rule: it is filled or empty; half of it is refused. While it is empty, a text is as it stands in the repository, which
says nothing about a place that is not there.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

PUBLISHED = Path(__file__).resolve().parent / "published.toml"
LOCAL = "localhost/cni-calico"  # no kubelet looks for it in a registry
ABOUT_RELEASES = ("build.md", "publishing.md", "CHANGELOG.md")  # what they say of localhost/ stays true
_LOCAL = re.compile(rf"{LOCAL}(?=[/`\n])")
_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REGISTRY = re.compile(rf"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?(?::\d+)?(?:/{_COMPONENT})+")
_ADDRESS = re.compile(r"https://[^\s/'\"$`\\]+(?:/[^\s/'\"$`\\]+)*")  # it comes into scripts and a formula
_WORDS = ("registry", "releases", "apt", "homepage", "identity", "issuer")
# what stands in the repository only, and what a published release says in its place
_EITHER = re.compile(r"<!-- unpublished -->\n(.*?)<!-- published\n(.*?)-->\n", re.DOTALL)
_MADE_HERE = re.compile(r" The image is made by\n(?:#.*\n)*?#.*your own registry\.\n")


class Unpublishable(SystemExit):
    """What published.toml says cannot be used."""


@dataclass(frozen=True)
class Published:
    """``registry``: of images and chart, no scheme, no slash at its end; LOCAL: not published. ``releases``, ``apt``,
    ``homepage``: addresses. ``keys``: SHA-256 of public keys in DER, in hex. ``identity``, ``issuer``: of a signature
    without a key.
    """

    registry: str = LOCAL
    releases: str = ""
    apt: str = ""
    homepage: str = ""
    keys: tuple[str, ...] = ()
    identity: str = ""
    issuer: str = ""

    def image(self, name: str, version: str) -> str:
        return f"{self.registry}/{name}:v{version}"


def parse_published(text: str) -> Published:
    """Raises Unpublishable, which names the line to change."""
    try:
        said = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise Unpublishable(f"cannot read published.toml: {e}") from e
    if unknown := sorted(said.keys() - {*_WORDS, "keys"}):
        raise Unpublishable(f"published.toml: nobody reads {', '.join(unknown)}; known are {', '.join(_WORDS)}, keys")
    words = {name: said.get(name, "") for name in _WORDS}
    keys = said.get("keys", [])
    if wrong := [name for name, value in words.items() if not isinstance(value, str)]:
        raise Unpublishable(f"published.toml: {wrong[0]} is no text: write it in quotes")
    if not isinstance(keys, list) or not all(
        isinstance(key, str) and re.fullmatch("[0-9a-f]{64}", key) for key in keys
    ):
        raise Unpublishable(
            "published.toml: keys is a list of SHA-256 sums, 64 hex digits each: verify.sh --fingerprint"
        )
    if not any(words.values()) and not keys:
        return Published()
    if missing := [name for name in ("registry", "releases") if not words[name]] + ([] if keys else ["keys"]):
        raise Unpublishable(
            f"published.toml is filled in half: {', '.join(missing)} missing; fill it, or empty all of it"
        )
    if not _REGISTRY.fullmatch(words["registry"]):
        raise Unpublishable(
            f"published.toml: registry is {words['registry']!r}: wanted is HOST/PATH in small letters, without a scheme"
            " and without a slash at its end"
        )
    for name in ("releases", "apt", "homepage"):
        if words[name] and not _ADDRESS.fullmatch(words[name]):
            raise Unpublishable(
                f"published.toml: {name} is {words[name]!r}: wanted is https://..., no slash at its end"
            )
    if bool(words["identity"]) != bool(words["issuer"]):
        raise Unpublishable("published.toml: identity and issuer belong together: fill both or none")
    return Published(keys=tuple(keys), **words)


def read_published(path: Path = PUBLISHED) -> Published:
    return parse_published(path.read_text())


def render_text(text: str, published: Published, version: str) -> str:
    """A page, manifest or file of values as the release has it. In a page ``<!-- unpublished -->`` begins what only the
    repository says, and ``<!-- published``, a comment until then, what a release says instead; ``{registry}``,
    ``{releases}``, ``{apt}`` and ``{version}`` stand there for the names.
    """
    if published.registry == LOCAL:
        return text
    names = {"registry": published.registry, "releases": published.releases, "apt": published.apt, "version": version}

    def say(match: re.Match[str]) -> str:
        return re.sub(r"\{(\w+)\}", lambda word: names.get(word[1], word[0]), match[2])

    return _LOCAL.sub(published.registry, _MADE_HERE.sub("\n", _EITHER.sub(say, text)))


def render_tree(tree: Path, published: Published, version: str) -> None:
    """Every page, manifest and file of values below a directory; not the pages about making a release."""
    for path in sorted(tree.rglob("*")):
        if path.suffix in (".md", ".yaml") and path.name not in ABOUT_RELEASES and path.is_file():
            path.write_text(render_text(path.read_text(), published, version))
