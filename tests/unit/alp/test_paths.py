"""One path has one reading; a path with two fits nothing."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.alp.paths import clean_path, clean_rule_path, is_within


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b/"),
        ("/a?x=/../b", "/a"),
        ("/a#/../b", "/a"),
        ("/a%3fb", "/a?b"),
        ("//a///b", "/a/b"),
        ("/a/./b/.", "/a/b/"),
        ("/a/../b", "/b"),
        ("/a/..", "/"),
        ("/../../etc", "/etc"),
        ("/%2e%2E/etc", "/etc"),
        ("/a%2fb", "/a/b"),
        ("/a\\..\\b", "/b"),
        ("/a%5c..%5Cb", "/b"),
        ("/a;x=1/b;y", "/a/b"),
        ("/public/..;/admin", "/admin"),
        ("/caf%C3%A9", "/café"),
        ("/café", "/café"),
        ("/100%25", "/100%"),
        ("*", "*"),
        ("/a%252e", None),
        ("/a%252F..", None),
        ("/a%255c", None),
        ("/a%2500", None),
        ("/a%00", None),
        ("/a%0d%0a", None),
        ("/a%2", None),
        ("/a%zz", None),
        ("/a%u002e", None),
        ("/%c0%ae%c0%ae/etc", None),
        ("/\udc80", None),
        ("a/b", None),
        ("http://host/a", None),
        ("", None),
    ],
)
def test_paths(raw: str, clean: str | None) -> None:
    assert clean_path(raw) == clean


@pytest.mark.parametrize(
    ("path", "prefix", "within"),
    [
        ("/pub", "/pub", True),
        ("/pub/x", "/pub", True),
        ("/public", "/pub", False),
        ("/pub/", "/pub/", True),
        ("/pub", "/pub/", False),
        ("/anything", "/", True),
        ("*", "/", False),
    ],
)
def test_prefixes_end_where_segments_end(path: str, prefix: str, within: bool) -> None:
    assert is_within(path, prefix) is within


def test_a_rules_path_that_no_request_can_have_fits_nothing() -> None:
    assert [clean_rule_path(text) for text in ("/a?b", "/a;b", "/a#b", "/%252e")] == [None] * 4
    assert clean_rule_path("/a%20b") == clean_rule_path("/a b") == "/a b"


PARTS = st.sampled_from(
    ["a", "b", "..", ".", "", "%2e", "%2e%2e", "%252e", "c;d", "..;", "\\", "%5c", "%2f", "é", "%", "x%20y"]
)
PATHS = st.lists(PARTS, max_size=8).map(lambda parts: "/" + "/".join(parts))


@given(PATHS)
def test_what_is_clean_has_one_reading(raw: str) -> None:
    """Nothing is left in it that another server could read otherwise, and reading it again changes nothing."""
    path = clean_path(raw)
    if path is None:
        return
    segments = path.split("/")[1:]
    assert not {".", ".."} & set(segments) and "" not in segments[:-1]
    assert not set(path) & set("\\;")
    assert clean_path(quote(path, safe="/")) == path


@given(PATHS, st.sampled_from(["/a", "/a/b", "/b/", "/"]))
def test_no_way_of_writing_leads_out_of_a_prefix(raw: str, prefix: str) -> None:
    """A naive server that decodes once and walks the segments ends within the prefix, too."""
    path = clean_path(raw)
    if path is None or not is_within(path, prefix):
        return
    walked: list[str] = []
    decoded = raw.replace("%2e", ".").replace("%2f", "/").replace("%5c", "/").replace("\\", "/").replace("%20", " ")
    for segment in decoded.split("/"):
        plain = segment.split(";")[0]
        if plain == "..":
            walked[-1:] = []
        elif plain not in ("", "."):
            walked.append(plain)
    wanted = [segment for segment in prefix.split("/") if segment]
    assert walked[: len(wanted)] == wanted
