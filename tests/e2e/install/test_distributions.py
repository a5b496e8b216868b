"""manifests/distributions.yaml: what the chart makes of each entry, and nothing else, and what it says of it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from build.distribution_pages import read_distributions
from tests.e2e.install.test_chart import CHART, helm, network_config
from tests.e2e.manifest_documents import Documents, documents

pytestmark = pytest.mark.helm

ROWS = [each for each in read_distributions() if not each.get("refused")]
by_title = pytest.mark.parametrize("row", ROWS, ids=lambda row: row["title"])


def rendered(provider: str, **installation: Any) -> Documents:
    """Without the definitions, which are the same and many."""
    values = {"includeCRDs": False, "installation": {"kubernetesProvider": provider, **installation}}
    done = helm("template", "calico", CHART, "--namespace", "kube-system", values=values)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


@pytest.fixture(scope="module")
def default() -> Documents:
    return rendered("")


def variables(row: dict[str, Any]) -> dict[str, str]:
    """What the agent is told there, where that is not what kubeadm's is told."""
    found: dict[str, str] = {}
    if row["encapsulation"] == "VXLAN":
        found |= {"CALICO_IPV4POOL_IPIP": "Never", "CALICO_IPV4POOL_VXLAN": "Always", "CLUSTER_TYPE": "k8s"}
    if row["range"] and not row["inKubeadmConfig"]:
        found["CALICO_IPV4POOL_CIDR"] = row["range"]
    if "detection" in row:
        found["IP_AUTODETECTION_METHOD"] = f"can-reach={row['detection']['canReach']}"
    return found


def as_default_is(found: Documents, row: dict[str, Any], default: Documents) -> Documents:
    """The documents with everything undone that the entry says; each of that is found where it belongs."""
    found = copy.deepcopy(found)
    spec, plain = (each["DaemonSet", "calico-node"]["spec"]["template"]["spec"] for each in (found, default))
    paths = {each["name"]: each.get("hostPath") for each in spec["volumes"]}
    assert (paths["cni-bin-dir"]["path"], paths["cni-net-dir"]["path"]) == (row["binDir"], row["confDir"])
    paths["cni-bin-dir"]["path"], paths["cni-net-dir"]["path"] = "/opt/cni/bin", "/etc/cni/net.d"
    [installer] = [each for each in spec["initContainers"] if each["name"] == "install-cni"]
    told = {each["name"]: each.get("value") for each in installer["env"]}
    assert told.get("CNI_BIN_DIR", "/opt/cni/bin") == row["binDir"]
    assert told.get("CNI_NET_DIR", "/etc/cni/net.d") == row["confDir"]
    installer["env"] = [each for each in installer["env"] if each["name"] not in ("CNI_BIN_DIR", "CNI_NET_DIR")]
    [agent], [plain_agent] = spec["containers"], plain["containers"]
    named = {each["name"]: each.get("value") for each in agent["env"]}
    wanted = variables(row)
    assert {name: named.get(name) for name in wanted} == wanted
    before = {each["name"]: each for each in plain_agent["env"]}
    agent["env"] = [
        before[each["name"]] if each["name"] in wanted else each
        for each in agent["env"]
        if each["name"] not in wanted or each["name"] in before
    ]
    if "avoid" in row:
        [term] = spec.pop("affinity")["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert term["matchExpressions"] == [
            {"key": row["avoid"]["label"], "operator": "NotIn", "values": [row["avoid"]["value"]]}
        ]
    config, plain_config = (each["ConfigMap", "calico-config"]["data"] for each in (found, default))
    if row["encapsulation"] == "VXLAN":
        assert config["calico_backend"] == "vxlan"
        config["calico_backend"] = plain_config["calico_backend"]
    if row.get("forwarding"):
        config["cni_network_config"] = plain_config["cni_network_config"]
    if row["provider"] == "OpenShift":
        allowed = found.pop(("ClusterRole", "calico-node-privileged"))["rules"]
        assert [rule["resourceNames"] for rule in allowed if rule["verbs"] == ["use"]] == [["privileged"]]
        found = {key: each for key, each in found.items() if not key[1].endswith(("-privileged", "-nonroot-v2"))}
    return found


@by_title
def test_it_differs_from_the_default_only_where_the_entry_says(row: dict[str, Any], default: Documents) -> None:
    assert as_default_is(rendered(row["provider"]), row, default) == default


def test_forwarding_where_a_load_balancer_needs_it() -> None:
    ours, *_ = network_config({"installation": {"kubernetesProvider": "K3s"}})
    assert ours["container_settings"] == {"allow_ip_forwarding": True}
    never = {"calicoNetwork": {"containerIPForwarding": "Disabled"}}
    ours, *_ = network_config({"installation": {"kubernetesProvider": "K3s", **never}})
    assert "container_settings" not in ours


@pytest.mark.parametrize(
    ("network", "backend", "ipip", "vxlan", "cidr"),
    [
        ({"ipPools": [{"cidr": "10.9.0.0/16"}]}, "vxlan", "Never", "Always", "10.9.0.0/16"),
        ({"ipPools": [{"cidr": "10.9.0.0/16", "encapsulation": "IPIP"}]}, "bird", "Always", "Never", "10.9.0.0/16"),
        ({"bgp": "Enabled"}, "bird", "Never", "Always", "10.42.0.0/16"),
        ({"bgp": "Disabled"}, "vxlan", "Never", "Always", "10.42.0.0/16"),
    ],
)
def test_what_is_given_counts_more(network: Any, backend: str, ipip: str, vxlan: str, cidr: str) -> None:
    found = rendered("K3s", calicoNetwork=network)
    [agent] = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]["containers"]
    told = {each["name"]: each.get("value") for each in agent["env"]}
    assert found["ConfigMap", "calico-config"]["data"]["calico_backend"] == backend
    assert (told["CALICO_IPV4POOL_IPIP"], told["CALICO_IPV4POOL_VXLAN"]) == (ipip, vxlan)
    assert told["CALICO_IPV4POOL_CIDR"] == cidr


def test_directories_that_are_given_count_more() -> None:
    found = rendered("MicroK8s", cni={"binDir": "/a/bin"})
    volumes = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]["volumes"]
    paths = {each["name"]: each["hostPath"]["path"] for each in volumes if "hostPath" in each}
    assert (paths["cni-bin-dir"], paths["cni-net-dir"]) == ("/a/bin", "/var/snap/microk8s/current/args/cni-network")
