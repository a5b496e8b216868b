"""The page as HTML: it refers to nothing, runs nothing but its own script, and takes no text for markup."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from cni_calico.ctl.flows.page.document import content_policy, render_page

HOSTILE = "</script><script>alert(1)</script><!-- <b onclick=x>'\"&\u2028"


def page(*, live: bool) -> str:
    data = {"live": live, "filter": HOSTILE, "made": "2026-11-26T14:02:11+00:00", "more": False, "options": {}}
    return render_page({**data, "flows": [{"name": HOSTILE}], "said": [HOSTILE]})


@pytest.mark.parametrize("live", [True, False])
def test_only_its_own_script_and_style(live: bool) -> None:
    text = page(live=live)
    scripts, styles = re.findall(r"(?s)<script>(.*?)</script>", text), re.findall(r"(?s)<style>(.*?)</style>", text)
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)
    assert policy == content_policy(live=live)
    for kind, found in (("script", scripts), ("style", styles)):
        (only,) = found
        digest = base64.b64encode(hashlib.sha256(only.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ") and ("connect-src 'self'" in policy) == live
    assert "unsafe" not in policy and "require-trusted-types-for 'script'" in policy


def test_it_refers_to_nothing_and_is_small() -> None:
    text = page(live=False)
    assert set(re.findall(r"[a-z]+://[^\s\"'`]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r" (src|href)=\"(?!data:,)| on\w+=|style=", text.partition('type="application/json"')[0])
    assert len(text) < 64_000


def test_a_hostile_text_stays_in_the_data() -> None:
    (data,) = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', page(live=False))
    found = json.loads(data)
    assert found["flows"] == [{"name": HOSTILE}] and found["said"] == [HOSTILE] and "<" not in data
