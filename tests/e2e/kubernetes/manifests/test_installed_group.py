"""The installer writes the group of the cluster's records into the plugin's configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import DatastoreDenied
from cni_calico.install.settings import Settings, parse_settings
from cni_calico.install.steps import find_api_group
from cni_calico.kernel.files import Files
from cni_calico.model.access import API_GROUP, NATIVE_GROUP
from tests.conftest import ROOT
from tests.e2e.kubernetes.cluster import Cluster, native_cluster

pytestmark = pytest.mark.kubernetes

TEMPLATE = (ROOT / "conflist" / "10-calico.conflist.template").read_text()


def in_a_pod(kube: Cluster, root: Path, token: str = "node-token", **environ: str) -> Settings:
    account = root / SERVICE_ACCOUNT_DIR.lstrip("/")
    account.mkdir(parents=True)
    (account / "token").write_text(token)
    shutil.copyfile(kube.ca, account / "ca.crt")
    server = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(kube.port)}
    return parse_settings({"CALICO_INSTALL_ROOT": str(root), **server, **environ}, bundle="/b")


def test_in_a_cluster_of_the_native_group(tmp_path: Path, soon: Deadline) -> None:
    assert find_api_group(in_a_pod(native_cluster(), tmp_path), TEMPLATE, Files(), soon) == NATIVE_GROUP


def test_in_a_cluster_of_custom_resources(kube: Cluster, tmp_path: Path, soon: Deadline) -> None:
    assert find_api_group(in_a_pod(kube, tmp_path), TEMPLATE, Files(), soon) == API_GROUP


@pytest.mark.parametrize("environ", [{"CALICO_API_GROUP": API_GROUP}, {"DATASTORE_TYPE": "etcdv3"}])
def test_nobody_is_asked_where_it_is_known(
    kube: Cluster, tmp_path: Path, soon: Deadline, environ: dict[str, str]
) -> None:
    """The token would be refused."""
    assert find_api_group(in_a_pod(kube, tmp_path, "wrong-token", **environ), TEMPLATE, Files(), soon) == ""
    assert find_api_group(in_a_pod(kube, tmp_path / "other", "wrong-token"), "{}", Files(), soon) == ""


def test_a_guess_is_never_written(kube: Cluster, tmp_path: Path, soon: Deadline) -> None:
    with pytest.raises(DatastoreDenied):
        find_api_group(in_a_pod(kube, tmp_path, "wrong-token"), TEMPLATE, Files(), soon)
