"""A real API server with its etcd, on loopback, for the tests: nothing but these two programs, ended by their pids.

Rule: ports are the kernel's choice, everything lies in one temporary directory. Users are static tokens with the names
of the service accounts that the manifests make, so that a test runs with exactly their rights; the audit log says who
asked for what.
"""

from __future__ import annotations

import atexit
import base64
import ctypes
import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreError
from cni_calico.model.access import CRD_ROOT, NATIVE_GROUP, KubernetesAccess
from manifests import kinds
from tests.conftest import LAB_CACHE

BIN = LAB_CACHE / "bin"
ADMIN = "admin"
CNI_USER = "system:serviceaccount:kube-system:calico-cni-plugin"
NODE_USER = "system:serviceaccount:kube-system:calico-node"
CONTROLLERS_USER = "system:serviceaccount:kube-system:calico-kube-controllers"
# token -> (user, groups)
USERS = {
    "admin-token": (ADMIN, "system:masters"),
    "cni-token": (CNI_USER, "system:serviceaccounts"),
    "node-token": (NODE_USER, "system:serviceaccounts"),
    "controllers-token": (CONTROLLERS_USER, "system:serviceaccounts"),
    "nobody-token": ("nobody", "nobodies"),
}
_AUDIT = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n"


NATIVE_ROOT = f"/apis/{NATIVE_GROUP}"


def plurals_of(root: str) -> list[str]:
    """The types of one of Calico's groups."""
    return [(kind if root == CRD_ROOT else kinds.native(kind)).plural for kind in kinds.KINDS]


class NotStarted(RuntimeError):
    """A program ended, or did not answer, while it started."""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _wait(condition: Any, what: str, process: subprocess.Popen[bytes], log: Path, *, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            if condition():
                return
        except OSError:
            pass
        select_pause()
    raise NotStarted(f"{what} does not come up:\n" + log.read_text(errors="replace")[-3000:])


def select_pause() -> None:
    """50 ms between two looks at a program that is starting."""
    import select

    select.select([], [], [], 0.05)


class Cluster:
    """Addresses and credentials of a running API server."""

    def __init__(self, directory: Path, flags: Sequence[str] = ()) -> None:
        self.flags = tuple(flags)  # of the API server, besides
        self.directory = directory
        self._choose_ports()
        self.ca = str(directory / "ca.crt")
        self.audit = directory / "audit.log"
        self.kubectl_path = str(BIN / "kubectl")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.is_paused = False

    def _choose_ports(self) -> None:
        self.port, self.etcd_port = free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"

    # -- clients ------------------------------------------------------------------------------------------------------

    def access(self, token: str = "admin-token", **changes: Any) -> KubernetesAccess:
        return KubernetesAccess(api_root=self.url, token=token, certificate_authority=self.ca, **changes)

    def api(self, token: str = "admin-token") -> KubernetesAPI:
        return KubernetesAPI(self.access(token))

    def store(self, token: str = "admin-token", **options: Any) -> KubernetesStore:
        return KubernetesStore(self.access(token), **options)

    def kubeconfig(self, token: str = "admin-token", **user: Any) -> str:
        """The path of a kubeconfig for that user."""
        path = self.directory / f"{token}-{len(user)}.kubeconfig"
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": self.url, "certificate-authority": self.ca}}],
            "users": [{"name": "u", "user": user or {"token": token}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        text = json.dumps(document)
        if not path.exists() or path.read_text() != text:  # calls side by side may be reading it
            path.write_text(text)
        return str(path)

    def kubectl(self, *arguments: str, stdin: str = "", token: str = "admin-token", check: bool = True) -> str:
        command = [self.kubectl_path, f"--kubeconfig={self.kubeconfig(token)}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}: {done.stderr}")
        return done.stdout + ("" if check else done.stderr)

    def request(self, method: str, path: str, body: Any = None, *, content_type: str = "application/json") -> Any:
        """As admin; the answer's document. Raises DatastoreError."""
        api = self.api()
        try:
            deadline = Deadline.after(30)
            return api.send(
                ApiRequest(method, path, f"{method} {path}", body=body, content_type=content_type), deadline
            ).document
        finally:
            api.close()

    # -- content ------------------------------------------------------------------------------------------------------

    def apply_definitions(self, root: str = CRD_ROOT) -> None:
        """The custom resource definitions of one of Calico's groups, and wait until they can be used."""
        definition = kinds.definition if root == CRD_ROOT else kinds.native_definition
        for kind in kinds.KINDS:
            self.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
        api = self.api()
        for plural in plurals_of(root):
            self.until_served(api, f"{root}/{plural}")
        api.close()

    def until_served(self, api: KubernetesAPI, path: str) -> None:
        until, doing = Deadline.after(60), f"see {path}"
        while api.send(ApiRequest("GET", f"{path}?limit=1", doing, expect=(404,)), until).status == 404:
            select_pause()

    def empty(self, root: str = CRD_ROOT) -> None:
        """Delete every record of Calico's, its agents' election, and every node and pod; a server that has ended by
        itself is started again first. What is there the server's etcd says at once: a list of each kind costs each
        test a tenth of a second of the processor.
        """
        self.revive()
        group = root.split("/")[2]
        held = self.held(f"{group}/", "minions/", "pods/", "leases/kube-system/calico-janitor")
        for plural in sorted(
            {key.split("/")[1] for key in held if key.startswith(f"{group}/")} & set(plurals_of(root))
        ):
            path = f"{root}/{plural}"
            found = self.request("GET", path)["items"]
            for namespace in {obj["metadata"].get("namespace", "") for obj in found}:
                self.request("DELETE", f"{root}/namespaces/{namespace}/{plural}" if namespace else path)
            for obj in self.request("GET", path)["items"] if found else ():  # whoever would take the finalizer is gone
                metadata = obj["metadata"]
                at = f"{root}/namespaces/{metadata['namespace']}/{plural}" if "namespace" in metadata else path
                self.request("PUT", f"{at}/{metadata['name']}", {**obj, "metadata": {**metadata, "finalizers": []}})
        for kind, _, name in (key.partition("/") for key in held):
            if kind == "pods":
                namespace, _, pod = name.partition("/")
                self.delete_pod({"metadata": {"namespace": namespace, "name": pod}})
            elif kind == "minions":
                self.request("DELETE", f"/api/v1/nodes/{name}")
            elif kind == "leases":
                self.request("DELETE", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/calico-janitor")

    def held(self, *prefixes: str) -> list[str]:
        """The keys below these that the server's etcd has, without "/registry/"."""
        reads = []
        for prefix in prefixes:
            first = f"/registry/{prefix}".encode()
            ends = (first, first[:-1] + bytes([first[-1] + 1]))
            key, end = (base64.b64encode(one).decode() for one in ends)
            reads.append({"request_range": {"key": key, "range_end": end, "keys_only": True}})
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.etcd_port}/v3/kv/txn", json.dumps({"success": reads}).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            answers = json.load(answer)["responses"]
        keys = [item["key"] for one in answers for item in one["response_range"].get("kvs", ())]
        return [base64.b64decode(key).decode().removeprefix("/registry/") for key in keys]

    def delete_pod(self, obj: dict[str, Any]) -> None:
        metadata = obj["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self.request("DELETE", path, {"gracePeriodSeconds": 0})

    def ensure_namespace(self, name: str, **metadata: Any) -> None:
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, **metadata}}
        self.ensure("/api/v1/namespaces", body)

    def ensure(self, path: str, body: dict[str, Any]) -> None:
        """Create an object that may be there already."""
        try:
            self.request("POST", path, body)
        except DatastoreError:
            self.request("GET", f"{path}/{body['metadata']['name']}")

    def create_node(self, name: str, **fields: Any) -> Any:
        metadata = {"name": name, **fields.pop("metadata", {})}
        return self.request(
            "POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata, **fields}
        )

    def create_pod(self, namespace: str, name: str, node: str, *, spec: Any = None, **metadata: Any) -> Any:
        """A pod that is bound to a node; no kubelet touches it."""
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {"nodeName": node, "containers": [{"name": "c", "image": "none"}], **(spec or {})},
        }
        return self.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    def read_pod(self, namespace: str, name: str) -> Any:
        return self.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}")

    # -- what was asked -----------------------------------------------------------------------------------------------

    def audited(self, since: int = 0) -> list[dict[str, Any]]:
        """The audit log's events, from a number of them on."""
        lines = self.audit.read_text().splitlines()[since:] if self.audit.exists() else []
        return [json.loads(line) for line in lines]

    # -- running ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._certificates()
        rows = [f"{token},{user},{i},{groups}" for i, (token, (user, groups)) in enumerate(USERS.items())]
        (self.directory / "tokens.csv").write_text("\n".join(rows) + "\n")
        (self.directory / "audit.yaml").write_text(_AUDIT)
        for left in (2, 1, 0):
            try:
                self.start_etcd()
                self.start_apiserver()
                return
            except NotStarted as e:  # another program took a port between its choice and its use
                self.stop_all()
                if not left:
                    raise
                sys.stderr.write(f"{e}\nonce more, with other ports\n")
                shutil.rmtree(self.directory / "etcd", ignore_errors=True)
                self._choose_ports()

    def revive(self) -> None:
        """Start again what has ended by itself, and show its last words."""
        for program, start in (("etcd", self.start_etcd), ("kube-apiserver", self.start_apiserver)):
            process = self.processes.get(program)
            if process is not None and process.poll() is not None:
                words = (self.directory / f"{program}.log").read_text(errors="replace")[-3000:]
                sys.stderr.write(f"{program} ended with {process.returncode}:\n{words}\n")
                start()

    def start_etcd(self) -> None:
        peer = free_port()
        url = f"http://127.0.0.1:{self.etcd_port}"
        self._start(
            "etcd",
            f"--data-dir={self.directory}/etcd",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--log-level=error",
        )
        self._await("etcd", lambda: _answers(f"{url}/health"))

    def start_apiserver(self) -> None:
        d = self.directory
        self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            f"--secure-port={self.port}",
            f"--tls-cert-file={d}/server.crt",
            f"--tls-private-key-file={d}/server.key",
            f"--client-ca-file={d}/ca.crt",
            f"--token-auth-file={d}/tokens.csv",
            f"--service-account-key-file={d}/accounts.pub",
            f"--service-account-signing-key-file={d}/accounts.key",
            f"--service-account-issuer={self.url}",
            "--service-cluster-ip-range=10.96.0.0/16,fd96::/112",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
            f"--audit-log-path={self.audit}",
            f"--audit-policy-file={d}/audit.yaml",
            "--profiling=false",
            *self.flags,
        )
        self._await("kube-apiserver", self._ready)

    def _ready(self) -> bool:
        import ssl

        context = ssl.create_default_context(cafile=self.ca)
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": "Bearer admin-token"})
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return bool(answer.status == 200)

    def _start(self, program: str, *arguments: str) -> None:
        with (self.directory / f"{program}.log").open("ab") as log:
            self.processes[program] = subprocess.Popen(
                [str(BIN / program), *arguments],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                preexec_fn=_die_with_parent,
            )

    def _await(self, program: str, condition: Any) -> None:
        _wait(condition, program, self.processes[program], self.directory / f"{program}.log")

    def pause(self) -> None:
        """Stop its programs where they are: an API server that nobody asks takes two per cent of a processor."""
        self.is_paused = True
        for process in self.processes.values():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on, if they were paused, and wait until they answer."""
        if self.is_paused:
            self.is_paused = False
            for process in self.processes.values():
                process.send_signal(signal.SIGCONT)
            self._await("kube-apiserver", self._ready)

    def stop(self, program: str) -> None:
        process = self.processes.pop(program, None)
        if process is not None:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        for program in ("kube-apiserver", "etcd"):
            self.stop(program)

    def _certificates(self) -> None:
        d = self.directory
        (d / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n")
        (d / "client").write_text("extendedKeyUsage=clientAuth\n")
        _openssl(d, "genrsa -out accounts.key 2048", "rsa -in accounts.key -pubout -out accounts.pub")
        _openssl(
            d,
            "ecparam -name prime256v1 -genkey -noout -out ca.key",
            "req -x509 -new -key ca.key -subj /CN=test-ca -days 30 -out ca.crt "
            "-addext basicConstraints=critical,CA:TRUE",
        )
        for name, subject, extensions in (("server", "/CN=kube-apiserver", "san"), ("cert", "/CN=cert-user", "client")):
            _openssl(
                d,
                f"ecparam -name prime256v1 -genkey -noout -out {name}.key",
                f"req -new -key {name}.key -subj {subject} -out {name}.csr",
                f"x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 "
                f"-extfile {extensions} -out {name}.crt",
            )


def _die_with_parent() -> None:
    """A test run that is killed leaves no server behind (prctl PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _openssl(directory: Path, *commands: str) -> None:
    for command in commands:
        done = subprocess.run(["openssl", *command.split()], cwd=directory, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"openssl {command}: {done.stderr}")


def _answers(url: str) -> bool:
    with urllib.request.urlopen(url, timeout=2) as answer:
        return bool(answer.status == 200)


@contextmanager
def running_cluster(*flags: str) -> Iterator[Cluster]:
    """A cluster of one's own: API server and etcd, without any of Calico's resources; with more flags of the former."""
    directory = Path(tempfile.mkdtemp(prefix="cct-kube-"))
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, directory, ignore_errors=True)
        cluster = Cluster(directory, flags)
        undo.callback(cluster.stop_all)
        cluster.start()
        yield cluster


_SHARED: dict[str, Cluster] = {}  # by the root of its definitions


def shared_cluster() -> Cluster:
    """One cluster with the custom resource definitions for all tests of this process; it ends with the process, and is
    paused between files that use it.
    """
    return _shared(CRD_ROOT)


def native_cluster() -> Cluster:
    """The same for clusters that have the definitions of projectcalico.org/v3 and no others of Calico's."""
    return _shared(NATIVE_ROOT)


def _shared(root: str) -> Cluster:
    if root not in _SHARED:
        undo = ExitStack()
        atexit.register(undo.close)
        cluster = undo.enter_context(running_cluster())
        cluster.apply_definitions(root)
        _SHARED[root] = cluster
    _SHARED[root].resume()
    return _SHARED[root]


def pause_shared() -> None:
    for cluster in _SHARED.values():
        cluster.pause()


def resume_shared() -> None:
    for cluster in _SHARED.values():
        cluster.resume()


def read(cluster: Cluster, *words: str) -> Any:
    """What ``kubectl get`` says."""
    return json.loads(cluster.kubectl("get", *words, "-o", "json"))
