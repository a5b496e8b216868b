"""The installer's template: every variable, and nothing but JSON comes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import InvalidConfig
from cni_calico.install.settings import Settings, parse_settings
from cni_calico.install.steps import mount_source, server_url
from cni_calico.install.template import render_conflist, template_values
from tests.conftest import ROOT

DEFAULT = (ROOT / "conflist" / "10-calico.conflist.template").read_text()
SECRET = "eyJ-s3cret"


def settings(**environ: str) -> Settings:
    return parse_settings(environ, bundle="/opt/cni/bin", template_file="/t")


def render(template: str = DEFAULT, *, tls: frozenset[str] = frozenset(), **environ: str) -> dict[str, Any]:
    values = template_values(settings(**environ), node="host-1", token=SECRET, tls_files=tls)
    return json.loads(render_conflist(template, values))


def one(variable: str, **environ: str) -> Any:
    template = json.dumps({"name": "n", "type": "calico", "value": f"__{variable}__"})
    return render(template, tls=frozenset(("etcd-key", "etcd-ca")), **environ)["value"]


def test_the_default_template_with_no_environment() -> None:
    plugin = render()["plugins"][0]
    assert plugin["datastore_type"] == "kubernetes" and plugin["mtu"] == 1500 and plugin["nodename"] == "host-1"
    assert plugin["kubernetes"]["kubeconfig"] == "/etc/cni/net.d/calico-kubeconfig"
    assert plugin["etcd_endpoints"] == plugin["etcd_key_file"] == "" and plugin["require_mtu_file"] is False


@pytest.mark.parametrize(
    ("variable", "environ", "value"),
    [
        ("LOG_LEVEL", {}, "info"),
        ("LOG_LEVEL", {"LOG_LEVEL": "debug"}, "debug"),
        ("LOG_FILE_PATH", {}, "/var/log/calico/cni/cni.log"),
        ("LOG_FILE_PATH", {"LOG_FILE_PATH": "/x"}, "/x"),
        ("LOG_FILE_MAX_SIZE", {"LOG_FILE_MAX_SIZE": "7"}, "7"),
        ("LOG_FILE_MAX_AGE", {}, "30"),
        ("LOG_FILE_MAX_COUNT", {}, "10"),
        ("CNI_MTU", {}, "1500"),
        ("CNI_MTU", {"CNI_MTU": "8951"}, "8951"),
        ("REQUIRE_MTU_FILE", {"REQUIRE_MTU_FILE": "true"}, "true"),
        ("DATASTORE_TYPE", {"DATASTORE_TYPE": "etcdv3"}, "etcdv3"),
        ("ETCD_ENDPOINTS", {"ETCD_ENDPOINTS": "https://a:2379,https://b:2379"}, "https://a:2379,https://b:2379"),
        ("ETCD_DISCOVERY_SRV", {"ETCD_DISCOVERY_SRV": "example.org"}, "example.org"),
        ("ETCD_KEY_FILE", {}, "/etc/cni/net.d/calico-tls/etcd-key"),
        ("ETCD_KEY_FILE", {"CNI_NET_DIR": "/x/net.d/"}, "/x/net.d/calico-tls/etcd-key"),
        ("ETCD_CERT_FILE", {}, ""),
        ("ETCD_CA_CERT_FILE", {}, "/etc/cni/net.d/calico-tls/etcd-ca"),
        ("CALICO_API_GROUP", {"CALICO_API_GROUP": "crd.projectcalico.org/v1"}, "crd.projectcalico.org/v1"),
        ("CALICO_API_GROUP", {"CALICO_API_GROUP": "ProjectCalico.org/v3"}, "projectcalico.org/v3"),
        ("KUBERNETES_NODE_NAME", {}, "host-1"),
        ("KUBERNETES_NODE_NAME", {"NODENAME": "b"}, "b"),
        ("KUBERNETES_NODE_NAME", {"KUBERNETES_NODE_NAME": "a", "NODENAME": "b"}, "a"),
        ("KUBERNETES_SERVICE_HOST", {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "10.96.0.1"),
        ("KUBERNETES_SERVICE_PORT", {"KUBERNETES_SERVICE_PORT": "443"}, "443"),
        ("KUBERNETES_SERVICE_PROTOCOL", {}, "https"),
        ("KUBECONFIG_FILENAME", {}, "calico-kubeconfig"),
        ("KUBECONFIG_FILEPATH", {"CNI_NET_DIR": "/x"}, "/x/calico-kubeconfig"),
        ("SERVICEACCOUNT_TOKEN", {}, SECRET),
        ("UNKNOWN", {"UNKNOWN": "x"}, "__UNKNOWN__"),
    ],
)
def test_every_variable(variable: str, environ: dict[str, str], value: str) -> None:
    assert one(variable, **environ) == value


def test_a_group_that_the_plugin_would_refuse_is_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"cannot use CALICO_API_GROUP='projectcalico\.org': expected"):
        one("CALICO_API_GROUP", CALICO_API_GROUP="projectcalico.org")


@given(st.text())
def test_a_value_stays_inside_its_string(value: str) -> None:
    if value:
        assert one("ETCD_ENDPOINTS", ETCD_ENDPOINTS=value) == value


UPSTREAM_CONFLIST = """
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "log_level": "__LOG_LEVEL__",
      "log_file_path": "__LOG_FILE_PATH__",
      "etcd_endpoints": "__ETCD_ENDPOINTS__",
      "etcd_key_file": "__ETCD_KEY_FILE__",
      "etcd_cert_file": "__ETCD_CERT_FILE__",
      "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
      "mtu": __CNI_MTU__,
      "ipam": {"type": "calico-ipam"},
      "policy": {"type": "k8s"},
      "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}
    },
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
  ]
}
"""
UPSTREAM_CONF = """
{
  "name": "any", "cniVersion": "0.3.0", "type": "calico", "nodename": "__KUBERNETES_NODE_NAME__",
  "datastore_type": "__DATASTORE_TYPE__", "ipam": {"type": "calico-ipam"},
  "policy": {
    "type": "k8s", "k8s_api_root": "https://__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__",
    "k8s_auth_token": "__SERVICEACCOUNT_TOKEN__"
  }
}
"""


def test_both_kinds_of_templates_in_use() -> None:
    plugins = render(UPSTREAM_CONFLIST, ETCD_ENDPOINTS="http://a:2379")["plugins"]
    assert [p["type"] for p in plugins] == ["calico", "portmap"] and plugins[0]["etcd_endpoints"] == "http://a:2379"
    single = render(UPSTREAM_CONF, KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443")
    assert single["policy"] == {"type": "k8s", "k8s_api_root": "https://10.96.0.1:443", "k8s_auth_token": SECRET}


@pytest.mark.parametrize(
    ("template", "cause"),
    [
        ('{"name": "n", "type": "c", "t": __SERVICEACCOUNT_TOKEN__}', "not JSON at line 1, column"),
        ('{"name": "n", "type": "c", "mtu": __CNI_MTU__', "not JSON at line 1"),
        ("", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"name": "n", "plugins": []}', "plugins is not a list of plugins"),
        ('{"name": "n", "plugins": {"type": "c"}}', "plugins is not a list of plugins"),
        ('{"name": "n", "plugins": [{"t": "__SERVICEACCOUNT_TOKEN__"}]}', "a plugin has no type"),
        ('{"type": "calico", "t": "__SERVICEACCOUNT_TOKEN__"}', "it has no name"),
        ('{"name": "n"}', "a plugin has no type"),
    ],
)
def test_a_broken_template_is_told_without_its_content(template: str, cause: str) -> None:
    with pytest.raises(InvalidConfig, match=cause) as caught:
        render(template)
    assert SECRET not in f"{caught.value}{caught.value.details}{caught.value.__cause__!r}"


@pytest.mark.parametrize(
    ("environ", "cause"),
    [
        ({"SLEEP": "maybe"}, "SLEEP: expected true or false"),
        ({"UPDATE_CNI_BINARIES": "2"}, "UPDATE_CNI_BINARIES: expected true or false"),
        ({"CNI_CONF_NAME": "../x"}, "CNI_CONF_NAME: expected a file name"),
        ({"CNI_OLD_CONF_NAME": "a/b"}, "CNI_OLD_CONF_NAME: expected a file name"),
        ({"CNI_NET_DIR": "net.d"}, "CNI_NET_DIR: expected an absolute path"),
        ({"CALICO_CNI_SERVICE_ACCOUNT": "a/b"}, "CALICO_CNI_SERVICE_ACCOUNT: expected a name"),
        ({"KUBERNETES_SERVICE_PROTOCOL": "tcp"}, "KUBERNETES_SERVICE_PROTOCOL: expected http or https"),
    ],
)
def test_wrong_settings_name_their_variable(environ: dict[str, str], cause: str) -> None:
    with pytest.raises(InvalidConfig, match=cause):
        settings(**environ)


def test_defaults_of_the_settings() -> None:
    found = settings()
    assert (found.conf_name, found.sleep, found.update_binaries) == ("10-calico.conflist", True, True)
    assert (found.tls_assets_dir, found.cni_service_account) == ("/calico-secrets", "calico-cni-plugin")
    assert settings(SKIP_CNI_BINARIES="portmap, bandwidth").skip_binaries == {"portmap", "bandwidth"}
    assert SECRET not in repr(settings(CNI_NETWORK_CONFIG=SECRET))


def test_a_template_file_wins_over_the_text() -> None:
    assert settings(CNI_NETWORK_CONFIG="x").template == "x" and settings(CNI_NETWORK_CONFIG="x").template_file == ""
    both = settings(CNI_NETWORK_CONFIG="x", CNI_NETWORK_CONFIG_FILE="/f")
    assert (both.template, both.template_file) == ("", "/f") and settings().template_file == "/t"


def test_server_urls() -> None:
    assert (
        server_url(settings(KUBERNETES_SERVICE_HOST="10.96.0.1", KUBERNETES_SERVICE_PORT="443"))
        == "https://10.96.0.1:443"
    )
    assert (
        server_url(settings(KUBERNETES_SERVICE_HOST="fd00::1", KUBERNETES_SERVICE_PORT="443"))
        == "https://[fd00::1]:443"
    )
    assert server_url(settings(KUBERNETES_SERVICE_HOST="a", KUBERNETES_SERVICE_PROTOCOL="http")) == "http://a"


def test_where_a_mount_comes_from() -> None:
    table = (
        "36 35 98:0 /opt/cni/bin /host/opt/cni/bin rw,noatime - ext4 /dev/root rw\n"
        "37 35 98:0 /a\\040b /host/x rw - ext4 /dev/root rw\nnonsense\n"
    )
    assert mount_source("/host/opt/cni/bin", table) == "/opt/cni/bin"
    assert mount_source("/host/x", table) == "/a b" and mount_source("/host/y", table) == ""
