"""What the agent says about itself, and who believes it: exec probes, HTTP pages, metrics."""

import json
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from cni_calico import __version__
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.ipam_metrics import IpamNumbers
from cni_calico.daemon.http_server import PageServer, ServerFiles
from cni_calico.daemon.http_servers import HttpServers
from cni_calico.log import SILENT, Log
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.metrics import Metrics
from cni_calico.nodeagent.status.numbers import Numbers
from cni_calico.nodeagent.status.pages import health_pages, metrics_files
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.plugin.call import protocol
from cni_calico.server.run import CniServer
from tests.promtool import complaints, undescribed
from tests.unit.nodeagent.fabric import block, pool, snapshot

ROOT = Path(__file__).parents[4]
GOOD = {"node": "n1", "synced": True, "datastore_error": "", "updated": 1000.0}


@pytest.mark.parametrize(
    ("change", "now", "live", "ready"),
    [
        ({}, 1001.0, "", ""),
        ({}, 1059.0, "", ""),
        ({}, 1061.0, "sign of life", "sign of life"),
        ({}, 900.0, "sign of life", "sign of life"),  # a file from before a reboot
        ({"synced": False}, 1001.0, "", "not applied the network yet"),
        ({"synced": False, "datastore_error": "no route"}, 1001.0, "", "no route"),
        ({"datastore_error": "connection refused"}, 1001.0, "", "out of sync: connection refused"),
        ({"updated": "soon"}, 1001.0, "sign of life", "sign of life"),
    ],
)
def test_live_and_ready(change, now, live, ready):
    fields = {**GOOD, **change}
    for why, expected in ((status.why_not_live(fields, now), live), (status.why_not_ready(fields, now), ready)):
        assert expected in why and bool(why) == bool(expected)


def test_no_file_and_a_broken_file(tmp_path):
    assert "has not started" in status.why_not_live(status.read_status(str(tmp_path)), 1.0)
    (tmp_path / status.NAME).write_text("{half")
    assert status.read_status(str(tmp_path)) == {}
    (tmp_path / status.NAME).write_text("[]")
    assert status.read_status(str(tmp_path)) == {}


def test_why_startup_fails_is_told_until_it_succeeds(tmp_path):
    run_dir = f"{tmp_path}/run"  # start-up may be the first to write there
    status.write_startup_error(run_dir, "AS='high': no")
    fields = status.read_status(run_dir)
    assert status.why_not_live(fields, 1.0) == "the agent has not started: start-up fails: AS='high': no"
    status.write_status(run_dir, {**GOOD})
    fields = status.read_status(run_dir)
    assert status.why_not_live(fields, status.since_boot()) == ""  # it was set up before: it runs, and is not ready
    assert status.why_not_ready(fields, status.since_boot()) == "start-up fails: AS='high': no"
    for _ in range(2):
        status.write_startup_error(run_dir, "")
    assert status.why_not_ready(status.read_status(run_dir), status.since_boot()) == ""


def test_written_and_read(tmp_path):
    status.write_status(str(tmp_path), GOOD)
    fields = status.read_status(str(tmp_path))
    assert fields["node"] == "n1" and abs(fields["updated"] - status.since_boot()) < 5
    assert [path.name for path in tmp_path.iterdir()] == [status.NAME]


@pytest.fixture
def cni_server(tmp_path):
    """Answers every request with numbers."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{tmp_path}/cni.sock")
    listener.listen(8)

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                connection.sendall(protocol.frame(protocol.answer_fields(0, b"calico_cni_refused_total 7\n")))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def probe(run_dir, *flags):
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "cni_calico.nodeagent.main", *flags],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"CALICO_RUN_DIR": str(run_dir), "PATH": "/usr/bin:/bin"},
    )
    return done.returncode, done.stderr, time.monotonic() - begun


def test_exec_probes(tmp_path, cni_server):
    assert probe(tmp_path, "-felix-live")[0] == 1
    status.write_status(str(tmp_path), {**GOOD, "synced": False})
    assert probe(tmp_path, "-felix-live")[0] == 0
    code, said, _ = probe(tmp_path, "-felix-ready")
    assert code == 1 and "felix is not ready: the agent has not applied the network yet" in said
    status.write_status(str(tmp_path), GOOD)
    assert probe(tmp_path, "-felix-live", "-felix-ready")[0] == 0
    code, said, _ = probe(tmp_path, "-felix-ready", "-bird-ready", "-bird6-live")
    assert code == 1 and said.count("BIRD is not") == 2


def test_readiness_needs_the_cni_server(tmp_path):
    status.write_status(str(tmp_path), GOOD)
    code, said, _ = probe(tmp_path, "-felix-ready")
    assert code == 1 and "the CNI server at" in said


def test_a_cni_server_that_was_not_started_is_not_waited_for(tmp_path):
    pages = health_pages(str(tmp_path))
    status.write_status(str(tmp_path), {**GOOD, "cni_server": False})
    assert probe(tmp_path, "-felix-ready")[0] == 0 and pages["/readiness"]()[0] == 200
    status.write_status(str(tmp_path), {**GOOD, "cni_server": True})
    assert probe(tmp_path, "-felix-ready")[0] == 1 and pages["/readiness"]()[0] == 503


def test_a_wrong_threshold_is_told(tmp_path):
    assert "-threshold-time=soon" in probe(tmp_path, "-bird-ready", "-threshold-time=soon")[1]


HEAVY = {
    "pyroute2",
    "http",
    "logging",
    "asyncio",
    "sqlite3",
    "grpc",
    "prometheus_client",
    "threading",
    "ipaddress",
    "yaml",
}


@pytest.mark.parametrize(("flags", "most"), [(["-felix-live"], 36), (["-felix-live", "-felix-ready"], 41), (["-v"], 8)])
def test_probes_import_little(tmp_path, expanded_tree, flags, most):
    status.write_status(str(tmp_path), GOOD)
    program = (
        "import sys, os; before = set(sys.modules); sys.argv[1:] = {!r}\n"
        "from cni_calico.nodeagent.main import main; main()\n"
        "sys.stdout.write('\\n' + ' '.join(set(sys.modules) - before))"
    )
    path = f"import sys; sys.path.insert(0, {str(expanded_tree)!r}); "
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", path + program.format(flags)],
        capture_output=True,
        text=True,
        env={"CALICO_RUN_DIR": str(tmp_path)},
        check=True,
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert modules & HEAVY == set()
    assert len(modules) <= most, sorted(modules)


# -- HTTP -------------------------------------------------------------------------------------------------------------


def fetch(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def test_health_pages(tmp_path, cni_server):
    pages = PageServer("127.0.0.1", 0, health_pages(str(tmp_path)))
    try:
        assert fetch(pages.port, "/liveness")[0] == 503
        status.write_status(str(tmp_path), {**GOOD, "synced": False})
        assert fetch(pages.port, "/liveness") == (200, "ok\n")
        code, why = fetch(pages.port, "/readiness?verbose")
        assert code == 503 and "not applied" in why
        status.write_status(str(tmp_path), GOOD)
        assert fetch(pages.port, "/readiness") == (200, "ok\n")
        assert fetch(pages.port, "/other")[0] == 404
    finally:
        pages.close()


def test_doors_follow_the_parameters(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        servers = HttpServers(SILENT)
        servers.keep("health", ("127.0.0.1", port), dict)  # it is somebody else's: told, not fatal
    servers.keep("health", ("127.0.0.1", port), dict)
    assert fetch(port, "/x")[0] == 404
    servers.keep("health", None, dict)
    with pytest.raises(OSError):
        fetch(port, "/x")
    servers.close()


def test_the_datastore_is_read_again_whenever_it_was_lost():
    numbers, seen = Numbers(), []
    for in_sync, error in ((False, False), (False, True), (True, False), (True, False), (False, True), (True, False)):
        numbers.note_datastore(in_sync=in_sync, error=error)
        seen.append((numbers.datastore_state, numbers.resyncs))
    assert seen == [(2, 1), (1, 1), (3, 1), (3, 1), (1, 2), (3, 2)]


def test_a_record_that_cannot_be_written_is_counted(tmp_path):
    before = Log.failures
    Log("info", str(tmp_path / "is-a-directory" / "x" / "\0"), stderr=False).info("lost")
    assert Log.failures == before + 1


def test_metrics(tmp_path, cni_server):
    (tmp_path / "cni" / "pending-del").mkdir(parents=True)
    (tmp_path / "cni" / "pending-del" / "a.json").write_text("{}")
    numbers = Numbers(policies=3, datastore_in_sync=True, doubts={("bgp-peer", 4): 2})
    numbers.resynced(0.03, full=True, changed=2, failed=1)
    numbers.note_datastore(in_sync=True, error=False)
    numbers.routes = {4: 7}
    metrics = Metrics(numbers, str(tmp_path), str(tmp_path))
    metrics.snapshot = snapshot(pool("10.65.0.0/16"), blocks=(block("10.65.1.0/26", "n1"), block("10.65.2.0/26", "n2")))
    code, _, body = metrics.page()
    text = body.decode()
    assert code == 200
    for line in (
        'calico_agent_passes_total{kind="full"} 1.0',
        'calico_agent_pass_seconds_bucket{le="0.025"} 0.0',
        'calico_agent_pass_seconds_bucket{le="0.05"} 1.0',
        "calico_agent_changes_total 2.0",
        "calico_datastore_in_sync 1.0",
        "calico_policies_not_enforced 3.0",
        "felix_resync_state 3.0",
        'felix_route_table_num_routes{table="IPv4:254"} 7.0',
        'felix_host{host="n1"} 1.0',
        'calico_node_address_doubts{code="bgp-peer",family="4"} 2.0',
        "calico_cni_pending_dels 1.0",
        'calico_ipam_node_blocks{pool="10.65.0.0-16"} 1.0',
        'calico_ipam_node_addresses_free{pool="10.65.0.0-16"} 64.0',
        "calico_cni_refused_total 7",
    ):
        assert line in text, line
    assert "process_resident_memory_bytes" in text and "calico_node_ready 0.0\n" in text
    status.write_status(str(tmp_path), GOOD)
    assert "calico_node_ready 1.0\n" in metrics.page()[2].decode()
    assert f'calico_build_info{{version="{__version__}"}} 1.0' in text


def test_promtool_has_no_complaint(tmp_path):
    """With every part that there can be, beside a real CNI server's numbers."""
    metrics = Metrics(Numbers(doubts={("bgp-peer", 4): 2}), str(tmp_path), str(tmp_path))
    metrics.snapshot = snapshot(pool("10.65.0.0/16"), blocks=(block("10.65.1.0/26", "n1"),))
    metrics.janitor = JanitorCounters(
        candidates={"address": 1},
        released=Counter(address=2),
        confirmed=Counter(address=2),
        ipam=lambda: IpamNumbers(pools=(pool("10.65.0.0/16"),)),
    )
    metrics.policing = lambda: (Standing(), PolicyFigures(in_kernel={"4": {"chains": 1, "rules": 1, "sets": 1}}))
    server = CniServer(f"{tmp_path}/cni.sock", SILENT, workers=2)
    server.start()
    try:
        page = metrics.page()[2].decode()
    finally:
        server.stop()
    assert "calico_cni_queue 0\n" in page and "calico_janitor_candidates{" in page and "felix_nft_rules{" in page
    assert 'ipam_ippool_size{ippool="10.65.0.0-16"} 65536\n' in page
    assert complaints(page) == "" and undescribed(page) == set()


def test_metrics_without_anybody_to_ask(tmp_path):
    code, _, body = Metrics(Numbers(), str(tmp_path), str(tmp_path)).page()
    assert code == 200 and b"calico_cni_refused" not in body


@pytest.mark.parametrize("language", [True, False])
@pytest.mark.parametrize("process", [True, False])
def test_metrics_of_the_language_and_of_the_process_can_be_left_out(tmp_path, language, process):
    metrics = Metrics(Numbers(), str(tmp_path), str(tmp_path))
    metrics.has_language, metrics.has_process = language, process
    page = metrics.page()[2]
    assert (b"\npython_" in page, b"\nprocess_" in page) == (language, process)
    assert b"\ncalico_build_info" in page


@pytest.mark.parametrize(
    ("mode", "clients"),
    [
        (None, "required"),
        ("RequireAnyClientCert", "required"),
        ("VerifyClientCertIfGiven", "optional"),
        ("NoClientCert", "none"),
    ],
)
def test_what_metrics_are_served_with(mode, clients):
    spec = {"prometheusMetricsCertFile": "/c", "prometheusMetricsKeyFile": "/k", "prometheusMetricsCAFile": "/a"}
    felix = parse_felix({}, None, spec | ({"prometheusMetricsClientAuth": mode} if mode else {})).settings
    assert metrics_files(felix) == ServerFiles("/c", "/k", "/a", clients)
    assert metrics_files(parse_felix({}, None, {"prometheusMetricsCAFile": "/a"}).settings) is None
    half = metrics_files(parse_felix({}, None, {"prometheusMetricsKeyFile": "/k"}).settings)
    assert half == ServerFiles("", "/k")  # which cannot be used, and is no reason to serve without TLS


def test_the_status_file_is_json(tmp_path):
    status.write_status(str(tmp_path), {"a": "\u00e9"})
    assert json.loads((tmp_path / status.NAME).read_bytes())["a"] == "\u00e9"


def test_an_engine_that_is_stuck_is_not_alive() -> None:
    fields = {"updated": 100.0, "synced": True, "policing_stalled_s": 119.0}
    assert status.why_not_live(fields, 101.0) == ""
    assert "policy engine" in status.why_not_live({**fields, "policing_stalled_s": 121.0}, 101.0)
