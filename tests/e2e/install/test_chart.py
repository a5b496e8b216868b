"""The Helm chart against the manifests: by default the same documents, and what values change in them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cni_calico import __version__
from cni_calico.ctl.convert.installation import convert_installation
from cni_calico.ctl.convert.values import merged, nested
from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.manifest_documents import MANIFESTS, Documents, documents
from tests.installations import EXAMPLES

pytestmark = pytest.mark.helm

CHART = MANIFESTS / "chart"
HELM = LAB_CACHE / "bin" / "helm"


def helm(*words: str | Path, values: Any = None) -> subprocess.CompletedProcess[str]:
    given = ["--values", "-"] if values is not None else []
    return subprocess.run([HELM, *words, *given], input=json.dumps(values), capture_output=True, text=True, timeout=120)


def template(values: Any = None, *served: str) -> Documents:
    """``served``: versions of API groups that the cluster has, beside Kubernetes' own."""
    has = [word for each in served for word in ("--api-versions", each)]
    done = helm("template", "calico", CHART, "--namespace", "kube-system", *has, values=values)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def refused(values: Any) -> str:
    done = helm("template", "calico", CHART, values=values)
    assert done.returncode != 0, done.stdout[:300]
    return done.stderr


def agent(found: Documents) -> tuple[Any, dict[str, str]]:
    """calico-node's container, and its plain environment variables."""
    [container] = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]["containers"]
    names = [variable["name"] for variable in container["env"]]
    assert len(names) == len(set(names))
    return container, {each["name"]: each["value"] for each in container["env"] if "value" in each}


NATIVE, CUSTOM = "projectcalico.org/v3", "crd.projectcalico.org/v1"


@pytest.mark.parametrize(
    ("values", "manifest"),
    [({}, "calico.yaml"), ({"datastore": "etcd"}, "calico-etcd.yaml"), ({"apiGroup": NATIVE}, "calico-v3.yaml")],
)
def test_by_default_it_is_the_manifest(values: Any, manifest: str) -> None:
    found = template(values)
    for (kind, _), document in found.items():
        if kind == "CustomResourceDefinition":  # and with it what is stored
            assert document["metadata"].pop("annotations") == {"helm.sh/resource-policy": "keep"}
    assert found == documents((MANIFESTS / manifest).read_text())


@pytest.mark.parametrize(
    "values",
    [
        None,
        {"datastore": "etcd"},
        {"podMonitor": {"enabled": True}, "typha": {"enabled": True}},
        {"kubernetesServiceEndpoint": {"host": "api"}},
    ],
)
def test_lint(values: Any) -> None:
    done = helm("lint", "--strict", CHART, values=values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pod_monitors_are_off_and_can_be_on() -> None:
    assert not [kind for kind, _ in template() if kind == "PodMonitor"]
    found = template({"podMonitor": {"enabled": True}})
    wanted = documents((MANIFESTS / "monitoring" / "podmonitor.yaml").read_text())
    assert {key: found[key] for key in found if key[0] == "PodMonitor"} == wanted


def test_relays_are_off_and_can_be_on() -> None:
    without, found = template(), template({"typha": {"enabled": True}})
    wanted = documents((MANIFESTS / "calico-typha.yaml").read_text())
    assert {key: found[key] for key in found if key not in without} == wanted
    assert without["ConfigMap", "calico-config"]["data"]["typha_service_name"] == "none"
    assert found["ConfigMap", "calico-config"]["data"]["typha_service_name"] == "calico-typha"
    many = template({"typha": {"enabled": True, "replicas": 5}})["Deployment", "calico-typha"]
    assert many["spec"]["replicas"] == 5


def test_the_webhook_is_off_and_can_be_on_where_it_has_an_effect() -> None:
    values = {"webhooks": {"enabled": True}}
    without, found = template({"apiGroup": NATIVE}), template({**values, "apiGroup": NATIVE})
    wanted = documents((MANIFESTS / "calico-webhooks.yaml").read_text())
    assert {key: found[key] for key in found if key not in without} == wanted
    for other in ({"apiGroup": CUSTOM}, {"datastore": "etcd"}):
        refused = helm("template", "x", CHART, values={**values, **other})
        assert refused.returncode != 0 and "webhooks.enabled: the webhook is for records in" in refused.stderr


def test_the_group_is_the_clusters() -> None:
    values = {"typha": {"enabled": True}}
    native, custom = (template({**values, "apiGroup": group}) for group in (NATIVE, CUSTOM))
    assert template(values, NATIVE) == native
    for served in ((), (CUSTOM,), (CUSTOM, NATIVE)):
        assert template(values, *served) == custom
    relays = documents((MANIFESTS / "calico-typha-v3.yaml").read_text())
    assert {key: native[key] for key in relays} == relays
    assert ("CustomResourceDefinition", "ippools.projectcalico.org") not in custom
    assert ("CustomResourceDefinition", "ippools.crd.projectcalico.org") not in native


@pytest.mark.parametrize(
    ("served", "version"), [((), ""), (("v1beta1", "v1alpha1"), "v1beta1"), (("v1beta1", "v1"), "v1")]
)
def test_admission_policies_are_in_the_version_that_is_served(served: tuple[str, ...], version: str) -> None:
    group = "admissionregistration.k8s.io"
    found = template({"apiGroup": NATIVE}, *(f"{group}/{each}/MutatingAdmissionPolicy" for each in served))
    policies = {key: each for key, each in found.items() if key[0].startswith("MutatingAdmissionPolicy")}
    wanted = documents((MANIFESTS / "admission-v3.yaml").read_text()) if version else {}
    assert policies == {key: {**each, "apiVersion": f"{group}/{version}"} for key, each in wanted.items()}
    assert not [kind for kind, _ in template() if "Admission" in kind]


@pytest.mark.parametrize(("given", "served"), [(NATIVE, CUSTOM), (CUSTOM, NATIVE)])
def test_the_other_group_than_the_clusters_is_refused(given: str, served: str) -> None:
    done = helm("template", "calico", CHART, "--api-versions", served, values={"apiGroup": given})
    assert done.returncode != 0 and f"apiGroup: {given}: this cluster's records are in the other group" in done.stderr
    assert "no records are in Kubernetes" in refused({"datastore": "etcd", "apiGroup": given})


def test_without_the_definitions() -> None:
    without = template({"includeCRDs": False})
    assert {key: document for key, document in template().items() if key[0] != "CustomResourceDefinition"} == without


def test_images_come_from_where_they_are_mirrored() -> None:
    parts = {name: {"registry": "mirror.example/calico", "image": name.lower()} for name in ("node", "cni")}
    found = template({**parts, "version": "v9", "imagePullSecrets": [{"name": "pull"}], "imagePullPolicy": "Always"})
    spec = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]
    containers = [*spec["initContainers"], *spec["containers"]]
    assert {each["name"]: each["image"] for each in containers} == {
        "upgrade-ipam": "mirror.example/calico/cni:v9",
        "install-cni": "mirror.example/calico/cni:v9",
        "calico-node": "mirror.example/calico/node:v9",
    }
    assert {each["imagePullPolicy"] for each in containers} == {"Always"}
    assert spec["imagePullSecrets"] == [{"name": "pull"}]


def test_images_by_digest() -> None:
    """Beside the tag, which an archive that was imported has, too."""
    one, other = f"sha256:{'1' * 64}", f"sha256:{'2' * 64}"
    found = template({"image": {"digest": one}, "kubeControllers": {"image": "kube-controllers", "digest": other}})
    images = {
        name: found[kind, name]["spec"]["template"]["spec"]["containers"][0]["image"]
        for kind, name in (("DaemonSet", "calico-node"), ("Deployment", "calico-kube-controllers"))
    }
    assert images == {
        "calico-node": f"localhost/cni-calico/node:v{__version__}@{one}",
        "calico-kube-controllers": f"localhost/cni-calico/kube-controllers:v{__version__}@{other}",
    }


def test_a_digest_can_be_left_out_again() -> None:
    """As for images that were imported from an archive, where the release's chart names one."""
    values = {"image": {"digest": f"sha256:{'1' * 64}"}}
    done = helm("template", "calico", CHART, "--set", "image.digest=", values=values)
    assert done.returncode == 0 and "@sha256" not in done.stdout


def installer(found: Documents) -> dict[str, Any]:
    """The plain variables of install-cni, and the paths of the volumes by their names."""
    spec = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]
    [container] = [each for each in spec["initContainers"] if each["name"] == "install-cni"]
    paths = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    return {**{each["name"]: each.get("value") for each in container["env"]}, **paths}


@pytest.mark.parametrize(
    "values",
    [
        {"cni": {"binDir": "/a/bin", "confDir": "/a/net.d"}},
        {"installation": {"cni": {"binDir": "/a/bin", "confDir": "/a/net.d"}}},
        {"cni": {"binDir": "/a/bin"}, "installation": {"cni": {"binDir": "/a/bin", "confDir": "/a/net.d"}}},
        {"datastore": "etcd", "cni": {"binDir": "/a/bin", "confDir": "/a/net.d"}},
    ],
)
def test_directories_of_the_nodes(values: Any) -> None:
    found = installer(template(values))
    assert (found["CNI_BIN_DIR"], found["cni-bin-dir"]) == ("/a/bin", "/a/bin")
    assert (found["CNI_NET_DIR"], found["cni-net-dir"]) == ("/a/net.d", "/a/net.d")


def test_only_our_own_plugins() -> None:
    """Without those that build/image/plugins.sh builds."""
    skipped = installer(template({"installation": {"cni": {"installMode": "CalicoOnly"}}}))["SKIP_CNI_BINARIES"]
    modules = (ROOT / "build" / "image" / "plugins" / "go.mod").read_text()
    built = re.findall(r"/plugins/plugins/\w+/([\w-]+)", modules)
    assert built and sorted(skipped.split(",")) == sorted(built)


def network_config(values: Any) -> list[dict[str, Any]]:
    text = template(values)["ConfigMap", "calico-config"]["data"]["cni_network_config"]
    plugins: list[dict[str, Any]] = json.loads(text.replace("__CNI_MTU__", "0"))["plugins"]
    return plugins


@pytest.mark.parametrize("datastore", ["kubernetes", "etcd"])
def test_host_ports_and_forwarding(datastore: str) -> None:
    both = {"hostPorts": "Disabled", "containerIPForwarding": "Enabled"}
    ours, *chained = network_config({"datastore": datastore, "installation": {"calicoNetwork": both}})
    assert ours["container_settings"] == {"allow_ip_forwarding": True}
    assert [each["type"] for each in chained] == ["bandwidth"]
    ours, *chained = network_config({"datastore": datastore})
    assert "container_settings" not in ours
    assert [each["type"] for each in chained] == ["portmap", "bandwidth"]


@pytest.mark.parametrize(("network", "prefix"), [("AmazonVPC", "eni"), ("AzureVNET", "azv")])
def test_policies_beside_anothers_network(network: str, prefix: str) -> None:
    found = template({"installation": {"cni": {"type": network}}})
    spec = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]
    assert "initContainers" not in spec
    volumes = {each["name"] for each in spec["volumes"]}
    container, variables = agent(found)
    assert not {"cni-bin-dir", "cni-net-dir", "host-local-net-dir"} & volumes
    assert {each["name"] for each in container["volumeMounts"]} == volumes
    wanted = {"CALICO_MANAGE_CNI": "false", "NO_DEFAULT_POOLS": "true", "FELIX_INTERFACEPREFIX": prefix}
    assert {name: variables.get(name) for name in wanted} == wanted
    assert "CALICO_IPV4POOL_CIDR" not in variables
    assert found["ConfigMap", "calico-config"]["data"]["calico_backend"] == "none"


def test_where_pods_may_run_and_what_they_may_use() -> None:
    limits = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}
    part = {
        "resources": limits,
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"role": "infra"},
        "priorityClassName": "high",
        "podAnnotations": {"note": "a: b"},
        "podLabels": {"team": "net"},
    }
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    part["affinity"] = affinity
    init = {"requests": {"cpu": "10m"}, "limits": {"cpu": "1"}}
    found = template(
        {"node": part, "cni": {"resources": init}, "kubeControllers": part, "typha": {**part, "enabled": True}}
    )
    workloads = (
        ("DaemonSet", "calico-node"),
        ("Deployment", "calico-kube-controllers"),
        ("Deployment", "calico-typha"),
    )
    for kind, name in workloads:
        pod = found[kind, name]["spec"]["template"]
        assert pod["metadata"]["annotations"] == {"note": "a: b"}
        assert pod["metadata"]["labels"] == {"k8s-app": name, "team": "net"}
        spec = pod["spec"]
        assert spec["tolerations"] == [{"operator": "Exists"}] and spec["priorityClassName"] == "high"
        assert spec["nodeSelector"]["role"] == "infra"
        assert spec["affinity"] == affinity
        assert spec["containers"][0]["resources"] == limits
        assert all(each["resources"] == init for each in spec.get("initContainers", ()))


@pytest.mark.parametrize(
    ("values", "backend", "ipip", "vxlan"),
    [
        ({}, "bird", "Always", "Never"),
        ({"vxlan": True}, "vxlan", "Never", "Always"),
        ({"network": "none"}, "none", "Always", "Never"),
        ({"installation": {"calicoNetwork": {"bgp": "Disabled"}}}, "vxlan", "Never", "Always"),
        (
            {"installation": {"calicoNetwork": {"ipPools": [{"cidr": "10.1.0.0/16", "encapsulation": "None"}]}}},
            *("bird", "Never", "Never"),
        ),
        (
            {"installation": {"calicoNetwork": {"ipPools": [{"cidr": "10.1.0.0/16", "encapsulation": "VXLAN"}]}}},
            *("bird", "Never", "Always"),
        ),
        (
            {
                "installation": {
                    "calicoNetwork": {"ipPools": [{"cidr": "10.1.0.0/16", "encapsulation": "IPIPCrossSubnet"}]}
                }
            },
            *("bird", "CrossSubnet", "Never"),
        ),
    ],
)
def test_networking_between_nodes(values: Any, backend: str, ipip: str, vxlan: str) -> None:
    found = template(values)
    assert found["ConfigMap", "calico-config"]["data"]["calico_backend"] == backend
    _, variables = agent(found)
    assert (variables["CALICO_IPV4POOL_IPIP"], variables["CALICO_IPV4POOL_VXLAN"]) == (ipip, vxlan)
    assert variables["CLUSTER_TYPE"] == ("k8s,bgp" if backend == "bird" else "k8s")


def test_pools_of_both_families_and_the_nodes_address() -> None:
    pools = [
        {"cidr": "10.48.0.0/16", "blockSize": 27, "natOutgoing": "Disabled", "nodeSelector": "has(a)"},
        {"cidr": "fd00:48::/48", "encapsulation": "VXLANCrossSubnet", "natOutgoing": "Enabled"},
    ]
    network = {"ipPools": pools, "mtu": 1400, "nodeAddressAutodetectionV4": {"cidrs": ["10.0.0.0/8", "192.168.0.0/16"]}}
    found = template({"installation": {"calicoNetwork": network}, "node": {"env": [{"name": "FELIX_X", "value": "1"}]}})
    container, variables = agent(found)
    wanted = {
        "CALICO_IPV4POOL_CIDR": "10.48.0.0/16",
        "CALICO_IPV4POOL_BLOCK_SIZE": "27",
        "CALICO_IPV4POOL_NAT_OUTGOING": "false",
        "CALICO_IPV4POOL_NODE_SELECTOR": "has(a)",
        "CALICO_IPV6POOL_CIDR": "fd00:48::/48",
        "CALICO_IPV6POOL_VXLAN": "CrossSubnet",
        "CALICO_IPV6POOL_NAT_OUTGOING": "true",
        "IP6": "autodetect",
        "FELIX_IPV6SUPPORT": "true",
        "FELIX_X": "1",
        "IP_AUTODETECTION_METHOD": "cidr=10.0.0.0/8,192.168.0.0/16",
    }
    assert {name: variables.get(name) for name in wanted} == wanted
    assert found["ConfigMap", "calico-config"]["data"]["veth_mtu"] == "1400"
    told = {each["name"] for each in container["env"] if "veth_mtu" in str(each)}
    assert told == {"FELIX_IPINIPMTU", "FELIX_VXLANMTU", "FELIX_WIREGUARDMTU"}


@pytest.mark.parametrize(
    ("how", "method"),
    [
        ({"firstFound": True}, "first-found"),
        ({"kubernetes": "NodeInternalIP"}, "kubernetes-internal-ip"),
        ({"interface": "eth.*"}, "interface=eth.*"),
        ({"skipInterface": "docker.*"}, "skip-interface=docker.*"),
        ({"canReach": "10.0.0.1"}, "can-reach=10.0.0.1"),
    ],
)
def test_ways_to_find_the_nodes_address(how: Any, method: str) -> None:
    _, variables = agent(template({"installation": {"calicoNetwork": {"nodeAddressAutodetectionV4": how}}}))
    assert variables["IP_AUTODETECTION_METHOD"] == method


def test_etcd_with_tls() -> None:
    tls = {"ca": "Y2E=", "crt": "Y3J0", "key": "a2V5"}
    found = template({"datastore": "etcd", "etcd": {"endpoints": "https://a:2379,https://b:2379", "tls": tls}})
    assert found["Secret", "calico-etcd-secrets"]["data"] == {
        "etcd-ca": "Y2E=",
        "etcd-cert": "Y3J0",
        "etcd-key": "a2V5",
    }
    data = found["ConfigMap", "calico-config"]["data"]
    assert (data["etcd_endpoints"], data["etcd_ca"]) == ("https://a:2379,https://b:2379", "/calico-secrets/etcd-ca")
    assert (data["etcd_cert"], data["etcd_key"]) == ("/calico-secrets/etcd-cert", "/calico-secrets/etcd-key")


def test_the_api_server_before_there_is_a_service_network() -> None:
    found = template({"kubernetesServiceEndpoint": {"host": "10.0.0.1", "port": 6444}})
    data = found["ConfigMap", "kubernetes-services-endpoint"]["data"]
    assert data == {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6444"}
    read = found["DaemonSet", "calico-node"]["spec"]["template"]["spec"]["containers"][0]["envFrom"]
    assert read[0]["configMapRef"]["name"] == "kubernetes-services-endpoint"


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"apiServer": {"enabled": True}}, "calicoctl reads and writes the resources"),
        ({"tigeraOperator": {"version": "v1"}}, "docs/from-operator.md"),
        ({"goldmane": {"enabled": False}}, "agents export flows"),
        ({"bpf": True}, "bpf"),
        ({"datastore": "etcd", "typha": {"enabled": True}}, "grpc-proxy"),
        ({"mtuu": 1}, "mtuu"),
        ({"node": {"imaeg": "x"}}, "imaeg"),
        ({"datastore": "etcdv3"}, "datastore"),
        ({"installation": {"kubernetesProvider": "OKD"}}, "kubernetesProvider"),
        ({"installation": {"kubernetesProvider": "GKE"}}, "cannot be replaced"),
        ({"installation": {"cni": {"type": "GKE"}}}, "cannot be replaced"),
        ({"installation": {"cni": {"type": "Flannel"}}}, "type"),
        ({"installation": {"cni": {"binDir": "opt/cni/bin"}}}, "binDir"),
        ({"installation": {"cni": {"confDir": "/etc/../cni"}}}, "confDir"),
        ({"cni": {"confDir": "/etc/cni/.."}}, "confDir"),
        ({"cni": {"binDir": "/a b"}}, "binDir"),
        ({"cni": {"binDir": "/a"}, "installation": {"cni": {"binDir": "/b"}}}, "two spellings of one value"),
        ({"cni": {"confDir": "/a"}, "installation": {"cni": {"confDir": "/b"}}}, "two spellings of one value"),
        ({"mtu": 1400, "installation": {"calicoNetwork": {"mtu": 1450}}}, "two spellings of one value"),
        ({"installation": {"cni": {"installMode": "None"}}}, "installMode"),
        ({"installation": {"calicoNetwork": {"hostPorts": True}}}, "hostPorts"),
        ({"image": {"digest": "sha256:1"}}, "digest"),
        ({"image": {"digest": f"sha256:{'0' * 64}"}, "kubeControllers": {"image": "other"}}, "kubeControllers.digest"),
        ({"datastore": "etcd", "installation": {"cni": {"type": "AmazonVPC"}}}, "datastore kubernetes"),
        ({"installation": {"kubernetesProvider": "AKS", "cni": {"type": "AmazonVPC"}}}, "use AzureVNET or Calico"),
        ({"installation": {"kubernetesProvider": "K3s", "cni": {"type": "AmazonVPC"}}}, "use Calico"),
        (
            {"installation": {"cni": {"type": "AmazonVPC"}, "calicoNetwork": {"ipPools": [{"cidr": "10.1.0.0/16"}]}}},
            "there are no pools",
        ),
        ({"installation": {"calicoNetwork": {"ipPools": [{"cidr": "10.0.0.0"}]}}}, "cidr"),
        (
            {"installation": {"calicoNetwork": {"ipPools": [{"cidr": "10.0.0.0/8"}, {"cidr": "11.0.0.0/8"}]}}},
            "at most one IPv4 pool",
        ),
    ],
)
def test_what_it_does_not_know_is_refused(values: Any, says: str) -> None:
    assert says in refused(values)


def conflist_of(found: Documents) -> Any:
    text = found["ConfigMap", "calico-config"]["data"]["cni_network_config"]
    return json.loads(re.sub("__[A-Z_]+__", "0", text))


def test_the_plugins_configuration_follows_the_values() -> None:
    installation = {
        "cni": {"specVersion": "0.3.1"},
        "logging": {"cni": {"logSeverity": "Debug", "logFileMaxSize": "200Mi", "logFileMaxAgeDays": 3}},
        "calicoNetwork": {
            "linuxPolicySetupTimeoutSeconds": 5,
            "sysctl": [{"key": "net.ipv4.tcp_keepalive_time", "value": "40"}],
        },
    }
    before, after = conflist_of(template()), conflist_of(template({"installation": installation}))
    assert after["cniVersion"] == "0.3.1"
    assert after["plugins"][0] == {
        **before["plugins"][0],
        **{"log_level": "debug", "log_file_max_size": 200, "log_file_max_age": 3, "policy_setup_timeout_seconds": 5},
    }
    tuning = {"type": "tuning", "sysctl": {"net.ipv4.tcp_keepalive_time": "40"}}
    assert [each for each in after["plugins"][1:] if each not in before["plugins"]] == [tuning]


@pytest.mark.parametrize(
    ("pools", "ipam"),
    [
        ([], {"type": "host-local", "subnet": "usePodCidr"}),
        (
            [{"cidr": "fd00::/48"}],
            {"type": "host-local", "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]},
        ),
    ],
)
def test_addresses_of_the_nodes_ranges(pools: Any, ipam: Any) -> None:
    installation = {"cni": {"ipam": {"type": "HostLocal"}}, "calicoNetwork": {"ipPools": pools}}
    found = template({"installation": installation})
    assert conflist_of(found)["plugins"][0]["ipam"] == ipam
    assert agent(found)[1]["USE_POD_CIDR"] == "true"


def test_an_installation_that_was_converted_is_accepted() -> None:
    spec: Any = {}
    for path, (given, _) in EXAMPLES.items():
        spec = merged(spec, nested(path, given))
    spec["cni"]["ipam"]["type"] = "Calico"  # the pool among the examples has VXLAN
    found = template(convert_installation(spec, "i.yaml").values)
    assert found["DaemonSet", "calico-node"]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    [controllers] = found["Deployment", "calico-kube-controllers"]["spec"]["template"]["spec"]["containers"]
    assert {"name": "HTTP_PROXY", "value": "http://p"} in controllers["env"]
    assert agent(found)[1]["FELIX_PROMETHEUSMETRICSPORT"] == "9091"
