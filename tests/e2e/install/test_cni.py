"""install/install-cni.sh against a temporary root, with the frozen executables and a real API server."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from build.distribution_pages import read_distributions, render_removal
from cni_calico.cni.netconf import parse_netconf
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.model.access import DatastoreConfig, KubernetesAccess
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.host import Node, Reply, addresses
from tests.e2e.install.test_bundle_install import OLD_ROOT, OldHost, renamed
from tests.e2e.kubernetes.cluster import CNI_USER, Cluster
from tests.e2e.kubernetes.node import KubeNode, node_on
from tests.fakes.http_front import front_of
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.bundle

SECRET = "very-s3cret-value"
SECRETS = ("etcd-ca", "etcd-cert", "etcd-key")
OURS = {"calico", "calico-ipam", "calico.python", "calico-ipam.python"}
REFERENCE = {"bandwidth", "host-local", "loopback", "portmap", "tuning"}


@pytest.fixture(scope="session")
def image(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as /opt/cni/bin of the image: executables, scripts, template, and a plugin of others."""
    root = tmp_path_factory.mktemp("image")
    subprocess.run([ROOT / "build" / "image" / "tree.sh", root], check=True)
    directory = root / "opt/cni/bin"
    subprocess.run([ROOT / "build" / "install-bundle.sh", "--plain", bundle, directory], check=True)
    for script in ("build/install-bundle.sh", "install/install-cni.sh"):
        shutil.copy2(ROOT / script, directory)
    shutil.copy2(ROOT / "conflist" / "10-calico.conflist.template", directory)
    write_plugin(directory / "portmap", "v1.9.1")
    return directory


def write_plugin(path: Path, version: str) -> None:
    """What a reference plugin prints when it is started by hand."""
    path.write_text(
        f'#!/bin/sh\necho "CNI portmap plugin {version}" >&2\necho "CNI protocol versions supported: 1.0.0" >&2\n'
    )
    path.chmod(0o755)


class Host:
    """A root with the mounts that the container has. ``inside``: a command before the program's."""

    program = "install-cni.sh"
    inside: tuple[str, ...] = ()

    def __init__(self, root: Path, image: Path) -> None:
        self.root = root
        self.image = image
        self.net = root / "host/etc/cni/net.d"
        self.bin = root / "host/opt/cni/bin"
        self.secrets = root / "calico-secrets"
        for directory in (self.net, self.bin, self.secrets):
            directory.mkdir(parents=True)
        self.environ = {"CALICO_INSTALL_ROOT": str(root), "CNI_BIN_DIR": str(self.bin), "SLEEP": "false"}

    def start(self, **environ: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*self.inside, self.image / self.program],
            env={"PATH": os.environ["PATH"], **self.environ, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def install(self, **environ: str) -> str:
        process = self.start(**environ)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        assert SECRET not in output
        return output

    def fails(self, **environ: str) -> str:
        process = self.start(**environ)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 1, output
        assert SECRET not in output and "Traceback" not in output
        return output

    def conflist(self, name: str = "10-calico.conflist") -> dict[str, Any]:
        return json.loads((self.net / name).read_text())

    def names(self) -> set[str]:
        return {p.name for p in self.bin.iterdir() if not p.name.startswith(".calico-")}

    def in_cluster(self, kube: Cluster, token: str = "node-token") -> dict[str, str]:
        account = self.root / "var/run/secrets/kubernetes.io/serviceaccount"
        account.mkdir(parents=True)
        (account / "token").write_text(token)
        (account / "namespace").write_text("kube-system")
        shutil.copy2(kube.ca, account / "ca.crt")
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(kube.port)}


@pytest.fixture
def empty_host(tmp_path: Path, image: Path) -> Host:
    return Host(tmp_path / "root", image)


@pytest.fixture(scope="session")
def copied(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the installer has copied for the plugins' executables, of which nothing may be changed."""
    host = Host(tmp_path_factory.mktemp("copied"), image)
    host.install()
    (contents,) = host.bin.glob(".calico-*")
    return contents


@pytest.fixture
def install_host(empty_host: Host, copied: Path) -> Host:
    """On which the executables' directory has been copied before, 57 MB; the installer reads it and leaves it."""
    shutil.copytree(copied, empty_host.bin / copied.name, symlinks=True, copy_function=os.link)
    return empty_host


@pytest.mark.parametrize("program", ["install-cni.sh", "install", "calico-install"])
def test_a_fresh_host(empty_host: Host, program: str) -> None:
    """Both names that manifests call it by, and its own."""
    empty_host.program = program
    output = empty_host.install(KUBERNETES_NODE_NAME="node-1")
    assert "the CNI plugin is installed" in output
    assert empty_host.names() == {*OURS, "portmap"}
    (contents,) = empty_host.bin.glob(".calico-*")
    for unneeded in (contents / "unneeded").read_text().splitlines():
        assert not (contents / unneeded).exists()
    path = empty_host.net / "10-calico.conflist"
    assert path.stat().st_mode & 0o777 == 0o600
    assert empty_host.conflist()["plugins"][0]["nodename"] == "node-1"
    assert {p.name for p in empty_host.net.iterdir()} == {"10-calico.conflist"}
    done = subprocess.run(
        [empty_host.bin / "calico"], input="{}", env={"CNI_COMMAND": "VERSION"}, capture_output=True, text=True
    )
    assert json.loads(done.stdout)["cniVersion"] == "1.1.0"


def test_again_changes_nothing_and_leaves_nothing(install_host: Host) -> None:
    install_host.install()
    before = {p: p.read_bytes() for p in install_host.root.rglob("*") if p.is_file()}
    install_host.install()
    after = {p: p.read_bytes() for p in install_host.root.rglob("*") if p.is_file()}
    assert after == before


def test_names_of_the_configuration(install_host: Host) -> None:
    (install_host.net / "05-old.conf").write_text("{}")
    install_host.install(CNI_CONF_NAME="20-x.conflist", CNI_OLD_CONF_NAME="05-old.conf")
    assert {p.name for p in install_host.net.iterdir()} == {"20-x.conflist"}
    install_host.install(CNI_CONF_NAME="20-x.conflist", CNI_OLD_CONF_NAME="20-x.conflist")
    assert {p.name for p in install_host.net.iterdir()} == {"20-x.conflist"}


def test_templates_from_the_environment_and_from_a_file(install_host: Host, tmp_path: Path) -> None:
    text = '{"name": "n", "cniVersion": "0.3.1", "type": "calico", "mtu": __CNI_MTU__, "x": "%s"}'
    install_host.install(CNI_NETWORK_CONFIG=text % "text", CNI_MTU="1400")
    assert install_host.conflist() == {"name": "n", "cniVersion": "0.3.1", "type": "calico", "mtu": 1400, "x": "text"}
    (tmp_path / "template").write_text(text % "file")
    install_host.install(CNI_NETWORK_CONFIG=text % "text", CNI_NETWORK_CONFIG_FILE=str(tmp_path / "template"))
    assert install_host.conflist()["x"] == "file"


def test_etcd_with_tls_assets_in_another_net_dir(install_host: Host) -> None:
    for name in ("etcd-key", "etcd-cert", "etcd-ca"):
        (install_host.secrets / name).write_text(f"{SECRET} {name}")
    (install_host.secrets / "..data").mkdir()
    install_host.install(DATASTORE_TYPE="etcdv3", ETCD_ENDPOINTS="https://e:2379", CNI_NET_DIR="/home/cni/net.d")
    plugin = install_host.conflist()["plugins"][0]
    assert (plugin["datastore_type"], plugin["etcd_endpoints"]) == ("etcdv3", "https://e:2379")
    assert plugin["etcd_key_file"] == "/home/cni/net.d/calico-tls/etcd-key"
    assert plugin["kubernetes"]["kubeconfig"] == "/home/cni/net.d/calico-kubeconfig"
    copied = install_host.net / "calico-tls"
    assert {p.name for p in copied.iterdir()} == {"etcd-key", "etcd-cert", "etcd-ca"}
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in copied.iterdir())
    assert (copied / "etcd-key").read_text() == f"{SECRET} etcd-key"


def test_assets_from_another_directory(install_host: Host) -> None:
    (install_host.root / "tls").mkdir()
    (install_host.root / "tls" / "etcd-ca").write_text("ca")
    install_host.install(TLS_ASSETS_DIR="/tls")
    plugin = install_host.conflist()["plugins"][0]
    assert (plugin["etcd_ca_cert_file"], plugin["etcd_key_file"]) == ("/etc/cni/net.d/calico-tls/etcd-ca", "")


def test_executables_that_are_skipped_or_stay(install_host: Host) -> None:
    install_host.install(SKIP_CNI_BINARIES="portmap")
    assert install_host.names() == OURS
    (install_host.bin / "calico").write_text("old")
    write_plugin(install_host.bin / "portmap", "v1.9.0")
    output = install_host.install(UPDATE_CNI_BINARIES="false")
    assert (install_host.bin / "calico").read_text() == "old"
    assert "plugin v1.9.0" in (install_host.bin / "portmap").read_text()
    assert f"{install_host.bin}/portmap is there and stays (UPDATE_CNI_BINARIES is false)" in output
    output = install_host.install()
    assert "plugin v1.9.1" in (install_host.bin / "portmap").read_text() and "installed portmap" in output
    assert (install_host.bin / "calico").stat().st_size > 5000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param("v1.10.0", "it is v1.10.0, the image's v1.9.1", marks=pytest.mark.slow),
        ("v1.9.1-k3s1", "it is v1.9.1, the image's v1.9.1"),
        pytest.param("version unknown", "it does not say which version it is", marks=pytest.mark.slow),
        ("damaged", "it does not say which version it is"),
    ],
)
def test_a_plugin_that_does_not_say_that_it_is_older_stays(install_host: Host, content: str, why: str) -> None:
    portmap = install_host.bin / "portmap"
    write_plugin(portmap, content)
    if content == "damaged":
        portmap.write_bytes(b"\x7fELF")
    before = portmap.read_bytes()
    output = install_host.install()
    assert f"{portmap} is there and stays: {why}" in output
    assert portmap.read_bytes() == before
    # nothing to say of what an installation put there itself
    portmap.unlink()
    assert "installed portmap" in install_host.install() and "portmap" not in install_host.install()


def removals() -> list[Any]:
    """A distribution for each text of "Remove it"."""
    rows = {render_removal(row): row for row in reversed(read_distributions()) if not row.get("refused")}
    return [pytest.param(row, id=row["title"]) for row in rows.values()]


def held(host: Host) -> set[Path]:
    return {path for directory in (host.bin, host.net) for path in directory.iterdir()}


@pytest.mark.netns
@pytest.mark.parametrize("row", removals())
def test_what_a_distributions_page_says_takes_everything_away(
    install_host: Host, row: dict[str, Any], tmp_path: Path
) -> None:
    """As it stands there, on a node with that distribution's directories; what was there before stays."""
    theirs = {name: (install_host.bin / name) for name in ("bridge", *row.get("ships", ()))}
    for path in theirs.values():
        write_plugin(path, "v1.9.1")
    (install_host.net / "87-podman-bridge.conflist").write_text("{}")
    before = {path for path in held(install_host) if not path.name.startswith(".calico-")}
    install_host.image = Path(shutil.copytree(install_host.image, tmp_path / "image", copy_function=os.link))
    for name in REFERENCE - {"portmap"}:
        write_plugin(install_host.image / name, "v1.9.1")
    (install_host.secrets / "etcd-key").write_text(SECRET)
    install_host.install(DATASTORE_TYPE="etcdv3", ETCD_ENDPOINTS="https://e:2379")
    (install_host.net / "calico-kubeconfig").write_text("a cluster's")
    assert install_host.names() == {*OURS, *theirs, *REFERENCE} and (install_host.net / "calico-tls").is_dir()
    root = tmp_path / "node"
    for path in ("usr", row["binDir"].lstrip("/"), row["confDir"].lstrip("/")):
        (root / path).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    script = f"""
        mount --bind -o ro /usr {root}/usr
        mount --bind {install_host.bin} {root}{row["binDir"]}
        mount --bind {install_host.net} {root}{row["confDir"]}
        exec chroot {root} sh -euc "$0"
    """
    done = subprocess.run(["unshare", "-m", "sh", "-euc", script, render_removal(row)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # of a distribution of which nobody knows which plugins it has, theirs stay with ours
    stay = set() if "ships" in row else {install_host.bin / name for name in REFERENCE}
    assert held(install_host) == before | stay


def test_a_secondary_directory(empty_host: Host) -> None:
    secondary = empty_host.root / "host/secondary-bin-dir"
    secondary.mkdir()
    empty_host.install()
    assert {"calico", "calico-ipam", "portmap"} <= {p.name for p in secondary.iterdir()}
    assert subprocess.run([secondary / "calico", "-v"], capture_output=True).returncode == 0
    shutil.rmtree(empty_host.bin)
    empty_host.install()


def test_another_directory_than_the_host_says_uses_the_hosts_c_library(empty_host: Host) -> None:
    """The mount comes from a directory that CNI_BIN_DIR does not name: no wrong path may get into the executables."""
    real = empty_host.root / "real"
    real.mkdir()
    script = f"mount --bind {real} {empty_host.bin} && exec {empty_host.image}/install-cni.sh"
    environ = {"PATH": os.environ["PATH"], **empty_host.environ, "CNI_BIN_DIR": "/opt/cni/bin"}
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "is not known: the executables will use the host's C library" in done.stderr
    assert subprocess.run([real / "calico", "-v"], capture_output=True).returncode == 0


@pytest.mark.netns
def test_a_host_with_an_older_c_library(empty_host: Host, tmp_path: Path) -> None:
    """The container's libraries are newer; what it puts on the host starts there, also after an upgrade."""
    old = OldHost(tmp_path / "old")
    old.root.mkdir()
    subprocess.run(["tar", "-C", old.root, "-xzf", OLD_ROOT], check=True)
    mounts = []
    for own, mounted in (("opt/cni/bin", empty_host.bin), ("etc/cni/net.d", empty_host.net)):
        (old.root / own).mkdir(parents=True)
        mounts.append(f"mount --bind {old.root / own} {mounted}")
    environ = {"PATH": os.environ["PATH"], **empty_host.environ, "CNI_BIN_DIR": "/opt/cni/bin"}
    images = (renamed(empty_host.image, tmp_path / "former", "ffffffff"), empty_host.image)
    for script in ("install-bundle.sh", "install-cni.sh", "10-calico.conflist.template"):
        shutil.copy2(empty_host.image / script, images[0])
    for image in images:
        script = " && ".join((*mounts, f"exec {image}/install-cni.sh"))
        done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=environ, capture_output=True, text=True)
        assert done.returncode == 0 and "host's C library" not in done.stderr, done.stderr
        for name in ("calico", "calico-ipam"):
            answer = old.run(f"/opt/cni/bin/{name}")
            assert (answer.returncode, answer.stderr) == (0, "") and '"1.1.0"' in answer.stdout
    assert "2.31" in old.run("ldd", "--version").stdout
    tested = old.test_datastore(datastore_type="local", datastore_path="/var/lib/datastore.db")
    assert (tested.returncode, tested.stderr) == (0, "")
    assert (old.root / "etc/cni/net.d/10-calico.conflist").exists()


# -- failures ---------------------------------------------------------------------------------------------------------


def test_no_directory_that_can_be_written(empty_host: Host) -> None:
    read_only = f"mount --bind {empty_host.bin} {empty_host.bin} && mount -o remount,ro,bind {empty_host.bin}"
    script = f"{read_only} && exec {empty_host.image}/install-cni.sh"
    environ = {"PATH": os.environ["PATH"], **empty_host.environ}
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=environ, capture_output=True, text=True)
    assert done.returncode == 1 and "can be written" in done.stderr
    assert not list(empty_host.net.iterdir())
    shutil.rmtree(empty_host.bin)
    assert "cannot install the executables" in empty_host.fails()


def with_read_only(host: Host, directory: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """An installation that cannot write to one directory, though it is root."""
    script = (
        f"mount --bind {directory} {directory} && mount -o remount,ro,bind {directory} && exec {host.image}/install"
    )
    environ = {"PATH": os.environ["PATH"], **host.environ, **environ}
    return subprocess.run(["unshare", "-m", "sh", "-c", script], env=environ, capture_output=True, text=True)


def test_a_configuration_that_cannot_be_replaced_stays(install_host: Host) -> None:
    """And so the pods' network, with the executables of before or of now."""
    install_host.install()
    path = install_host.net / "10-calico.conflist"
    before = path.read_text()
    done = with_read_only(install_host, install_host.net, CNI_NETWORK_CONFIG='{"name": "new", "type": "calico"}')
    assert done.returncode == 1 and f"cannot write {path}" in done.stderr, done.stderr
    assert path.read_text() == before and [p.name for p in install_host.net.iterdir()] == [path.name]


def test_a_directory_that_cannot_be_written_is_passed_over(empty_host: Host) -> None:
    secondary = empty_host.root / "host/secondary-bin-dir"
    secondary.mkdir()
    done = with_read_only(empty_host, empty_host.bin)
    assert done.returncode == 0, done.stderr
    assert {"calico", "calico-ipam"} <= {p.name for p in secondary.iterdir()} and not list(empty_host.bin.iterdir())
    assert str(empty_host.bin) in done.stderr


def test_how_much_is_said(install_host: Host) -> None:
    assert "the CNI plugin is installed" in install_host.install(LOG_LEVEL="info")
    assert "the CNI plugin is installed" not in install_host.install(LOG_LEVEL="error")


def test_a_configuration_directory_that_is_not_there(install_host: Host) -> None:
    shutil.rmtree(install_host.net)
    assert "cannot write" in install_host.fails() and not install_host.net.exists()


@pytest.mark.parametrize(
    "environ",
    [
        {"CNI_NETWORK_CONFIG": '{"name": "n", "type": "calico", "t": "' + SECRET},
        {"CNI_NETWORK_CONFIG": '{"name": "n", "type": "calico", "mtu": __CNI_MTU__}', "CNI_MTU": SECRET},
        {"CNI_NETWORK_CONFIG_FILE": "/nowhere/template"},
        {"SLEEP": "perhaps"},
        {"KUBERNETES_SERVICE_PROTOCOL": "tcp"},
    ],
    ids=range(5),
)
def test_what_is_wrong_is_told_before_anything_is_touched(empty_host: Host, environ: dict[str, str]) -> None:
    (empty_host.net / "10-calico.conflist").write_text("the old one")
    empty_host.fails(**environ)
    assert (empty_host.net / "10-calico.conflist").read_text() == "the old one" and not empty_host.names()


def test_a_damaged_image(empty_host: Host, tmp_path: Path) -> None:
    damaged = tmp_path / "image"
    shutil.copytree(empty_host.image, damaged, symlinks=True)
    with (damaged / "calico-ipam").open("ab") as f:
        f.write(b"x")
    empty_host.image = damaged
    assert "damaged" in empty_host.fails()
    assert not (empty_host.net / "10-calico.conflist").exists()


# -- with an API server -----------------------------------------------------------------------------------------------


@pytest.fixture
def granted(kube: Cluster) -> Cluster:
    """The agent's account may get tokens of the plugin's account."""
    ensure_account(kube, "calico-cni-plugin")
    grant_tokens(kube, "calico-cni-plugin")
    return kube


def ensure_account(kube: Cluster, name: str) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    kube.ensure(ACCOUNTS, account)


def grant_tokens(kube: Cluster, account: str) -> None:
    """The right of the agent's account to get tokens of one account, and of no other."""
    group, metadata = "rbac.authorization.k8s.io", {"name": f"tokens-of-{account}"}
    rule = {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token"],
        "resourceNames": [account],
        "verbs": ["create"],
    }
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": metadata["name"]},
        "subjects": [{"kind": "ServiceAccount", "name": "calico-node", "namespace": "kube-system"}],
    }
    kube.ensure(f"/apis/{group}/v1/namespaces/kube-system/roles", role)
    kube.ensure(f"/apis/{group}/v1/namespaces/kube-system/rolebindings", binding)


ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"


def user_of(kubeconfig: Path) -> str:
    """Who the API server takes a kubeconfig's reader for: our own client reads it, as the plugin does."""
    api = KubernetesAPI(KubernetesAccess(kubeconfig=str(kubeconfig)))
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    try:
        reply = api.send(ApiRequest("POST", path, "ask who that is", body=review), Deadline.after(30))
    finally:
        api.close()
    return str(reply.document["status"]["userInfo"]["username"])


@pytest.mark.kubernetes
def test_the_kubeconfig_has_a_token_of_the_plugins_account(install_host: Host, granted: Cluster) -> None:
    output = install_host.install(**install_host.in_cluster(granted))
    path = install_host.net / "calico-kubeconfig"
    assert path.stat().st_mode & 0o777 == 0o600
    token = json.loads(path.read_text())["users"][0]["user"]["token"]
    assert token not in output
    whoami = subprocess.run(
        [granted.kubectl_path, f"--kubeconfig={path}", "auth", "whoami", "-o", "json"], capture_output=True, text=True
    )
    assert json.loads(whoami.stdout)["status"]["userInfo"]["username"] == CNI_USER


@pytest.mark.kubernetes
def test_a_token_in_the_template(install_host: Host, granted: Cluster) -> None:
    template = (
        '{"name": "n", "cniVersion": "0.3.0", "type": "calico", "policy": {"type": "k8s", "k8s_api_root":'
        ' "__KUBERNETES_SERVICE_PROTOCOL__://__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__",'
        ' "k8s_auth_token": "__SERVICEACCOUNT_TOKEN__"}}'
    )
    output = install_host.install(
        CNI_NETWORK_CONFIG=template, CNI_CONF_NAME="10-calico.conf", **install_host.in_cluster(granted)
    )
    policy = install_host.conflist("10-calico.conf")["policy"]
    assert policy["k8s_api_root"] == granted.url and len(policy["k8s_auth_token"]) > 100
    assert policy["k8s_auth_token"] not in output


@pytest.mark.kubernetes
def test_without_verification(install_host: Host, granted: Cluster) -> None:
    environ = install_host.in_cluster(granted)
    (install_host.root / "var/run/secrets/kubernetes.io/serviceaccount/ca.crt").unlink()
    install_host.install(SKIP_TLS_VERIFY="true", **environ)
    cluster = json.loads((install_host.net / "calico-kubeconfig").read_text())["clusters"][0]["cluster"]
    assert cluster["insecure-skip-tls-verify"] is True and "certificate-authority-data" not in cluster


@pytest.mark.kubernetes
def test_an_account_that_is_not_known_keeps_the_old_configuration(install_host: Host, granted: Cluster) -> None:
    """Not even who asks is known: no other token helps."""
    (install_host.net / "10-calico.conflist").write_text("the old one")
    output = install_host.fails(**install_host.in_cluster(granted, token=SECRET))
    assert "Unauthorized" in output and not (install_host.net / "calico-kubeconfig").exists()
    assert (install_host.net / "10-calico.conflist").read_text() == "the old one"


@pytest.mark.kubernetes
def test_without_the_right_the_pods_own_token_stands_in(install_host: Host, granted: Cluster) -> None:
    output = install_host.install(**install_host.in_cluster(granted, token="nobody-token"))
    assert 'User "nobody" cannot create resource "serviceaccounts/token"' in output
    assert output.count("The plugin uses the token of this pod instead") == 1 and "nobody-token" not in output
    path = install_host.net / "calico-kubeconfig"
    assert user_of(path) == "nobody" and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.kubernetes
def test_a_service_account_of_ones_own(install_host: Host, granted: Cluster) -> None:
    """Whose token is asked for; without the right to it, or without the account, nothing becomes a configuration."""
    chosen = {"CALICO_CNI_SERVICE_ACCOUNT": "own-account", **install_host.in_cluster(granted)}
    (install_host.net / "10-calico.conflist").write_text("the old one")
    asked = "cannot get a token of service account kube-system/own-account"

    def refused(why: str, hint: str) -> None:
        output = install_host.fails(**chosen)
        assert asked in output and why in output and hint in output, output
        assert (install_host.net / "10-calico.conflist").read_text() == "the old one"
        assert not (install_host.net / "calico-kubeconfig").exists()

    refused('cannot create resource "serviceaccounts/token"', "the roles in the manifests")
    grant_tokens(granted, "own-account")
    refused('serviceaccounts "own-account" not found', "CALICO_CNI_SERVICE_ACCOUNT")
    ensure_account(granted, "own-account")
    try:
        install_host.install(**chosen)
        assert user_of(install_host.net / "calico-kubeconfig") == "system:serviceaccount:kube-system:own-account"
        assert install_host.conflist()["plugins"][0]["type"] == "calico"
    finally:
        granted.request("DELETE", f"{ACCOUNTS}/own-account")
        for kind in ("roles", "rolebindings"):
            path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/{kind}/tokens-of-own-account"
            granted.request("DELETE", path)


@pytest.mark.kubernetes
def test_an_api_server_without_tls(install_host: Host, granted: Cluster) -> None:
    """Through a front of plain HTTP: the token is asked for there, and the plugin's kubeconfig leads there."""
    environ = install_host.in_cluster(granted)
    with front_of("127.0.0.1", granted.port, granted.ca) as front:
        environ |= {"KUBERNETES_SERVICE_PORT": str(front.port), "KUBERNETES_SERVICE_PROTOCOL": "http"}
        install_host.install(**environ)
        assert front.count("POST", "/serviceaccounts/calico-cni-plugin/token") == 1
        kubeconfig = install_host.net / "calico-kubeconfig"
        [cluster] = json.loads(kubeconfig.read_text())["clusters"]
        assert cluster["cluster"]["server"] == f"http://127.0.0.1:{front.port}"
        assert user_of(kubeconfig) == CNI_USER and front.count("POST", "/selfsubjectreviews") == 1


def unreachable(install_host: Host, host: str, port: str, *inside: str) -> str:
    """What it says in a pod whose API server cannot be had."""
    account = install_host.root / "var/run/secrets/kubernetes.io/serviceaccount"
    account.mkdir(parents=True)
    (account / "token").write_text(SECRET)
    (account / "ca.crt").write_text("")
    install_host.inside = inside
    output = install_host.fails(KUBERNETES_SERVICE_HOST=host, KUBERNETES_SERVICE_PORT=port, SKIP_TLS_VERIFY="true")
    assert "cannot get a token of service account kube-system/calico-cni-plugin" in output
    assert "check that kube-proxy" in output and "kubernetes-services-endpoint" in output
    return output


def test_an_api_server_that_is_down(install_host: Host) -> None:
    assert "Connection refused" in unreachable(install_host, "127.0.0.1", "1")


@pytest.mark.netns
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("route replace unreachable default", "no connection to 10.96.0.1:443: No route to host"),
        ("neigh add 192.0.2.1 lladdr 02:00:00:00:00:01 dev uplink", "no connection to 10.96.0.1:443 in time"),
    ],
    ids=["no-route", "silence"],
)
def test_a_service_address_that_nobody_translates(
    install_host: Host, host_ns: Namespace, command: str, said: str
) -> None:
    """A node without kube-proxy: packets to the Service go nowhere, or to the default gateway."""
    host_ns.do(*command.split())
    assert said in unreachable(install_host, "10.96.0.1", "443", "nsenter", f"--net={host_ns.path}")


# -- while it stays, and while others use what it replaces ------------------------------------------------------------


def test_rotated_secrets_are_copied_while_it_stays(install_host: Host) -> None:
    (install_host.secrets / "etcd-key").write_text("one")
    process = install_host.start(SLEEP="true")
    try:
        copied = install_host.net / "calico-tls" / "etcd-key"
        until(lambda: (install_host.net / "10-calico.conflist").exists(), "no configuration")
        assert copied.read_text() == "one"
        (install_host.secrets / "new").write_text(SECRET)
        (install_host.secrets / "new").rename(install_host.secrets / "etcd-key")
        until(lambda: copied.read_text() == SECRET, "the new secret is not copied")
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=10)
        assert process.returncode == 0 and SECRET not in output
    finally:
        process.kill()
        process.wait()


def test_a_secret_that_the_kubelet_renews(install_host: Host) -> None:
    """As it mounts one: links through "..data", which it turns to a new directory in one step."""
    for number in ("1", "2"):
        (install_host.secrets / f"..dir{number}").mkdir()
        for name in ("etcd-key", "etcd-cert", "etcd-ca"):
            (install_host.secrets / f"..dir{number}" / name).write_text(f"{SECRET} {name} {number}")
    (install_host.secrets / "..data").symlink_to("..dir1")
    for name in ("etcd-key", "etcd-cert", "etcd-ca"):
        (install_host.secrets / name).symlink_to(f"..data/{name}")
    process = install_host.start(SLEEP="true", DATASTORE_TYPE="etcdv3", ETCD_ENDPOINTS="https://e:2379")
    copied = install_host.net / "calico-tls"

    def all_are(number: str) -> bool:
        return all((copied / n).read_text() == f"{SECRET} {n} {number}" for n in ("etcd-key", "etcd-cert", "etcd-ca"))

    try:
        until(lambda: (install_host.net / "10-calico.conflist").exists() and all_are("1"), "no configuration")
        (install_host.secrets / "..new").symlink_to("..dir2")
        (install_host.secrets / "..new").rename(install_host.secrets / "..data")
        until(lambda: all_are("2"), "the new secrets are not copied")
        assert {p.name for p in copied.iterdir()} == {"etcd-key", "etcd-cert", "etcd-ca"}
    finally:
        process.terminate()
        output, _ = process.communicate(timeout=20)
    assert process.returncode == 0 and SECRET not in output


# ConfigMap calico-config of upstream's v3.0 for etcd, and what its container install-cni is given
OF_V3_0 = """
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.0",
  "plugins": [
    {
      "type": "calico",
      "etcd_endpoints": "__ETCD_ENDPOINTS__",
      "etcd_key_file": "__ETCD_KEY_FILE__",
      "etcd_cert_file": "__ETCD_CERT_FILE__",
      "etcd_ca_cert_file": "__ETCD_CA_CERT_FILE__",
      "log_level": "info",
      "mtu": 1500,
      "ipam": {"type": "calico-ipam"},
      "policy": {
        "type": "k8s",
        "k8s_api_root": "https://__KUBERNETES_SERVICE_HOST__:__KUBERNETES_SERVICE_PORT__",
        "k8s_auth_token": "__SERVICEACCOUNT_TOKEN__"
      },
      "kubernetes": {"kubeconfig": "__KUBECONFIG_FILEPATH__"}
    },
    {"type": "portmap", "snat": true, "capabilities": {"portMappings": true}}
  ]
}
"""


@pytest.mark.kubernetes
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "certificates"])
def test_the_sidecar_of_upstreams_v3_0(install_host: Host, granted: Cluster, secured: bool) -> None:
    """Beside calico-node it has no SLEEP and no DATASTORE_TYPE: it stays, and copies certificates that are renewed."""
    del install_host.environ["SLEEP"]
    assets = SECRETS if secured else ()
    for name in assets:
        (install_host.secrets / name).write_text(f"{SECRET} {name}")
    endpoints = "https://10.0.0.1:2379" if secured else "http://127.0.0.1:2379"
    environ = {"CNI_CONF_NAME": "10-calico.conflist", "ETCD_ENDPOINTS": endpoints, "CNI_NETWORK_CONFIG": OF_V3_0}
    process = install_host.start(**environ, **install_host.in_cluster(granted))
    try:
        until(lambda: (install_host.net / "10-calico.conflist").exists() or process.poll() is not None, "no conflist")
        assert process.poll() is None, process.communicate()[0]
        conflist = install_host.conflist()
        plugin, portmap = conflist["plugins"]
        token = plugin["policy"].pop("k8s_auth_token")
        placed = {name: f"/etc/cni/net.d/calico-tls/{name}" if secured else "" for name in SECRETS}
        assert plugin == {
            "type": "calico",
            "etcd_endpoints": endpoints,
            "etcd_key_file": placed["etcd-key"],
            "etcd_cert_file": placed["etcd-cert"],
            "etcd_ca_cert_file": placed["etcd-ca"],
            "log_level": "info",
            "mtu": 1500,
            "ipam": {"type": "calico-ipam"},
            "policy": {"type": "k8s", "k8s_api_root": granted.url},
            "kubernetes": {"kubeconfig": "/etc/cni/net.d/calico-kubeconfig"},
        }
        assert portmap["type"] == "portmap" and user_of(install_host.net / "calico-kubeconfig") == CNI_USER
        assert parse_netconf({**plugin, "name": "n", "cniVersion": "0.3.0"}, {}).datastore.type == "etcdv3"
        assert {"calico", "calico-ipam", "portmap"} <= install_host.names()
        for name in assets:
            (install_host.secrets / "new").write_text(f"{SECRET} {name} renewed")
            (install_host.secrets / "new").rename(install_host.secrets / name)
        copied = install_host.net / "calico-tls"
        until(lambda: all((copied / n).read_text().endswith("renewed") for n in assets), "they are not copied")
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and SECRET not in output and token not in output
    finally:
        process.kill()
        process.wait()


ACCOUNT_OF_V3_0 = "node-of-v3.0"
RIGHTS_OF_V3_0 = [{"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get"]}]


class OldAccount:
    """The agent's account with the role that v3.0 gives it, and its tokens as the kubelet puts them into its pod."""

    def __init__(self, kube: Cluster, file: Path, *, may_get_tokens: bool) -> None:
        self._kube, self._file = kube, file
        ensure_account(kube, ACCOUNT_OF_V3_0)
        group = "/apis/rbac.authorization.k8s.io/v1"
        subject = {"kind": "ServiceAccount", "name": ACCOUNT_OF_V3_0, "namespace": "kube-system"}
        metadata = {"name": ACCOUNT_OF_V3_0}
        role = {"kind": "ClusterRole", "metadata": metadata, "rules": RIGHTS_OF_V3_0}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ACCOUNT_OF_V3_0}
        binding = {"kind": "ClusterRoleBinding", "metadata": metadata, "roleRef": reference, "subjects": [subject]}
        kube.ensure(f"{group}/clusterroles", role)
        kube.ensure(f"{group}/clusterrolebindings", binding)
        self._made = [f"{group}/clusterrolebindings/{ACCOUNT_OF_V3_0}", f"{group}/clusterroles/{ACCOUNT_OF_V3_0}"]
        if may_get_tokens:
            own = f"{group}/namespaces/kube-system/rolebindings"
            reference = {**reference, "kind": "Role", "name": "tokens-of-calico-cni-plugin"}
            kube.ensure(own, {**binding, "kind": "RoleBinding", "roleRef": reference})
            self._made.append(f"{own}/{ACCOUNT_OF_V3_0}")

    def renew(self) -> str:
        """Another token in the pod's file, in one step."""
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        token = str(self._kube.request("POST", f"{ACCOUNTS}/{ACCOUNT_OF_V3_0}/token", body)["status"]["token"])
        new = self._file.with_name("..token")
        new.write_text(token)
        new.rename(self._file)
        return token

    def remove(self) -> None:
        for path in (*self._made, f"{ACCOUNTS}/{ACCOUNT_OF_V3_0}"):
            self._kube.request("DELETE", path)


@pytest.mark.kubernetes
@pytest.mark.netns
@pytest.mark.parametrize("lacking", ["the right", "the account"])
def test_the_sidecar_of_upstreams_v3_0_with_its_own_role(
    install_host: Host, granted: Cluster, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path, lacking: str
) -> None:
    """Only the image is another: the pod's own token stands in, also in the network configuration, and follows the
    kubelet's renewals. With it pods get their network, though it does not allow to read namespaces.
    """
    kube = granted
    environ = {**install_host.in_cluster(kube), "CNI_NET_DIR": str(install_host.net), "ETCD_ENDPOINTS": ETCD_HERE}
    del install_host.environ["SLEEP"]
    file = install_host.root / "var/run/secrets/kubernetes.io/serviceaccount/token"
    account = OldAccount(kube, file, may_get_tokens=lacking == "the account")
    tokens = [account.renew()]
    if lacking == "the account":
        kube.request("DELETE", f"{ACCOUNTS}/calico-cni-plugin")

    def plugin() -> dict[str, Any]:
        return install_host.conflist()["plugins"][0]

    process = install_host.start(CNI_NETWORK_CONFIG=OF_V3_0, **environ)
    try:
        kubeconfig = install_host.net / "calico-kubeconfig"
        until(lambda: (install_host.net / "10-calico.conflist").exists() or process.poll() is not None, "no conflist")
        assert process.poll() is None, process.communicate()[0]
        assert user_of(kubeconfig) == f"system:serviceaccount:kube-system:{ACCOUNT_OF_V3_0}"
        assert plugin()["policy"]["k8s_auth_token"] == tokens[0]
        tokens.append(account.renew())
        until(lambda: plugin()["policy"]["k8s_auth_token"] == tokens[1], "the renewed token", 60)
        assert tokens[1] in kubeconfig.read_text() and kubeconfig.stat().st_mode & 0o777 == 0o600
        if lacking == "the right":
            with node_on("etcd", kube, host_ns, tmp_path) as node:
                node.overrides |= {name: plugin()[name] for name in ("policy", "kubernetes")}
                assert_pods_get_their_network(node, kube, pod_ns)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0 and not any(token in output for token in tokens)
        why = "cannot create resource" if lacking == "the right" else '"calico-cni-plugin" not found'
        assert output.count(why) == output.count("The plugin uses the token of this pod instead") == 1, output
    finally:
        process.kill()
        process.wait()
        account.remove()


ETCD_HERE = "http://127.0.0.1:2379"


def assert_pods_get_their_network(node: KubeNode, kube: Cluster, pod_ns: Namespace) -> None:
    """Though the role forbids namespaces: a pool that selects by them is then not used, and only this old form of the
    network configuration, which comes with that role, does without.
    """
    node.apply("IPPool", "chosen", {"cidr": "10.9.0.0/16", "blockSize": 26, "namespaceSelector": "!has(nothing)"})
    kube.create_pod(node.namespace, "web", node.nodename, labels={"app": "web"})
    added = node.pod_call("ADD", "web", "c0" * 32, pod_ns.path)
    assert added.ok, added.document
    assert not any(address.startswith("10.9.") for address in addresses(added))
    [endpoint] = [value for key, value in node.dump().items() if "/workloadendpoints/" in key]
    assert endpoint["metadata"]["labels"]["app"] == "web"
    assert node.pod_call("DEL", "web", "c0" * 32, pod_ns.path).ok
    later = node.pod_call("ADD", "web", "c1" * 32, pod_ns.path, policy={"type": "k8s"})
    assert not later.ok and later.document["code"] == 102 and 'resource "namespaces"' in later.document["msg"], later


EVERY_VARIABLE = {
    "CALICO_API_GROUP": "crd.projectcalico.org/v1",
    "CNI_MTU": "1400",
    "DATASTORE_TYPE": "etcdv3",
    "ETCD_DISCOVERY_SRV": "etcd.example",
    "ETCD_ENDPOINTS": "https://a:2379,https://b:2379",
    "KUBERNETES_NODE_NAME": "node-9",
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "KUBERNETES_SERVICE_PORT": "443",
    "KUBERNETES_SERVICE_PROTOCOL": "http",
    "LOG_FILE_MAX_AGE": "1",
    "LOG_FILE_MAX_COUNT": "2",
    "LOG_FILE_MAX_SIZE": "3",
    "LOG_FILE_PATH": "/var/log/x.log",
    "LOG_LEVEL": "warning",
    "REQUIRE_MTU_FILE": "true",
}
FROM_OTHERS = {
    "ETCD_KEY_FILE": "/home/net.d/calico-tls/etcd-key",
    "ETCD_CERT_FILE": "/home/net.d/calico-tls/etcd-cert",
    "ETCD_CA_CERT_FILE": "/home/net.d/calico-tls/etcd-ca",
    "KUBECONFIG_FILENAME": "calico-kubeconfig",
    "KUBECONFIG_FILEPATH": "/home/net.d/calico-kubeconfig",
    "SERVICEACCOUNT_TOKEN": "",
}


def test_every_variable_reaches_its_place(install_host: Host, tmp_path: Path) -> None:
    """All at once, and each different from its default; the documentation names each of them."""
    names = sorted({**EVERY_VARIABLE, **FROM_OTHERS})
    template = {
        "name": "n",
        "cniVersion": "0.3.1",
        "plugins": [{"type": "calico", "v": {n: f"__{n}__" for n in names}}],
    }
    (tmp_path / "template").write_text(json.dumps(template))
    (tmp_path / "tls").mkdir()
    for name in ("etcd-key", "etcd-cert", "etcd-ca"):
        (tmp_path / "tls" / name).write_text(SECRET)
    (install_host.root / "assets").symlink_to(tmp_path / "tls")
    (install_host.root / "host/secondary-bin-dir").mkdir()
    own = {
        "CNI_CONF_NAME": "07-own.conflist",
        "CNI_OLD_CONF_NAME": "10-calico.conflist",
        "CNI_NET_DIR": "/home/net.d",
        "CNI_NETWORK_CONFIG": "not used",
        "CNI_NETWORK_CONFIG_FILE": str(tmp_path / "template"),
        "CNI_SECONDARY_BIN_DIR": str(install_host.root / "host/secondary-bin-dir"),
        "CALICO_CNI_SERVICE_ACCOUNT": "own-account",
        "SKIP_CNI_BINARIES": "portmap, bandwidth",
        "SKIP_TLS_VERIFY": "yes",
        "TLS_ASSETS_DIR": "/assets",
        "UPDATE_CNI_BINARIES": "1",
    }
    (install_host.net / "10-calico.conflist").write_text("{}")
    install_host.install(**EVERY_VARIABLE, **own)
    assert install_host.conflist("07-own.conflist")["plugins"][0]["v"] == {**EVERY_VARIABLE, **FROM_OTHERS}
    assert {p.name for p in install_host.net.iterdir()} == {"07-own.conflist", "calico-tls"}
    assert install_host.names() == OURS
    documented = (ROOT / "docs" / "install.md").read_text()
    for name in (*own, *EVERY_VARIABLE, *FROM_OTHERS, "SLEEP", "CNI_BIN_DIR"):
        assert name.removeprefix("KUBERNETES_SERVICE") in documented, name


@pytest.mark.netns
@pytest.mark.slow
def test_fifty_adds_in_flight_during_upgrades(
    install_host: Host, image: Path, host_ns: Namespace, make_pod_ns: MakeNamespace, tmp_path: Path
) -> None:
    """To another build and back while they run: every one of them succeeds, and so does its DEL."""
    install_host.install()
    node = Node(host_ns, tmp_path, DatastoreConfig("local", path=str(tmp_path / "ds.db")), bin_dir=install_host.bin)
    node.timeout_s = 120
    (tmp_path / "run").mkdir()
    node.apply_pools()
    another = renamed(image, tmp_path / "another", "ffffffff")
    for name in ("install-cni.sh", "install-bundle.sh", "10-calico.conflist.template", "portmap"):
        if not (another / name).exists():
            shutil.copy2(image / name, another)
    spaces = [make_pod_ns().path for _ in range(50)]

    def all_at_once(verb: str) -> list[Reply]:
        with ThreadPoolExecutor(50) as pool:
            running = [pool.submit(node.call, verb, f"c{i:02}", path) for i, path in enumerate(spaces)]
            upgrades = 0
            while upgrades < 2 or not all(call.done() for call in running):
                install_host.image = another if upgrades % 2 == 0 else image
                install_host.install()
                upgrades += 1
            return [call.result() for call in running]

    replies = all_at_once("ADD")
    assert all(reply.ok for reply in replies), [reply.document for reply in replies if not reply.ok][:3]
    assert len(node.taken()) == len({addresses(reply)[0] for reply in replies}) == 50
    replies = all_at_once("DEL")
    assert all(reply.ok for reply in replies), [reply.document for reply in replies if not reply.ok][:3]
    assert node.leftovers() == {}


def test_fifty_calls_in_flight_during_upgrades(install_host: Host) -> None:
    """None fails: no file is busy, half there, or gone."""
    install_host.install()
    failures: list[str] = []
    done = threading.Event()

    def call(name: str) -> None:
        while not done.is_set():
            try:
                answer = subprocess.run(
                    [install_host.bin / name],
                    input="{}",
                    env={"CNI_COMMAND": "VERSION"},
                    capture_output=True,
                    text=True,
                )
                if answer.returncode or '"1.1.0"' not in answer.stdout:
                    failures.append(answer.stdout + answer.stderr)
            except OSError as e:
                failures.append(repr(e))

    threads = [threading.Thread(target=call, args=(name,)) for name in ("calico", "calico-ipam") * 25]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            install_host.install()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures[:3]
