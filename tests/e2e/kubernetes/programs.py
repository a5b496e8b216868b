"""Long-running programs as processes beside a real API server: controllers, relays, agents."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import BIN, Cluster, free_port
from tests.e2e.kubernetes.roles import documents
from tests.netns.namespaces import Namespace

KUBERNETES_CONTROLLERS = "namespace,garbagecollector,daemonset,deployment,replicaset"


class ControllersProcess:
    """The executable from its sources; ``port`` is where its metrics are."""

    def __init__(self, kube: Cluster, directory: Path, **environ: str) -> None:
        self.status = directory / "status.json"
        self.log = directory / "log"
        self.environ = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": kube.kubeconfig("controllers-token"),
            "LOG_LEVEL": "debug",
            **environ,
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cni_calico.controllers.main", "-status-file", str(self.status)],
                env=self.environ,
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )

    def check_status(self) -> tuple[int, str]:
        code = (
            "import sys; sys.argv[0] = 'check-status'; from cni_calico.controllers.main import main; sys.exit(main())"
        )
        command = [sys.executable, "-c", code, "-r", "-f", str(self.status)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.strip()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(15)


@contextmanager
def controllers(kube: Cluster, directory: Path, **environ: str) -> Iterator[ControllersProcess]:
    directory.mkdir(exist_ok=True)
    process = ControllersProcess(kube, directory, **environ)
    try:
        yield process
    except BaseException:
        sys.stderr.write(process.log.read_text())
        raise
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


def on_etcd(kube: Cluster, **environ: str) -> dict[str, str]:
    return {
        "ETCD_ENDPOINTS": f"http://127.0.0.1:{kube.etcd_port}",
        "ENABLED_CONTROLLERS": "policy,profile,serviceaccount,workloadendpoint,node",
        **environ,
    }


class RelayProcess:
    """calico-typha; ``port`` 0: any that is free."""

    def __init__(self, kube: Cluster, certificates: Path, port: int = 0, **environ: str) -> None:
        self.port, self.health, self.metrics = port or free_port(), free_port(), free_port()
        self.log = certificates / "relay.log"
        settings = {
            "KUBECONFIG": kube.kubeconfig(),
            "TYPHA_SERVERHOST": "127.0.0.1",
            "TYPHA_SERVERPORT": str(self.port),
            "TYPHA_SERVERCERTFILE": str(certificates / "server.crt"),
            "TYPHA_SERVERKEYFILE": str(certificates / "server.key"),
            "TYPHA_CAFILE": str(certificates / "ca.crt"),
            "TYPHA_CLIENTCN": "typha-client",
            "TYPHA_HEALTHENABLED": "true",
            "TYPHA_HEALTHPORT": str(self.health),
            "TYPHA_PROMETHEUSMETRICSENABLED": "true",
            "TYPHA_PROMETHEUSMETRICSHOST": "127.0.0.1",
            "TYPHA_PROMETHEUSMETRICSPORT": str(self.metrics),
        }
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "cni_calico.relay.main"]
            environment = {**os.environ, **settings, **environ}
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def page(self, port: int, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as e:
            return e.code, e.read().decode()
        except OSError as e:
            return 0, str(e)

    def await_ready(self) -> None:
        until(lambda: self.page(self.health, "/readiness") == (200, "ok\n"), "the relay", 60)

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def agent_environ(kube: Cluster, root: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATASTORE_TYPE": "kubernetes",
        "KUBECONFIG": kube.kubeconfig("node-token"),
        "NODENAME": "node1",
        "IP": "10.99.0.1/24",
        "CALICO_IPV4POOL_CIDR": "10.68.0.0/16",
        "CALICO_STATE_DIR": str(root / "state"),
        "CALICO_RUN_DIR": str(root / "run"),
        "CALICO_LOG_DIR": str(root / "log"),
        "CALICO_BIRD_CONFIG_DIR": str(root / "bird"),
        "CALICO_NODENAME_FILE": str(root / "nodename"),
        "FELIX_ENDPOINTSTATUSPATHPREFIX": str(root / "run"),
        "CALICO_JANITOR": janitor_setting(),
    }


def janitor_setting() -> str:
    """Whether the DaemonSet's agents are candidates: both manifests have the Deployment that is the janitor."""
    said = set()
    for name in ("calico.yaml", "calico-etcd.yaml"):
        [daemons] = documents(name, "DaemonSet")
        containers = daemons["spec"]["template"]["spec"]["containers"]
        said |= {one["value"] for each in containers for one in each["env"] if one["name"] == "CALICO_JANITOR"}
    [setting] = said
    return str(setting)


def agent_command(host: Namespace) -> list[str]:
    return ["nsenter", f"--net={host.path}", sys.executable, "-m", "cni_calico.nodeagent.main"]


def run_agent(host: Namespace, environ: dict[str, str], flag: str) -> None:
    done = subprocess.run([*agent_command(host), flag], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def lay_out_sources(root: Path) -> None:
    """The image's programs, by whose names it knows its part, as scripts."""
    programs = root / "usr" / "bin"
    programs.mkdir(parents=True)
    for name in ("kube-controllers", "check-status", "wrapper", "calico"):
        program = programs / name
        program.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\nsys.argv[0] = {name!r}\n"
            "from cni_calico.controllers.main import main\nsys.exit(main())\n"
        )
        program.chmod(0o755)


@contextmanager
def kubernetes_controllers(cluster: Cluster, log: Path) -> Iterator[None]:
    """Kubernetes' own, of what the operator leaves."""
    command = [
        BIN / "kube-controller-manager",
        f"--kubeconfig={cluster.kubeconfig()}",
        f"--controllers={KUBERNETES_CONTROLLERS}",
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen([*command, "--leader-elect=false", "--secure-port=0"], stdout=out, stderr=out)
    try:
        yield
    finally:
        process.kill()
        process.wait()
