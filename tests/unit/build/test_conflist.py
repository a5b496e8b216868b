"""The template of the network configuration: JSON, and what the plugin expects, once its variables are replaced."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cni_calico.cni.netconf import parse_netconf

TEMPLATE = Path(__file__).resolve().parents[3] / "conflist" / "10-calico.conflist.template"
# the install container's variables; those of the etcd files are empty where no TLS assets were given
VALUES = {
    "DATASTORE_TYPE": "kubernetes",
    "CALICO_API_GROUP": "projectcalico.org/v3",
    "KUBERNETES_NODE_NAME": "node-1",
    "CNI_MTU": "1440",
    "REQUIRE_MTU_FILE": "false",
    "ETCD_ENDPOINTS": "",
    "ETCD_DISCOVERY_SRV": "",
    "ETCD_KEY_FILE": "",
    "ETCD_CERT_FILE": "",
    "ETCD_CA_CERT_FILE": "",
    "KUBECONFIG_FILEPATH": "/etc/cni/net.d/calico-kubeconfig",
    "LOG_LEVEL": "warning",
    "LOG_FILE_PATH": "/var/log/calico/cni/cni.log",
    "LOG_FILE_MAX_SIZE": "50",
    "LOG_FILE_MAX_AGE": "7",
    "LOG_FILE_MAX_COUNT": "3",
}
ETCD = {
    "DATASTORE_TYPE": "etcdv3",
    "ETCD_ENDPOINTS": "https://10.0.0.1:2379,https://10.0.0.2:2379",
    "ETCD_KEY_FILE": "/etc/cni/net.d/calico-tls/etcd-key",
    "ETCD_CERT_FILE": "/etc/cni/net.d/calico-tls/etcd-cert",
    "ETCD_CA_CERT_FILE": "/etc/cni/net.d/calico-tls/etcd-ca",
}


def render(values: dict[str, str]) -> dict[str, object]:
    """The configuration of our plugin as libcni hands it over: with the list's name and version."""
    text = re.sub(r"__([A-Z_]+)__", lambda found: values[found[1]], TEMPLATE.read_text())
    document = json.loads(text)
    plugin = document["plugins"][0]
    assert isinstance(plugin, dict)
    return {**plugin, "name": document["name"], "cniVersion": document["cniVersion"]}


def test_every_variable_is_used_once() -> None:
    assert sorted(re.findall(r"__([A-Z_]+)__", TEMPLATE.read_text())) == sorted(VALUES)


def test_kubernetes() -> None:
    conf = parse_netconf(render(VALUES), {})
    assert (conf.type, conf.name, conf.cni_version) == ("calico", "k8s-pod-network", "1.0.0")
    assert (conf.datastore.type, conf.datastore.kubernetes.kubeconfig) == (
        "kubernetes",
        "/etc/cni/net.d/calico-kubeconfig",
    )
    assert (conf.nodename, conf.mtu, conf.policy_type, conf.ipam.is_calico) == ("node-1", 1440, "k8s", True)
    log = conf.log
    assert (log.level, log.file_path) == ("warning", "/var/log/calico/cni/cni.log")
    assert (log.file_max_size_mb, log.file_max_age_days, log.file_max_count) == (50, 7, 3)


def test_etcd() -> None:
    conf = parse_netconf(render({**VALUES, **ETCD}), {})
    assert conf.datastore.type == "etcdv3"
    assert conf.datastore.etcd_endpoints == ("https://10.0.0.1:2379", "https://10.0.0.2:2379")
    assert (conf.datastore.etcd_key_file, conf.datastore.etcd_ca_cert_file) == (
        "/etc/cni/net.d/calico-tls/etcd-key",
        "/etc/cni/net.d/calico-tls/etcd-ca",
    )


@pytest.mark.parametrize("plugin", ["portmap", "bandwidth"])
def test_plugins_that_follow(plugin: str) -> None:
    text = re.sub(r"__([A-Z_]+)__", lambda found: VALUES[found[1]], TEMPLATE.read_text())
    assert plugin in [p["type"] for p in json.loads(text)["plugins"][1:]]
