"""The environment and the resource of calico-kube-controllers."""

from __future__ import annotations

import json
import re

import pytest

from cni_calico.controllers.settings import DEFAULT_SPEC, merge, parse_environment, render_duration, render_status
from cni_calico.daemon.settings_table import parse_duration_s
from cni_calico.errors import InvalidConfig
from tests.conftest import ROOT

VECTORS = ROOT / "tests" / "golden" / "vectors"


def test_upstreams_v30_environment():
    settings = parse_environment(
        {"ENABLED_CONTROLLERS": "policy,profile,workloadendpoint,node", "PROFILE_WORKERS": "2"}
    )
    assert settings.enabled == ("policy", "namespace", "workloadendpoint", "node")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ENABLED_CONTROLLERS", "node,nodes", "there is no controller 'nodes'"),
        ("ENABLED_CONTROLLERS", "flannelmigration", "is not part of these controllers"),
        ("RECONCILER_PERIOD", "soon", "expected a duration"),
        ("COMPACTION_PERIOD", "-1m", "expected a duration"),
        ("HEALTH_ENABLED", "perhaps", "expected true or false"),
        ("SYNC_NODE_LABELS", "2", "expected true or false"),
        ("AUTO_HOST_ENDPOINTS", "true", "expected one of Enabled, Disabled"),
        ("LOG_LEVEL", "loud", "expected one of"),
        ("POLICY_WORKERS", "none", "expected a whole number"),
    ],
)
def test_a_wrong_value_ends_it_and_is_named(name, value, says):
    with pytest.raises(InvalidConfig, match=re.escape(f"{name}={value!r}")) as caught:
        parse_environment({name: value})
    assert says in str(caught.value)


def test_all_that_is_wrong_is_named_at_once():
    with pytest.raises(InvalidConfig) as caught:
        parse_environment({"LOG_LEVEL": "loud", "HEALTH_ENABLED": "perhaps"})
    assert "LOG_LEVEL" in str(caught.value) and "HEALTH_ENABLED" in str(caught.value)


def test_without_anything_the_defaults_of_the_resource_count():
    running = merge(parse_environment({}), None)
    assert set(running.periods_s) == {
        "node",
        "policy",
        "namespace",
        "workloadendpoint",
        "serviceaccount",
        "loadbalancer",
    }
    assert set(running.periods_s.values()) == {300.0}
    assert (running.compaction_s, running.metrics_port, running.log_level, running.health) == (
        600.0,
        9094,
        "info",
        True,
    )
    assert running.wrong == ()
    assert running == merge(parse_environment({}), DEFAULT_SPEC)


def test_a_section_that_is_absent_is_a_controller_that_is_off():
    running = merge(parse_environment({}), {"controllers": {"node": {"reconcilerPeriod": "1m"}, "policy": None}})
    assert dict(running.periods_s) == {"node": 60.0}


def test_the_environment_wins():
    settings = parse_environment(
        {
            "ENABLED_CONTROLLERS": "policy",
            "RECONCILER_PERIOD": "30s",
            "COMPACTION_PERIOD": "0",
            "LOG_LEVEL": "warn",
            "HEALTH_ENABLED": "false",
            "SYNC_NODE_LABELS": "false",
        }
    )
    spec = {
        "controllers": {"node": {"syncLabels": "Enabled"}, "policy": {"reconcilerPeriod": "1h"}},
        "logSeverityScreen": "Debug",
        "healthChecks": "Enabled",
        "etcdV3CompactionPeriod": "1m",
    }
    running = merge(settings, spec)
    assert dict(running.periods_s) == {"policy": 30.0}
    assert (running.compaction_s, running.log_level, running.health, running.sync_labels) == (
        0,
        "warning",
        False,
        False,
    )


@pytest.mark.parametrize(
    "spec",
    [
        {"controllers": {"node": {"reconcilerPeriod": 5}}},
        {"controllers": {"node": {"reconcilerPeriod": "often"}}},
        {"controllers": {"node": {"syncLabels": True}}},
        {"controllers": {"node": []}, "prometheusMetricsPort": 70000},
        {"healthChecks": "yes", "controllers": {"node": {}}},
        {"logSeverityScreen": "Loud", "controllers": {"node": {}}},
        {"etcdV3CompactionPeriod": {}, "controllers": {"node": {}}},
        {"controllers": {"node": {"leakGracePeriod": "soon"}}},
        {"controllers": {"node": {"hostEndpoint": {"autoCreate": "yes"}}}},
        {"controllers": {"node": {"hostEndpoint": {"templates": [{"generateName": "x"}]}}}},
    ],
)
def test_what_the_resource_says_wrongly_is_told_and_counts_as_not_given(spec):
    running = merge(parse_environment({}), spec)
    assert running.wrong
    assert running == merge(parse_environment({}), {"controllers": {"node": {}}})


@pytest.mark.parametrize("spec", ["text", 3, {"controllers": 7}])
def test_a_resource_that_is_no_resource_runs_nothing(spec):
    running = merge(parse_environment({}), spec)
    assert running.wrong
    assert not running.periods_s


def test_the_status_says_what_is_in_force_and_which_variables_decided():
    environ = {"ENABLED_CONTROLLERS": "node, policy", "KUBECONFIG": "/k", "NODE_WORKERS": "1", "PATH": "/bin"}
    settings = parse_environment(environ)
    status = render_status(settings, merge(settings, None), environ)
    assert status["environmentVars"] == {"ENABLED_CONTROLLERS": "node, policy"}
    assert status["runningConfig"] == {
        "controllers": {
            "node": {
                "reconcilerPeriod": "5m0s",
                "syncLabels": "Enabled",
                "leakGracePeriod": "15m0s",
                "hostEndpoint": {"autoCreate": "Disabled", "createDefaultHostEndpoint": "Enabled"},
            },
            "policy": {"reconcilerPeriod": "5m0s"},
        },
        "etcdV3CompactionPeriod": "10m0s",
        "healthChecks": "Enabled",
        "logSeverityScreen": "Info",
        "prometheusMetricsPort": 9094,
    }


def test_the_status_is_as_upstreams_for_its_own_defaults():
    """What the vector's controllers had in force, but for what only ours say."""
    [found] = json.loads((VECTORS / "k8s-06-agents.json").read_text())["kubecontrollersconfigurations"]
    upstreams = found["status"]["runningConfig"]
    settings = parse_environment({"ENABLED_CONTROLLERS": "node,loadbalancer"})
    ours = render_status(settings, merge(settings, None), {}, is_kubernetes=True)["runningConfig"]
    del ours["prometheusMetricsPort"], ours["controllers"]["node"]["reconcilerPeriod"]
    del upstreams["controllers"]["policyMigration"]
    assert ours == upstreams


def test_a_template_in_the_status_is_the_one_that_was_given():
    full = {
        "generateName": "x",
        "interfaceCIDRs": ["10.0.0.0/8"],
        "interfacePattern": "eth",
        "labels": {"a": "b"},
        "nodeSelector": "has(rack)",
    }
    spec = {"controllers": {"node": {"hostEndpoint": {"templates": [full]}}}}
    status = render_status(parse_environment({}), merge(parse_environment({}), spec), {})["runningConfig"]
    assert status["controllers"]["node"]["hostEndpoint"]["templates"] == [full]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (1.5, "1.5s"), (59, "59s"), (60, "1m0s"), (3600, "1h0m0s"), (5430, "1h30m30s")]
)
def test_durations_are_written_as_go_does_it(seconds, text):
    assert render_duration(seconds) == text
    assert parse_duration_s(text) == seconds


def test_load_balancers_and_host_endpoints():
    hosts = {"autoCreate": "Enabled", "templates": [{"generateName": "x", "interfacePattern": "eth"}]}
    spec = {"controllers": {"node": {"hostEndpoint": hosts}, "loadBalancer": {"assignIPs": "RequestedServicesOnly"}}}
    running = merge(parse_environment({}), spec)
    assert running.assign_ips == "RequestedServicesOnly" and running.host_endpoints.auto
    assert [template.name for template in running.host_endpoints.templates] == ["x"]
    status = render_status(parse_environment({}), running, {})["runningConfig"]["controllers"]
    assert status["loadBalancer"] == {"assignIPs": "RequestedServicesOnly"}
    assert status["node"]["hostEndpoint"]["templates"] == [
        {"generateName": "x", "interfacePattern": "eth", "nodeSelector": "all()"}
    ]
    assert not merge(parse_environment({"AUTO_HOST_ENDPOINTS": "disabled"}), spec).host_endpoints.auto
    wrong = merge(parse_environment({}), {"controllers": {"loadBalancer": {"assignIPs": "Some"}}})
    assert wrong.assign_ips == "AllServices" and "assignIPs" in wrong.wrong[0]


def test_an_api_group_is_one_of_two():
    assert parse_environment({"CALICO_API_GROUP": "crd.projectcalico.org/v1"}).api_group == "crd.projectcalico.org/v1"
    assert parse_environment({"CALICO_API_GROUP": "ProjectCalico.org/V3"}).api_group == "projectcalico.org/v3"
    with pytest.raises(InvalidConfig, match=r"CALICO_API_GROUP='foo/v9': expected crd\.projectcalico\.org/v1 or proj"):
        parse_environment({"CALICO_API_GROUP": "foo/v9"})
