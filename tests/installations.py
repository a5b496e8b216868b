"""Fields of an operator's Installation, each with the values of the chart that it becomes."""

from __future__ import annotations

from typing import Any

from cni_calico.ctl.convert.values import nested

# a value for each field that is used, and what the chart is told for it
EXAMPLES: dict[str, tuple[Any, Any]] = {
    "imagePullSecrets": ([{"name": "s"}], {"imagePullSecrets": [{"name": "s"}]}),
    "imagePullPolicy": ("Always", {"imagePullPolicy": "Always"}),
    "kubernetesProvider": ("OpenShift", nested("installation.kubernetesProvider", "OpenShift")),
    "cni.type": ("Calico", nested("installation.cni.type", "Calico")),
    "cni.ipam.type": ("HostLocal", nested("installation.cni.ipam.type", "HostLocal")),
    "cni.binDir": ("/b", nested("installation.cni.binDir", "/b")),
    "cni.confDir": ("/c", nested("installation.cni.confDir", "/c")),
    "cni.specVersion": ("0.4.0", nested("installation.cni.specVersion", "0.4.0")),
    "cni.installMode": ("CalicoOnly", nested("installation.cni.installMode", "CalicoOnly")),
    "calicoNetwork.bgp": ("Enabled", nested("installation.calicoNetwork.bgp", "Enabled")),
    "calicoNetwork.ipPools": (
        [
            {"name": "p", "cidr": "10.0.0.0/16", "encapsulation": "VXLAN", "allowedUses": ["Workload"]},
            {"cidr": "10.1.0.0/16", "encapsulation": "IPIP"},
            {"cidr": "fd00::/48"},
        ],
        nested(
            "installation.calicoNetwork.ipPools",
            [{"cidr": "10.0.0.0/16", "encapsulation": "VXLAN"}, {"cidr": "fd00::/48"}],
        ),
    ),
    "calicoNetwork.mtu": (1400, nested("installation.calicoNetwork.mtu", 1400)),
    "calicoNetwork.nodeAddressAutodetectionV4": (
        {"canReach": "8.8.8.8"},
        nested("installation.calicoNetwork.nodeAddressAutodetectionV4", {"canReach": "8.8.8.8"}),
    ),
    "calicoNetwork.nodeAddressAutodetectionV6": (
        {"cidrs": ["fd00::/8", "fc00::/8"]},
        {"node": {"env": [{"name": "IP6_AUTODETECTION_METHOD", "value": "cidr=fd00::/8,fc00::/8"}]}},
    ),
    "calicoNetwork.hostPorts": ("Disabled", nested("installation.calicoNetwork.hostPorts", "Disabled")),
    "calicoNetwork.containerIPForwarding": (
        "Enabled",
        nested("installation.calicoNetwork.containerIPForwarding", "Enabled"),
    ),
    "calicoNetwork.sysctl": (
        [{"key": "net.ipv4.tcp_keepalive_time", "value": "40"}],
        nested("installation.calicoNetwork.sysctl", [{"key": "net.ipv4.tcp_keepalive_time", "value": "40"}]),
    ),
    "calicoNetwork.linuxPolicySetupTimeoutSeconds": (
        5,
        nested("installation.calicoNetwork.linuxPolicySetupTimeoutSeconds", 5),
    ),
    "logging.cni": (
        {"logSeverity": "Debug", "logFileMaxSize": "1Gi", "logFileMaxAgeDays": 3},
        nested(
            "installation.logging.cni", {"logSeverity": "Debug", "logFileMaxSize": "1024Mi", "logFileMaxAgeDays": 3}
        ),
    ),
    "nodeMetricsPort": (
        9091,
        {
            "node": {
                "env": [
                    {"name": "FELIX_PROMETHEUSMETRICSENABLED", "value": "true"},
                    {"name": "FELIX_PROMETHEUSMETRICSPORT", "value": "9091"},
                ]
            }
        },
    ),
    "controlPlaneNodeSelector": (
        {"role": "infra"},
        {
            part: {"nodeSelector": {"kubernetes.io/os": "linux", "role": "infra"}}
            for part in ("kubeControllers", "typha")
        },
    ),
    "controlPlaneTolerations": (
        [{"key": "x", "operator": "Exists"}],
        {
            "kubeControllers": {
                "tolerations": [
                    {"key": "CriticalAddonsOnly", "operator": "Exists"},
                    {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
                    {"key": "node-role.kubernetes.io/master", "effect": "NoSchedule"},
                    {"key": "x", "operator": "Exists"},
                ]
            }
        },
    ),
    "calicoNodeDaemonSet": (
        {
            "spec": {
                "template": {
                    "metadata": {"labels": {"a": "b"}, "annotations": {"c": "d"}},
                    "spec": {
                        "affinity": {"podAffinity": {}},
                        "containers": [{"name": "calico-node", "resources": {"limits": {"memory": "1Gi"}}}],
                        "initContainers": [{"name": "install-cni", "resources": {"limits": {"cpu": "1"}}}],
                    },
                }
            }
        },
        {
            "node": {
                "podLabels": {"a": "b"},
                "podAnnotations": {"c": "d"},
                "affinity": {"podAffinity": {}},
                "resources": {"limits": {"memory": "1Gi"}},
            },
            "cni": {"resources": {"limits": {"cpu": "1"}}},
        },
    ),
    "calicoKubeControllersDeployment": (
        {"spec": {"template": {"spec": {"tolerations": [{"operator": "Exists"}]}}}},
        {"kubeControllers": {"tolerations": [{"operator": "Exists"}]}},
    ),
    "typhaDeployment": (
        {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}},
        {"typha": {"nodeSelector": {"a": "b"}}},
    ),
    "componentResources": (
        [
            {"componentName": "Node", "resourceRequirements": {"limits": {"cpu": "1"}}},
            {"componentName": "Typha", "resourceRequirements": {}},
        ],
        {"node": {"resources": {"limits": {"cpu": "1"}}}, "typha": {"resources": {}}},
    ),
    "typhaAffinity": ({"nodeAffinity": {}}, nested("typha.affinity", {"nodeAffinity": {}})),
    "nodeUpdateStrategy": ({"type": "OnDelete"}, nested("node.updateStrategy", {"type": "OnDelete"})),
    "proxy": (
        {"httpProxy": "http://p", "noProxy": "a,b"},
        {
            part: {"env": [{"name": "HTTP_PROXY", "value": "http://p"}, {"name": "NO_PROXY", "value": "a,b"}]}
            for part in ("node", "kubeControllers")
        },
    ),
}
