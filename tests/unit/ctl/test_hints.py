"""Hints name what a caller of calicoctl, or of calico-node, has in hand."""

import json
import subprocess
import sys

import pytest

from cni_calico.ctl.main import run
from tests.conftest import ROOT

FILE = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n"
ETCD = {"ETCD_ENDPOINTS": "https://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        (ETCD, "(check that the datastore that the environment names is running and reachable from here)"),
        (ETCD | {"ETCD_CA_CERT_FILE": "/does/not/exist"}, "(ETCD_CA_CERT_FILE, ETCD_CERT_FILE and ETCD_KEY_FILE name"),
        ({"KUBECONFIG": "/does/not/exist"}, "(the kubeconfig is the one of KUBECONFIG)"),
        (
            {"DATASTORE_TYPE": "kubernetes"},
            "(give --kubeconfig, set KUBECONFIG, or write kubectl's own,",
        ),
        ({"DATASTORE_TYPE": "etcdv3"}, "(set ETCD_ENDPOINTS)"),
        ({"DATASTORE_TYPE": "bogus"}, "(DATASTORE_TYPE must be local, etcdv3 or kubernetes)"),
    ],
)
def test_of_calicoctl_with_variables(environ, said, capsys):
    assert run(["get", "nodes", "--timeout=2"], environ) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("etcdEndpoints: http://127.0.0.1:1", "(check that the datastore that {file} names is running"),
        (
            "etcdEndpoints: https://127.0.0.1:1\n  etcdCACertFile: /does/not/exist",
            "(etcdCACertFile, etcdCertFile and etcdKeyFile in {file} name the files)",
        ),
        ("kubeconfig: /does/not/exist", "(the kubeconfig is the one of spec.kubeconfig in {file})"),
        ("datastoreType: etcdv3", "(set spec.etcdEndpoints in {file})"),
        ("datastoreType: bogus", "(spec.datastoreType in {file} must be local, etcdv3 or kubernetes)"),
    ],
)
def test_of_calicoctl_with_a_file(spec, said, tmp_path, capsys):
    (tmp_path / "c.cfg").write_text(f"{FILE}  {spec}\n")
    assert run(["-c", str(tmp_path / "c.cfg"), "get", "nodes", "--timeout=2"], {}) == 1
    assert said.format(file=tmp_path / "c.cfg") in capsys.readouterr().err


KUBECONFIG = {
    "current-context": "a",
    "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
    "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "a", "user": {"token": "x"}}],
}


@pytest.mark.parametrize("words", ["get nodes", "cluster check"])
def test_of_an_option(words, tmp_path, capsys):
    """What --kubeconfig names counts, and not what is configured elsewhere."""
    (tmp_path / "k").write_text(json.dumps(KUBECONFIG))
    assert run([*words.split(), "--kubeconfig", str(tmp_path / "k"), "--timeout=2"], ETCD) == 1
    assert f"the datastore that --kubeconfig {tmp_path / 'k'} names is running" in capsys.readouterr().err


@pytest.mark.parametrize("word", [[], ["-c"]])
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "(this is kubectl's own kubeconfig, as no other is named: give --kubeconfig, or set {where})"),
        (json.dumps(KUBECONFIG), "(check that the datastore that {home} names is running and reachable from here)"),
    ],
)
def test_of_kubectls_own(word, content, said, tmp_path, capsys):
    home = tmp_path / ".kube" / "config"
    home.parent.mkdir()
    home.write_text(content)
    file = tmp_path / "c.cfg"
    file.write_text(f"{FILE}  datastoreType: kubernetes\n")
    where = f"spec.kubeconfig in {file}" if word else "KUBECONFIG"
    arguments = [*word, str(file)] if word else []
    assert run([*arguments, "get", "nodes", "--timeout=2"], {"HOME": str(tmp_path)}) == 1
    assert said.format(where=where, home=home) in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--kubeconfig", ""])
def test_of_a_kubeconfig_that_is_named(word, tmp_path, capsys):
    """Where it came from, and not where it might have."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text(json.dumps(KUBECONFIG))
    (tmp_path / "k").write_text("[]")
    given = [word, str(tmp_path / "k")] if word else []
    environ = {"HOME": str(tmp_path)} | ({} if word else {"KUBECONFIG": str(tmp_path / "k")})
    assert run(["get", "nodes", *given, "--timeout=2"], environ) == 1
    assert f"(the kubeconfig is the one of {word or 'KUBECONFIG'})" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"DATASTORE_TYPE": "bogus"}, "DATASTORE_TYPE must be local, etcdv3 or kubernetes"),
        ({"DATASTORE_TYPE": "etcdv3"}, "set ETCD_ENDPOINTS\n"),
    ],
)
def test_of_calico_node(environ, said, tmp_path):
    command = [sys.executable, "-m", "cni_calico.nodeagent.main", "-startup"]
    environ = {**environ, "CALICO_RUN_DIR": str(tmp_path), "CALICO_DISABLE_FILE_LOGGING": "true", "PATH": "/usr/bin"}
    done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stderr
