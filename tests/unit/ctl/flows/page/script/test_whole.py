"""The page's script: it makes text of what it is given, and reads nothing but its own server."""

from __future__ import annotations

import re

from cni_calico.ctl.flows.page.script.whole import MOST, SCRIPT


def test_no_text_becomes_markup_or_code() -> None:
    ways = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|setHTML|\beval\b|Function\(|srcdoc|createPolicy"
    assert re.findall(ways, SCRIPT) == []
    assert SCRIPT.startswith('(() => {\n"use strict";') and f"MOST = {MOST};" in SCRIPT and "</" not in SCRIPT


def test_it_asks_its_own_server_alone() -> None:
    asked = re.findall(r"(?:EventSource|fetch|XMLHttpRequest|WebSocket|sendBeacon|import)\((.*?)[,)]", SCRIPT)
    assert asked == ["`flows?${asked}`", '"./"', "`flows?${asked}`", "`decision?${asked}`"]
    assert re.findall(r"localStorage|sessionStorage|document\.cookie|indexedDB", SCRIPT) == []
