"""Secrets of a running node: in no process's arguments, no log, no status, no page and no archive of diagnostics.

Each secret in use is a word of its own: the token (which a program gives), the passwords of a BGP peer and of the mesh
(out of Secrets), etcd's, a proxy's, and those in the host's configuration files. An audit hook in every process of ours
writes down what is executed with which arguments; what is left on the disk is searched.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.etcd import admin
from tests.e2e.forks import forks_in
from tests.e2e.host import etcd_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.startups import add_card

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.bird]

CRD = "/apis/crd.projectcalico.org/v1"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
TOKEN = "admin-token"  # what the API server knows
PEER, MESH, ETCD, FILE, STORED = (f"c4n4ry-{name}-0f-n0b0dy" for name in ("peer", "mesh", "etcd", "file", "stored"))
CANARIES = (TOKEN, PEER, MESH, ETCD, FILE, STORED)
HOOK = """
import os, sys
_out = os.open(os.environ["CANARY_TRACE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
def _hook(event, values):
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn"):
        os.write(_out, (event + " " + repr(values[:2]) + chr(10)).encode())
sys.addaudithook(_hook)
"""


def forms(secret: str) -> tuple[str, ...]:
    return secret, b64encode(secret.encode()).decode().rstrip("=")


def leaks(text: str) -> list[str]:
    """Which secrets, with what stands before them."""
    return [
        found
        for secret in CANARIES
        for form in forms(secret)
        for found in re.findall(".{0,80}" + re.escape(form), text)
    ]


@contextmanager
def secret(kube: Cluster, name: str, value: str) -> Iterator[None]:
    data = {"password": b64encode(value.encode()).decode()}
    kube.ensure(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})
    try:
        yield
    finally:
        kube.request("DELETE", f"{SECRETS}/{name}")


def kubeconfig(node: KubeNode) -> Path:
    """The token is what a program prints."""
    program = node.root / "credentials"
    status = {"token": TOKEN}
    answer = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(0o700)
    call = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(program), "interactiveMode": "Never"}
    document = json.loads(Path(node.kube.kubeconfig()).read_text())
    document["users"] = [{"name": "u", "user": {"exec": call}}]
    path = node.root / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


def configuration_files(root: Path) -> Path:
    """The host's /etc with secrets in Calico's files."""
    etc = root / "etc"
    etc.mkdir()
    for name in ("passwd", "group", "hosts", "nsswitch.conf", "ld.so.cache"):
        if (Path("/etc") / name).exists():
            shutil.copy2(f"/etc/{name}", etc / name)
    (etc / "cni/net.d").mkdir(parents=True)
    (etc / "calico").mkdir()
    plugin = {"type": "calico", "etcd_endpoints": f"https://u:{FILE}@127.0.0.1:2379", "etcd_password": FILE}
    gates = {
        "policy": {"type": "k8s", "k8s_auth_token": FILE},
        "readiness_gates": [f"https://u:{FILE}@h/?token={FILE}"],
    }
    conflist = {"cniVersion": "0.3.1", "name": "n", "plugins": [{**plugin, **gates}]}
    (etc / "cni/net.d/10-calico.conflist").write_text(json.dumps(conflist, indent=2))
    (etc / "cni/net.d/calico-kubeconfig").write_text(f"users:\n- name: calico\n  user:\n    token: {FILE}\n")
    (etc / "calico/calico-node.env").write_text(f"ETCD_USERNAME=u\nETCD_PASSWORD={FILE}\n")
    return etc


def environment(node: KubeNode) -> dict[str, str]:
    hook = node.root / "hook"
    hook.mkdir(exist_ok=True)
    (hook / "sitecustomize.py").write_text(HOOK)
    return {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(hook),
        "CANARY_TRACE": str(node.root / "trace"),
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": str(node.root / "kubeconfig"),
        "ETCD_USERNAME": "somebody",
        "ETCD_PASSWORD": ETCD,
        "ETCD_ENDPOINTS": f"https://somebody:{ETCD}@127.0.0.1:2379",
        "NODENAME": "node1",
        "IP": "10.0.0.5/24",
        "CALICO_NETWORKING_BACKEND": "bird",
        "CALICO_IPV4POOL_CIDR": "none",
        "CALICO_IPV6POOL_CIDR": "none",
        "CALICO_RUN_DIR": f"{node.root}/run",
        "CALICO_STATE_DIR": f"{node.root}/state",
        "CALICO_LOG_DIR": f"{node.root}/log",
        "CALICO_NODENAME_FILE": f"{node.root}/state/nodename",
        "CALICO_BIRD_CONFIG_DIR": f"{node.root}/bird",
        "CALICO_DISABLE_FILE_LOGGING": "false",
        "FELIX_ENDPOINTSTATUSPATHPREFIX": f"{node.root}/run",
        "FELIX_LOGSEVERITYSCREEN": "debug",
        "FELIX_LOGSEVERITYFILE": "debug",
        "FELIX_PROMETHEUSMETRICSENABLED": "true",
        "FELIX_HEALTHENABLED": "true",
    }


def command(node: KubeNode, module: str, *arguments: str) -> list[str]:
    return ["nsenter", f"--net={node.host.path}", sys.executable, "-m", f"cni_calico.{module}.main", *arguments]


def run(node: KubeNode, module: str, *arguments: str, wrap: tuple[str, ...] = (), **environ: str) -> str:
    """What a program of ours says, however it ends."""
    argv = [*wrap, *command(node, module, *arguments)]
    env = {name: value for name, value in {**environment(node), **environ}.items() if value}
    done = subprocess.run(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    return done.stdout


def arguments_in(host: Namespace) -> dict[str, str]:
    """Those of every process that runs in the host's namespace now, by its name and number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.path.samefile(path / "ns/net", host.path):
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[f"{(path / 'comm').read_text().strip()} {path.name}"] = words
        except OSError:
            continue
    return found


@pytest.fixture
def canary_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    add_card(host_ns, "eth0", "10.0.0.5/24")
    with (
        kube_node(kube, host_ns, tmp_path) as made,
        secret(kube, "canary-peer", PEER),
        secret(kube, "canary-mesh", MESH),
    ):
        kubeconfig(made)
        made.kube.ensure_namespace("kube-system")
        reference = {"secretKeyRef": {"name": "canary-mesh", "key": "password"}}
        made.apply("BGPConfiguration", "default", {"nodeMeshPassword": reference, "nodeToNodeMeshEnabled": True})
        peer = {
            "peerIP": "10.0.0.99",
            "asNumber": 65000,
            "password": {"secretKeyRef": {"name": "canary-peer", "key": "password"}},
        }
        made.apply("BGPPeer", "rack", peer)
        other = {"projectcalico.org/IPv4Address": "10.0.0.6/24"}
        kube.create_node("node2", metadata={"annotations": other})
        # a secret where none belongs: shown as it is stored, but not in an archive that is sent to others
        made.apply("FelixConfiguration", "node.node1", {"logSeverityScreen": "Debug", "somethingPassword": STORED})
        yield made


@contextmanager
def running(node: KubeNode) -> Iterator[int]:
    with open(node.root / "node.log", "ab") as log:
        process = subprocess.Popen(
            command(node, "nodeagent", "run"), cwd=ROOT, env=environment(node), stderr=log, stdout=log
        )
    try:
        bird = node.root / "bird" / "bird.cfg"
        try:
            until(
                lambda: bird.exists() and {PEER, MESH} <= set(re.findall("c4n4ry[-a-z0-9]*", bird.read_text())),
                "BIRD has the passwords",
                90,
            )
            until(lambda: read_status(f"{node.root}/run").get("synced"), "the agent has synced", 60)
            node.await_server(process)
        except AssertionError as e:
            why = why_not_ready(read_status(f"{node.root}/run"), since_boot())
            raise AssertionError(f"{e}: {why}\n{(node.root / 'node.log').read_text()}") from None
        yield process.pid
    finally:
        process.terminate()
        process.wait(60)


def test_no_secret_leaves_a_node(canary_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    etc, archive = configuration_files(canary_node.root), canary_node.root / "diags.tar.gz"
    said = {"start-up": run(canary_node, "nodeagent", "-startup")}
    with running(canary_node):
        canary_node.kube.create_pod(canary_node.namespace, "web-0", "node1")
        pod = make_pod_ns()
        own = {"kubernetes": {"kubeconfig": str(canary_node.root / "kubeconfig")}, "log_level": "debug"}
        assert canary_node.pod_call("ADD", "web-0", "1" * 64, pod.path, **own).ok
        assert canary_node.pod_call("DEL", "web-0", "1" * 64, pod.path, **own).ok
        for flags in (("-felix-ready", "-bird-ready"), ("-show-status",), ("-bird-live",)):
            said[" ".join(flags)] = run(canary_node, "nodeagent", *flags)
        said["status"] = run(canary_node, "ctl", "node", "status")
        for port in (9091, 9099):
            program = f"import urllib.request as r; print(r.urlopen('http://127.0.0.1:{port}/metrics').read().decode())"
            said[str(port)] = canary_node.host.run(sys.executable, "-c", program, check=False).stdout
        inside = ("unshare", "-m", "sh", "-c", f'mount --bind {etc} /etc && exec "$@"', "sh")
        said["diags"] = run(canary_node, "ctl", "node", "diags", "-o", str(archive), wrap=inside)
        said["cluster diags"] = run(
            canary_node, "ctl", "cluster", "diags", "-o", str(canary_node.root / "cluster.tar.gz")
        )
        arguments = arguments_in(canary_node.host)
    assert any(name.startswith("bird") for name in arguments), arguments
    said |= {f"arguments of {process}": text for process, text in arguments.items()}
    said["what was executed"] = (canary_node.root / "trace").read_text()
    assert "bird" in said["what was executed"] and "credentials" in said["what was executed"]
    for what, text in said.items():
        assert not leaks(text), (what, leaks(text))
    for path in (archive, canary_node.root / "cluster.tar.gz"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        texts = unpacked(path)
        for name, text in texts.items():
            assert not leaks(text), (path.name, name, leaks(text))
    texts = unpacked(archive)
    for name in (
        "config/cni/10-calico.conflist",
        "config/calico/calico-node.env",
        "config/bird/bird.cfg",
        "config/environment",
    ):
        assert "hidden" in texts[name], (name, texts[name])
    on_disk(canary_node)


def require_passwords(url: str) -> None:
    import grpc

    with grpc.insecure_channel(url.removeprefix("http://")) as channel:
        admin.enable(channel, ETCD)


@pytest.mark.etcd
def test_no_secret_of_etcd_leaves_a_node(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> None:
    """Also when it is refused, and when nobody answers."""
    add_card(host_ns, "eth0", "10.0.0.5/24")
    with etcd_in(host_ns, tmp_path) as member, kube_node(kube, host_ns, tmp_path) as node, forks_in(host_ns) as forks:
        kubeconfig(node)
        forks.call(require_passwords, member.client_url)
        said = {}
        ways = {
            "accepted": {"ETCD_USERNAME": "root", "ETCD_PASSWORD": ETCD},
            "refused": {"ETCD_USERNAME": "root", "ETCD_PASSWORD": FILE},
            "in the address": {"ETCD_ENDPOINTS": f"http://root:{ETCD}@127.0.0.1:2379"},
            "not answered": {
                "ETCD_ENDPOINTS": f"http://root:{ETCD}@127.0.0.1:1",
                "ETCD_USERNAME": "",
                "ETCD_PASSWORD": "",
            },
        }
        for way, changes in ways.items():
            more = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.client_url, **changes}
            said[f"{way}: start-up"] = run(node, "nodeagent", "-startup", **more)
            said[f"{way}: calicoctl"] = run(node, "ctl", "get", "node", "-o", "yaml", **more)
            archive = tmp_path / f"{way.replace(' ', '-')}.tar.gz"
            said[f"{way}: diags"] = run(node, "ctl", "node", "diags", "-o", str(archive), **more)
            said |= {f"{way}: {name}": text for name, text in unpacked(archive).items()}
        assert "is set up" in said["accepted: start-up"] and "node1" in said["accepted: calicoctl"], said
        said["what was executed"] = (tmp_path / "trace").read_text()
        for what, text in said.items():
            assert not leaks(text), (what, leaks(text))


def unpacked(path: Path) -> dict[str, str]:
    texts = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                texts[member.name.partition("/")[2]] = file.read().decode(errors="replace")
    return texts


def on_disk(node: KubeNode) -> None:
    """What needs a secret has it, for root alone; nobody else."""
    ours = {node.root / name for name in ("kubeconfig", "credentials")} | set((node.root / "etc").rglob("*"))
    for path in node.root.rglob("*"):
        if (
            not path.is_file()
            or path.is_symlink()
            or path in ours
            or not leaks(path.read_bytes().decode(errors="replace"))
        ):
            continue
        assert path.is_relative_to(node.root / "bird"), path
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
