"""The page of ``calicoctl flows`` in a real browser: with keys alone, dark, full, cut off, and with hostile names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.command_line.flow_arguments import parse_filters
from cni_calico.ctl.flows.page.serve import FlowPage
from cni_calico.ctl.flows.places import HostFlows
from cni_calico.ctl.flows.show import parse_query_arguments
from cni_calico.ctl.main import run
from cni_calico.flows.conditions import meets
from tests.e2e.page import pictures
from tests.e2e.page.browser import Browser, running_browser
from tests.fakes.recorder import ScriptedRecorder, address, end_of_tier, flow, nothing_stored, pod, rule

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
WEB, API, DB = (pod("shop", name, f"10.65.0.{i}") for i, name in enumerate(("web-7d9-x2k4", "api-5c9-q1", "db-0"), 9))
PROMETHEUS, OUTSIDE = pod("metrics", "prometheus-0", "fd00::1"), address("192.0.2.7")
HOSTILE = "<img src=x onerror=window.owned=1>\u202e';touch /tmp/owned;'\n"
CONTRAST = """((back, ...names) => {
  const light = text => { const [r, g, b] = text.match(/[\\d.]+/g).map(Number)
    .map(v => text.startsWith("color(srgb") ? v : v / 255)
    .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
  const behind = light(getComputedStyle(document.querySelector(back)).backgroundColor);
  return names.map(name => light(getComputedStyle(document.querySelector(name)).color))
    .map(text => (Math.max(text, behind) + .05) / (Math.min(text, behind) + .05));
})"""
ROWS = "document.querySelectorAll('tr.flow:not([hidden])').length"
STATE, WORDS = "document.getElementById('state').textContent", "document.getElementById('words').value"
CURRENT = "document.querySelector('tr.current')?.innerText"


def numbered(number: int, **other: Any) -> dict[str, Any]:
    when = f"2026-11-26T{number // 3600:02}:{number // 60 % 60:02}:{number % 60:02}.000+00:00"
    decided = (rule("egress", "shop", "to-db", 0), rule("ingress", "shop", "database", number % 3))
    return flow({**WEB, "port": number}, {**DB, "port": 5432}, *decided, start=when, last=when, **other)


FLOWS = [
    numbered(1),
    flow({**API, "port": 2}, {**OUTSIDE, "port": 443}, end_of_tier("egress", "shop", "close-egress")),
    flow({**PROMETHEUS, "port": 3}, {**API, "port": 80}, end_of_tier("ingress", "shop", "api"), protocol="tcp"),
    flow(PROMETHEUS, DB, rule("ingress", "shop", "ping", 0), protocol="icmp6", icmp={"type": 128, "code": 0}),
    flow({**OUTSIDE, "port": 5}, DB, {"action": "Deny", "reason": "invalid", "said": "invalid"}, protocol="47"),
]
FLOWS[0]["destination"] |= {
    "asked": {"ip": "10.96.0.1", "port": 443},
    "service": {"namespace": "shop", "name": "db", "port": "pg"},
}


@pytest.fixture(scope="module")
def flow_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    flag = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with running_browser(tmp_path_factory.mktemp("browser"), flag) as started:
        yield started


@pytest.fixture
def scripted_recorder(tmp_path: Path) -> Iterator[ScriptedRecorder]:
    made = ScriptedRecorder(str(tmp_path / "run"))
    made.flows = list(FLOWS)
    yield made
    made.close()


@pytest.fixture
def opened(flow_browser: Browser, scripted_recorder: ScriptedRecorder) -> Iterator[Browser]:
    with FlowPage(HostFlows(scripted_recorder.path), "", nothing_stored, timeout_s=30) as page:
        show(flow_browser, page.access.address, len(scripted_recorder.flows))
        yield flow_browser
        assert flow_browser.of("Runtime.exceptionThrown") == []


def show(browser: Browser, address: str | Path, rows: int, *, scheme: str = "light", width: int = 1200) -> None:
    browser.open(address, scheme=scheme, width=width, height=900)
    browser.until(f"{ROWS} === {rows}")
    browser.until("document.getElementById('newest').textContent !== ''")  # nothing moves any more


def written(scripted_recorder: ScriptedRecorder, tmp_path: Path) -> Path:
    path = tmp_path / "flows.html"
    assert run(["flows", "--html", str(path)], {"CALICO_RUN_DIR": str(Path(scripted_recorder.path).parent)}) == 0
    return path


def test_with_keys_alone(opened: Browser) -> None:
    opened.press("j", "j")
    assert "fd00" not in opened.evaluate(CURRENT) and "prometheus-0" in opened.evaluate(CURRENT)
    opened.press("k", "G")
    assert "web-7d9-x2k4" in opened.evaluate(CURRENT)
    opened.press("Enter")
    detail = opened.evaluate("document.querySelector('tr.current + tr.detail').innerText")
    for text in ("Egress", "shop/to-db rule 0", "Ingress", "shop/database rule 1", "allowed, tier default"):
        assert text in detail
    assert "calicoctl policy explain --from shop/web-7d9-x2k4 --to shop/db-0 --protocol tcp --port 5432" in detail
    opened.press("Escape")
    assert opened.evaluate("document.querySelector('tr.detail')") is None
    opened.press("/")
    opened.type("--from shop/api --verdict DROPPED")
    opened.press("Enter")
    opened.until(f"{ROWS} === 1")
    opened.press("ArrowDown", "j", "Enter")
    detail = opened.evaluate("document.querySelector('tr.detail').innerText")
    assert "end of the tier: no rule of shop/close-egress" in detail and "not asked: it was denied before" in detail
    opened.press("x")
    opened.until(f"{ROWS} === 5")
    opened.press("m")
    assert not opened.evaluate("document.getElementById('matrix').hidden")
    opened.press("m", "?")
    assert opened.evaluate("document.getElementById('keys').open")
    opened.press("Escape")
    assert not opened.evaluate("document.getElementById('keys').open")


def test_what_is_counted_later(opened: Browser, scripted_recorder: ScriptedRecorder) -> None:
    opened.press("G", "Enter")
    detail = "document.querySelector('tr.detail').innerText"
    assert "not counted yet" in opened.evaluate(detail)
    scripted_recorder.flows[0] = {**FLOWS[0], "bytes": {"in": 2000, "out": 1234}, "ended": True}
    opened.press("Enter", "Enter")
    opened.until(f"{detail}.includes('1,234 out, 2,000 in')")


def test_the_other_side_denies_a_moment_later(opened: Browser, scripted_recorder: ScriptedRecorder) -> None:
    opened.press("G", "Enter")
    denied = [rule("egress", "shop", "to-db", 0), end_of_tier("ingress", "shop", "database")]
    scripted_recorder.tell({**FLOWS[0], "verdict": "denied", "decided": denied})
    opened.until("!!document.querySelector('tr.current.denied + tr.detail .deny')")
    assert opened.evaluate(ROWS) == 5 and "DENIED" in opened.evaluate(CURRENT)


def test_what_would_be_decided_now(flow_browser: Browser, scripted_recorder: ScriptedRecorder) -> None:
    why = [
        ["egress of shop/web: allowed by rule 1 of Profile open"],
        [f"ingress: DENIED {HOSTILE}", '{"action":"Deny"}'],
    ]
    deny = {"tier": "default", "action": "Deny", "by": "the end of the tier"}
    steps = [
        [],
        [{"tier": HOSTILE, "action": "Pass", "by": "rule 2 of x"}, deny, {"tier": "z", "action": "", "by": ""}],
    ]
    ends = [{"allowed": i == 0, "why": lines, "steps": steps[i]} for i, lines in enumerate(why)]
    found: dict[str, Any] = {"allowed": False, "ends": ends, "hosts": [], "warnings": ["a policy is not in force"]}
    asked: list[Mapping[str, str]] = []

    def judge(query: Mapping[str, str]) -> dict[str, Any]:
        asked.append(query)
        return found if query["to"] == "shop/db-0" else nothing_stored(query)

    with FlowPage(HostFlows(scripted_recorder.path), "", judge, timeout_s=30) as page:
        show(flow_browser, page.access.address, 5)
        flow_browser.press("G", "e")
        flow_browser.until("!!document.querySelector('.now')")
        text = flow_browser.evaluate("document.querySelector('.now').innerText")
        for part in ("Now the connection is DENIED", "rule 1 of Profile open", "\\x202e", "a policy is not in force"):
            assert part in text
        strip = "[...document.querySelectorAll('.now li')].map(one => [one.className, one.innerText])"
        (_, passed), denied, skipped = flow_browser.evaluate(strip)
        assert passed.startswith("tier <img src=x") and passed.endswith(" passes on\nrule 2 of x")
        assert denied == ["deny", "tier default DENIES\nthe end of the tier"]
        assert skipped == ["pass", "tier z is not asked"]
        assert flow_browser.evaluate("document.querySelectorAll('.now img').length") == 0
        flow_browser.press("Escape", "g", "j", "j", "j", "Enter")
        flow_browser.click("tr.detail .judge")
        flow_browser.until("!!document.querySelector('.now .bad')")
        assert asked == [
            {"from": "shop/web-7d9-x2k4", "to": "shop/db-0", "protocol": "tcp", "port": "5432"},
            {"from": "shop/api-5c9-q1", "to": "192.0.2.7", "protocol": "tcp", "port": "443"},
        ]


def test_clicks_filter_and_open(opened: Browser) -> None:
    opened.click("tr.flow:last-child td.by")
    assert opened.evaluate("document.querySelectorAll('tr.detail').length") == 1
    opened.click("tr.detail .sides .pick")
    opened.until(f"{ROWS} === 1")
    assert opened.evaluate(WORDS) == "--policy shop/to-db"
    opened.click("#clear")
    opened.until(f"{ROWS} === 5")
    opened.click("tr.flow:last-child .pick")
    opened.until(f"{ROWS} === 1")
    assert opened.evaluate(WORDS) == "--from shop/web-7d9-x2k4"
    opened.press("x", "/")
    opened.type("--nonsense")
    opened.press("Enter")
    opened.until("!document.getElementById('wrong').hidden")
    assert "--nonsense" in opened.evaluate("document.getElementById('wrong').textContent")
    opened.press("x")
    opened.until(f"{ROWS} === 5")
    opened.press("/")
    opened.type("--from '" + "\u00e4" * 1500 + "'")
    opened.press("Enter")
    assert "too long" in opened.evaluate("document.getElementById('wrong').textContent")


def test_the_matrix(opened: Browser) -> None:
    opened.click("#view")
    cells = "[...document.querySelectorAll('#cells tr')].map(row => [...row.cells].map(cell => cell.innerText.trim()))"
    assert opened.evaluate(cells) == [
        ["from \\ to", "shop", "addresses"],
        ["metrics", "1 + 1 DENIED", ""],
        ["shop", "1", "1 DENIED"],
        ["addresses", "1 DENIED", ""],
    ]
    opened.click("#group")
    assert [row[0] for row in opened.evaluate(cells)][1:3] == ["192.0.2.7", "metrics/prometheus-0"]
    opened.click("#group")
    opened.click("#cells .pick")
    opened.until(f"{ROWS} === 2")
    assert opened.evaluate(WORDS) == "--from metrics/ --to shop/"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read(
    flow_browser: Browser, scripted_recorder: ScriptedRecorder, tmp_path: Path, scheme: str
) -> None:
    path = written(scripted_recorder, tmp_path)
    for width in (1200, 420):
        show(flow_browser, path, 5, scheme=scheme, width=width)
        assert flow_browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    flow_browser.press("j", "j", "j", "j", "Enter")
    flow_browser.press("m")
    assert min(flow_browser.evaluate(f"{CONTRAST}('#cells td', '#cells b.bad', '#cells th')")) >= 4.5
    flow_browser.press("m")
    names = "'tr.denied .verdict', 'tr.flow td', '#list th', '.detail td', '.facts dt', '.detail code', '#counts', 'h1'"
    for back in ("'#list th'", "'tr.current td'", "'body'"):
        assert min(flow_browser.evaluate(f"{CONTRAST}({back}, {names})")) >= 4.5
    dark = flow_browser.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(15, 20, 26)"
    assert dark == (scheme == "dark")
    asked = {event["request"]["url"] for event in flow_browser.of("Network.requestWillBeSent")}
    assert asked <= {path.as_uri(), "data:,"}
    assert flow_browser.of("Runtime.exceptionThrown") == [] and flow_browser.of("Log.entryAdded") == []


def test_more_flows_than_the_page_keeps(flow_browser: Browser, scripted_recorder: ScriptedRecorder) -> None:
    scripted_recorder.flows = [numbered(number) for number in range(2500)]
    with FlowPage(HostFlows(scripted_recorder.path), "", nothing_stored, timeout_s=30) as page:
        show(flow_browser, page.access.address, 2000)
        top = "document.querySelector('tr.flow').innerText"
        assert "00:41:39.000" in flow_browser.evaluate(top)
        flow_browser.press("j", "Enter", "p")
        scripted_recorder.tell(*(numbered(number) for number in range(2500, 2800)))
        flow_browser.until("document.getElementById('pause').textContent === 'Go on (300 new)'")
        assert "00:41:39.000" in flow_browser.evaluate(top)
        flow_browser.press("p")
        flow_browser.until("document.querySelector('tr.flow').innerText.includes('00:46:39.000')")
        assert flow_browser.evaluate(ROWS) == 2000 and "00:41:39.000" in flow_browser.evaluate(CURRENT)
        counts = "document.getElementById('counts').textContent"
        flow_browser.until(f"{counts} === '2,000 flows, 0 denied; 2,300 were seen since the filter was set'")


def test_it_connects_again(flow_browser: Browser, scripted_recorder: ScriptedRecorder) -> None:
    notices = "document.getElementById('notices').innerText"
    with FlowPage(HostFlows(scripted_recorder.path), "", nothing_stored, timeout_s=30) as page:
        show(flow_browser, page.access.address, 5)
        flow_browser.until(f"{STATE} === 'live'")
        scripted_recorder.close()
        flow_browser.until(f"{STATE}.startsWith('not connected since')")
        assert "the recorder has ended" in flow_browser.evaluate(notices)
        scripted_recorder.flows.append(numbered(7))
        scripted_recorder.open()
        flow_browser.until(f"{STATE} === 'live'")
        flow_browser.until(f"{ROWS} === 6")
        assert "Connected again at" in flow_browser.evaluate(notices)
        port = page.access.port
    flow_browser.until(f"{notices}.includes('calicoctl does not answer')")
    with FlowPage(HostFlows(scripted_recorder.path), "", nothing_stored, port=port, timeout_s=30):
        flow_browser.until(f"{notices}.includes('calicoctl was started again')")
        assert flow_browser.evaluate(STATE) == "not connected" and flow_browser.evaluate(ROWS) == 6


@pytest.mark.parametrize("live", [True, False])
def test_hostile_names(flow_browser: Browser, scripted_recorder: ScriptedRecorder, tmp_path: Path, live: bool) -> None:
    named = pod(HOSTILE, HOSTILE, "10.65.0.66")
    decided = {**rule("egress", HOSTILE, HOSTILE, 0), "tier": HOSTILE}
    scripted_recorder.flows = [flow(named, {**named, "port": 80}, decided, node=HOSTILE, protocol=HOSTILE)]
    with FlowPage(HostFlows(scripted_recorder.path), "", nothing_stored, timeout_s=30) as page:
        show(flow_browser, page.access.address if live else written(scripted_recorder, tmp_path), 1)
        flow_browser.press("j", "Enter", "m", "m")
        assert flow_browser.evaluate("[...document.querySelectorAll('img, script')].map(one => one.type)") == [
            "application/json",
            "",
        ]
        assert flow_browser.evaluate("window.owned") is None
        text = flow_browser.evaluate("document.body.innerText")
        assert "<img src=x onerror=window.owned=1>\\x202e" in text and "\u202e" not in text
        command = flow_browser.evaluate("document.querySelector('code').textContent")
        assert len(shlex.split(command)) == 11 and shlex.split(command)[:4] == [
            *["calicoctl", "policy", "explain", "--from"]
        ]
        assert flow_browser.of("Runtime.exceptionThrown") == []
        assert not live or flow_browser.of("Log.entryAdded") == []


FILTERS = (
    *(
        "",
        "--from shop/web",
        "--from web --to shop/db",
        "--to 192.0.2.7",
        "--pod prometheus",
        "-n metrics",
        "--to shop/",
    ),
    *("--ip fd00::1", "--port 5432", "--port 53 --port 443", "--protocol ICMP6", "--protocol=47", "--policy shop/api"),
    *(
        "--policy ping",
        "--tier default",
        "--verdict DROPPED",
        "--not --verdict denied",
        "--not --from shop/web --ip fd00::1",
    ),
    *("--service shop/db", "--service db", "--service bank/db", "--service d", "--not --service 10.96.0.1"),
    *(
        "--not --port 80 --not --port 443",
        "--from 'shop/web' --from \"metrics/\"",
        "--from-pod=shop\\/api",
        "--protocol 6",
    ),
)
WRONG = (
    *("--verdict pending", "--verdict AUDIT", "--from", "--not", "--from 'a", "--nonsense x", "word", "--from --to"),
    *("--from \\", "--ip ''", "--port http", "--port 65536", "--protocol tpc", "--protocol 256"),
)


def test_a_file_understands_the_same_filters(
    flow_browser: Browser, scripted_recorder: ScriptedRecorder, tmp_path: Path
) -> None:
    from datetime import UTC, datetime

    show(flow_browser, written(scripted_recorder, tmp_path), 5)
    shown = "[...document.querySelectorAll('tr.flow:not([hidden])')].map(row => Number(row.dataset.key))"

    def apply(text: str) -> None:
        flow_browser.press("/")
        flow_browser.type(text) if text else flow_browser.evaluate("document.getElementById('words').value = ''")
        flow_browser.press("Enter")

    for text in FILTERS:
        query = parse_query_arguments(parse_filters(text), datetime.now(UTC))
        expected = [i for i, one in enumerate(reversed(FLOWS)) if meets(one, query.conditions)]
        apply(text)
        assert flow_browser.evaluate(shown) == expected, text
        assert flow_browser.evaluate("document.getElementById('wrong').hidden"), text
    for text in WRONG:
        apply("")
        apply(text)
        assert "filter: " in flow_browser.evaluate("document.getElementById('wrong').textContent"), text


def test_who_has_no_token_sees_nothing(flow_browser: Browser, scripted_recorder: ScriptedRecorder) -> None:
    with FlowPage(HostFlows(scripted_recorder.path), "", nothing_stored, timeout_s=30) as page:
        address, text = page.access.address, "document.body.innerText"
        for wrong, says in (
            (address.partition("?")[0], "open the address that calicoctl printed"),
            (address[:-1] + ("0" if address[-1] != "0" else "1"), "open the address that calicoctl printed"),
            (address.replace("127.0.0.1", "evil.example"), "this page is only at 127.0.0.1"),
        ):
            flow_browser.open(wrong, scheme="light", width=1200, height=900)
            assert says in flow_browser.evaluate(text) and flow_browser.evaluate(ROWS) == 0
        show(flow_browser, address, 5)
        assert flow_browser.evaluate("location.href") == f"http://127.0.0.1:{page.access.port}{page.access.path}"
        assert flow_browser.evaluate("document.cookie") == ""


@pytest.mark.slow
def test_the_pictures_of_the_documentation_can_be_made_again(tmp_path: Path) -> None:
    pictures.main(tmp_path)
    made = {path.name: path.read_bytes()[16:24] for path in tmp_path.glob("*.png")}  # width and height
    assert made == {path.name: path.read_bytes()[16:24] for path in pictures.DIRECTORY.glob("*.png")} and len(made) == 2
