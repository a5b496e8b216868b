"""calicoctl as a zip application, and what names it elsewhere: krew's manifest, Homebrew's formula."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from cni_calico.ctl import main
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build"))
sys.path.insert(0, str(ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "build" / "image"))

import brew
import krew
import kubectl
from listed import Unlisted, read_listed
from plugin_needs import find_needs

RELEASES = "https://releases.example/cni-calico"
FILES = {
    "kubectl-calico_1.2.3_linux_amd64.tar.gz": "a" * 64,
    "kubectl-calico_1.2.3_linux_arm64.tar.gz": "b" * 64,
    "calicoctl-1.2.3.pyz": "c" * 64,
}
# another system's Python, as far as calicoctl can see: without Linux's sockets, and without what is compiled
ELSEWHERE = """
import os, runpy, socket, sys
class Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyroute2", "netlink", "grpc", "google", "_yaml"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refusing())
for name in [name for name in dir(socket) if "NETLINK" in name]: delattr(socket, name)
for name in ("setns", "unshare", "O_PATH", "pidfd_open"):
    if hasattr(os, name): delattr(os, name)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    write_sums(tmp_path, FILES)
    return tmp_path


def write_sums(directory: Path, files: dict[str, str]) -> None:
    (directory / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in files.items()))


def call(script: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "build/release" / script, *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_krews_manifest(sums: Path) -> None:
    document = yaml.safe_load(call("krew.py", "--releases", RELEASES, sums).stdout)
    assert (document["kind"], document["metadata"]["name"], document["spec"]["version"]) == (
        "Plugin",
        "calico",
        "v1.2.3",
    )
    assert len(document["spec"]["shortDescription"]) < 50
    for platform in document["spec"]["platforms"]:
        labels = platform["selector"]["matchLabels"]
        name = f"kubectl-calico_1.2.3_{labels['os']}_{labels['arch']}.tar.gz"
        assert platform["uri"] == f"{RELEASES}/v1.2.3/{name}" and platform["sha256"] == FILES[name]
        assert platform["bin"] == kubectl.PLUGIN
    assert len(document["spec"]["platforms"]) == 2


def test_homebrews_formula_is_ruby(sums: Path) -> None:
    said = call("brew.py", "--releases", RELEASES, sums).stdout
    checked = subprocess.run(["ruby", "-c"], input=said, capture_output=True, text=True)
    assert checked.stdout == "Syntax OK\n", checked.stderr
    assert f'url "{RELEASES}/v1.2.3/calicoctl-1.2.3.pyz"' in said and f'sha256 "{"c" * 64}"' in said


@pytest.mark.parametrize("script", ["krew.py", "brew.py"])
def test_what_cannot_be_rendered(tmp_path: Path, script: str) -> None:
    done = call(script, "--releases", RELEASES, tmp_path)
    assert done.returncode == 1 and "cannot read" in done.stderr and done.stdout == ""
    write_sums(tmp_path, {name: digest for name, digest in FILES.items() if "arm64" not in name and "pyz" not in name})
    done = call(script, "--releases", RELEASES, tmp_path)
    assert done.returncode == 1 and "lists 0 calicoctl-VERSION.pyz" in done.stderr and done.stdout == ""
    write_sums(tmp_path, FILES)
    done = call(script, "--releases", "http://releases.example", tmp_path)
    assert done.returncode == 1 and "no address of releases" in done.stderr
    (tmp_path / "SHA256SUMS").write_text("half a li")
    assert "it is not what sha256sum prints" in call(script, "--releases", RELEASES, tmp_path).stderr


def test_a_sum_that_is_missing_stops_it(tmp_path: Path) -> None:
    write_sums(tmp_path, {name: digest for name, digest in FILES.items() if "arm64" not in name})
    listed = read_listed(tmp_path, RELEASES)
    with pytest.raises(Unlisted, match=r"does not list kubectl-calico_1\.2\.3_linux_arm64\.tar\.gz"):
        krew.render_manifest(listed, RELEASES)
    assert brew.render_formula(listed, RELEASES)


def test_the_plugin_has_every_command() -> None:
    needed, _ = find_needs(kubectl.list_sources())
    places = [*main._ON_DATASTORES.values(), *main._STANDALONE.values()]
    named = {f"cni_calico.ctl.{place.partition(':')[0]}" for place in places}
    assert len(named) > 20 and named - needed == set()
    assert {"cni_calico", "cni_calico.ctl", "cni_calico.ctl.cluster"} <= needed


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("application")
    for page in ("LICENSE", "NOTICE"):
        (directory / page).write_text(page)
    data = kubectl.pack_application(directory, 1600000000)
    assert kubectl.pack_application(directory, 1600000000) == data, "the same bytes"
    assert len(data) < 2_000_000
    (directory / "calicoctl.pyz").write_bytes(data)
    return directory / "calicoctl.pyz"


def run_elsewhere(application: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Without this environment's packages."""
    command = [sys.executable, "-I", "-S", "-c", ELSEWHERE, str(application), *words]
    return subprocess.run(command, capture_output=True, text=True, env=environ)


def test_the_application_runs_on_other_systems(application: Path) -> None:
    said = run_elsewhere(application, "version", "--client")
    assert "Client Version:" in said.stdout, said.stderr
    manifest = "apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: a}\nspec: {cidr: 10.0.0.0/33}\n"
    (application.parent / "pool.yaml").write_text(manifest)
    said = run_elsewhere(application, "validate", "-f", str(application.parent / "pool.yaml"))
    assert said.returncode == 1 and "10.0.0.0/33" in said.stderr and "Traceback" not in said.stderr
    asked = run_elsewhere(application, "get", "ippools", KUBECONFIG="/nowhere/config")
    assert asked.returncode == 1 and asked.stderr.startswith("cannot read kubeconfig /nowhere/config"), asked.stderr


def test_every_command_of_kubernetes_can_be_imported(application: Path) -> None:
    """Those of nodes and of etcd too, but for what is about etcd alone."""
    script = ELSEWHERE.replace("runpy.run_path", "sys.path.insert(0, sys.argv[0]); 0 and runpy.run_path") + (
        "import importlib, yaml; yaml.CSafeLoader = yaml.SafeLoader; from cni_calico.ctl import main\n"
        "places = {**main._ON_DATASTORES, **main._STANDALONE}.values()\n"
        "names = sorted({place.partition(':')[0] for place in places} - {'datastore.etcd_roles'})\n"
        "for name in names: importlib.import_module(f'cni_calico.ctl.{name}')\n"
        "import cni_calico.datastore.kubernetes.store\n"
        "print(len(names))\n"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script, application], capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 20, done.stderr


def test_etcd_is_told_to_be_missing(application: Path) -> None:
    environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": "http://127.0.0.1:1"}
    done = run_elsewhere(application, "get", "nodes", **environ)
    assert done.returncode == 1 and done.stderr.startswith("cannot run this command: ") and "etcd takes" in done.stderr


def test_nothing_compiled_is_in_it(application: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(application.read_bytes())) as archive:
        names = archive.namelist()
    assert {"__main__.py", "LICENSE", "NOTICE", "cni_calico/ctl/main.py", "yaml/__init__.py"} <= set(names)
    # what only other programs import
    assert not [name for name in names if name.startswith(("cni_calico/docker/", "cni_calico/relay/"))]
    assert {name.rpartition(".")[2] for name in names} <= {"py", "LICENSE", "NOTICE"}
