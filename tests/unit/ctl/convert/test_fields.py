"""docs/from-operator.md has the table of fields as it is."""

import runpy

from cni_calico.ctl.convert.fields import BY_PATH, FIELDS, USED
from cni_calico.ctl.convert.values import USED as VALUES_OF
from tests.conftest import ROOT


def test_the_page_has_the_table() -> None:
    table = runpy.run_path(str(ROOT / "build" / "operator_page.py"))["render_table"]()
    assert table in (ROOT / "docs" / "from-operator.md").read_text()


def test_each_field_has_one_row_and_what_is_used_a_function() -> None:
    assert len(BY_PATH) == len(FIELDS)
    assert {field.path for field in FIELDS if field.becomes == USED} == set(VALUES_OF)


# the Installation of operator v1.45, as its API reference lists it
OPERATORS = (
    "variant registry imagePath imagePrefix imagePullSecrets imagePullPolicy kubernetesProvider cni.type "
    "cni.ipam.type cni.binDir cni.confDir cni.specVersion cni.installMode calicoNetwork.linuxDataplane "
    "calicoNetwork.windowsDataplane calicoNetwork.bpfNetworkBootstrap calicoNetwork.kubeProxyManagement "
    "calicoNetwork.bgp calicoNetwork.clusterRoutingMode calicoNetwork.ipPools calicoNetwork.mtu "
    "calicoNetwork.nodeAddressAutodetectionV4 calicoNetwork.nodeAddressAutodetectionV6 calicoNetwork.hostPorts "
    "calicoNetwork.multiInterfaceMode calicoNetwork.containerIPForwarding calicoNetwork.linuxPodInterfaceType "
    "calicoNetwork.sysctl calicoNetwork.linuxPolicySetupTimeoutSeconds logging.cni nodeMetricsPort "
    "typhaMetricsPort controlPlaneNodeSelector controlPlaneTolerations controlPlaneReplicas "
    "calicoNodeDaemonSet calicoKubeControllersDeployment typhaDeployment csiNodeDriverDaemonSet "
    "calicoNodeWindowsDaemonSet calicoWindowsUpgradeDaemonSet windowsNodes serviceCIDRs componentResources "
    "typhaAffinity typhaPodDisruptionBudget nodeUpdateStrategy flexVolumePath kubeletVolumePluginPath "
    "calicoRunHostPath calicoLibHostPath certificateManagement tlsCipherSuites azure proxy networkPolicy "
    "fipsMode nonPrivileged "
)


def test_every_field_of_the_operators_is_in_a_row_and_no_other_is() -> None:
    assert sorted(BY_PATH) == sorted(OPERATORS.split())
