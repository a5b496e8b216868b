"""The recorder is told where flows are exported to, and what this node's workloads are called there."""

from __future__ import annotations

import stat
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.flows.export.wanted import EXPORT, ExportedEnd, Target, parse_export
from cni_calico.log import SILENT
from cni_calico.model.resources import Metadata, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.recording import exports_flows, recorded_flows, wanted_recording
from cni_calico.nodeagent.recording.exporting import ExportTeller, end_of


def endpoint(name: str, generate_name: str = "", pod: str = "web", **labels: str) -> WorkloadEndpoint:
    extra = {"generateName": generate_name} if generate_name else {}
    metadata = Metadata(f"n1-k8s-{name}-eth0", "shop", labels=labels, extra=extra)
    return WorkloadEndpoint(metadata, "k8s", "n1", "eth0", "cali1", pod=pod, ip_networks=(ip_network("10.0.0.1"),))


def settings(**environ: str) -> FelixSettings:
    parsed = parse_felix({f"FELIX_{name.upper()}": value for name, value in environ.items()})
    assert not parsed.warnings
    return parsed.settings


def test_pods_of_one_owner_share_a_name() -> None:
    assert end_of(endpoint("a", "web-7d9-", "web-7d9-x2k4", app="web")) == (
        ("shop", "web-7d9-x2k4"),
        ExportedEnd("web-7d9-*", {"app": "web"}),
    )
    assert end_of(endpoint("b", pod="db-0")) == (("shop", "db-0"), ExportedEnd("db-0"))


def test_the_file_is_there_while_flows_are_exported(tmp_path: Path) -> None:
    teller, path = ExportTeller("n1", str(tmp_path), SILENT), tmp_path / EXPORT
    path.write_text("left behind")
    teller.use(settings(), [endpoint("a")])
    assert not path.exists()
    wanted = settings(
        FlowLogsGoldmaneServer="goldmane.calico-system.svc:7443",
        FlowLogsFlushInterval="15",
        TyphaCAFile="/ca",
        TyphaCertFile="/crt",
        TyphaKeyFile="/key",
    )
    teller.use(wanted, [endpoint("a")])
    target = Target("goldmane.calico-system.svc:7443", "/ca", "/crt", "/key", 15.0, host="n1")
    assert parse_export(path.read_bytes()) == (target, {("shop", "web"): ExportedEnd("web")})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.stat().st_ino
    teller.use(wanted, [endpoint("a")])
    assert path.stat().st_ino == before
    teller.use(wanted, [])
    assert parse_export(path.read_bytes()) == (target, {})
    teller.use(settings(FlowLogsLocalReporter="Enabled", FlowsHostEndpoints="Disabled"), [])
    assert parse_export(path.read_bytes())[0] == Target("", local=True)
    teller.use(settings(), [])
    assert not path.exists()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    (tmp_path / "run").write_text("a file")
    teller = ExportTeller("n1", str(tmp_path / "run"), SILENT, lambda part, why: told.append((part, why)))
    teller.use(settings(FlowLogsLocalReporter="Enabled"), [])
    [(part, why)] = told
    assert part == "export of flows" and "cannot write" in why
    (tmp_path / "run").unlink()
    (tmp_path / "run").mkdir()
    teller.use(settings(FlowLogsLocalReporter="Enabled"), [])
    assert told[1:] == [("export of flows", "")]
    assert parse_export((tmp_path / "run" / EXPORT).read_bytes())[0].local


def test_what_is_not_recorded_is_not_exported_and_that_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, str]] = []
    teller = ExportTeller("n1", str(tmp_path), SILENT, lambda part, why: told.append((part, why)))
    off = settings(FlowLogsGoldmaneServer="goldmane:7443", Flows="Disabled")
    for _ in range(2):
        teller.use(off, [])
    assert not (tmp_path / EXPORT).exists()
    [(part, why)] = told
    assert part == "export of flows" and "the parameter Flows is Disabled" in why
    teller.use(settings(FlowLogsGoldmaneServer="goldmane:7443"), [])
    assert told[1:] == [("export of flows", "")] and (tmp_path / EXPORT).exists()


@pytest.mark.parametrize(
    ("given", "recorded", "judges", "asked"),
    [
        ({}, "Denied", False, False),
        ({"Flows": "Auto"}, "Denied", False, False),
        ({"Flows": "Denied"}, "Denied", False, True),
        ({"Flows": "Enabled"}, "Enabled", True, True),
        ({"Flows": "Disabled"}, "Disabled", False, True),
        ({"FlowLogsGoldmaneServer": "goldmane:7443"}, "Enabled", True, True),
        ({"FlowLogsLocalReporter": "enabled"}, "Enabled", True, True),
        ({"FlowLogsGoldmaneServer": "goldmane:7443", "Flows": "Auto"}, "Enabled", True, True),
        ({"FlowLogsGoldmaneServer": "goldmane:7443", "Flows": "Denied"}, "Denied", True, True),
        ({"FlowLogsGoldmaneServer": "goldmane:7443", "Flows": "Disabled"}, "Disabled", False, True),
        ({"FlowLogsLocalReporter": "enabled", "Flows": "Disabled"}, "Disabled", False, True),
        ({"FlowLogsGoldmaneServer": "none"}, "Denied", False, False),
    ],
)
def test_what_is_recorded(given: dict[str, str], recorded: str, judges: bool, asked: bool) -> None:
    assert recorded_flows(settings(**given)) == recorded
    assert wanted_recording(settings(**given)) == (recorded, judges, asked)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FlowLogsGoldmaneServer", "goldmane"),
        ("FlowLogsGoldmaneServer", "[::1]"),
        ("FlowLogsGoldmaneServer", "http://goldmane:7443"),
        ("FlowLogsGoldmaneServer", "goldmane:0"),
        ("FlowLogsFlushInterval", "0"),
        ("FlowLogsFlushInterval", "2h"),
        ("FlowLogsLocalReporter", "yes"),
        ("FlowsHostEndpoints", "no"),
    ],
)
def test_a_wrong_value_is_not_used_and_named(name: str, value: str) -> None:
    parsed = parse_felix({f"FELIX_{name.upper()}": value})
    [warning] = parsed.warnings
    assert name.upper() in warning and "is not used" in warning
    assert parsed.settings == FelixSettings()


@pytest.mark.parametrize("value", ["[fd00::1]:7443", "10.0.0.1:7443", "goldmane.calico-system.svc:7443"])
def test_servers(value: str) -> None:
    assert settings(FlowLogsGoldmaneServer=value).flow_logs_server == value


def test_fields_of_the_resource_have_the_same_names() -> None:
    spec = {
        "flowLogsGoldmaneServer": "goldmane:7443",
        "flowLogsFlushInterval": "15s",
        "flowLogsLocalReporter": "Enabled",
    }
    parsed = parse_felix({}, None, spec)
    assert not parsed.warnings and exports_flows(parsed.settings)
    assert (parsed.settings.flow_logs_server, parsed.settings.flow_logs_interval_s) == ("goldmane:7443", 15.0)
