"""etcd's certificates are replaced under a running server: nobody has to restart it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.datastore.etcd.cluster import FILES_S
from cni_calico.model.access import DatastoreConfig
from tests.contract.etcd_process import Member
from tests.e2e.etcd.certificates import Authority, make_authority
from tests.e2e.forks import forks_in
from tests.e2e.host import EtcdNode
from tests.e2e.served import call
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.etcd]
URL, PEER = "https://127.0.0.1:2379", "http://127.0.0.1:2380"


class Secured:
    """A node and its etcd, both with files of one authority in ``files``, which can be replaced."""

    def __init__(self, host: Namespace, root: Path) -> None:
        self.files = root / "tls"
        self.files.mkdir()
        self._served = root / "served"
        self._served.mkdir()
        served = {name: str(self._served / name) for name in ("server.crt", "server.key", "ca.crt")}
        arguments = ["--cert-file", served["server.crt"], "--key-file", served["server.key"]]
        arguments += ["--trusted-ca-file", served["ca.crt"], "--client-cert-auth"]
        prefix = ("nsenter", f"--net={host.path}")
        self.etcd = Member("one", URL, PEER, root, arguments, prefix)
        config = DatastoreConfig(
            "etcdv3",
            etcd_endpoints=(URL,),
            etcd_key_file=str(self.files / "client.key"),
            etcd_cert_file=str(self.files / "client.crt"),
            etcd_ca_cert_file=str(self.files / "ca.crt"),
        )
        self.node = EtcdNode(host, root, config, etcd=self.etcd)

    def give_etcd(self, authority: Authority) -> None:
        """etcd's own files, and whose clients it accepts; it reads them when it starts."""
        certificate, key = authority.issue("server", "etcd", "serverAuth", "IP:127.0.0.1")
        shutil.copy(certificate, self._served / "server.crt")
        shutil.copy(key, self._served / "server.key")
        shutil.copy(authority.certificate, self._served / "ca.crt")

    def give_node(self, authority: Authority) -> None:
        """The files that the network configuration names, each replaced as a whole."""
        certificate, key = authority.issue("client", "calico", "clientAuth")
        sources = {"client.crt": certificate, "client.key": key, "ca.crt": authority.certificate}
        for name, source in sources.items():
            fresh = self.files / f"{name}.fresh"
            shutil.copy(source, fresh)
            fresh.rename(self.files / name)

    def restart_etcd(self) -> None:
        self.etcd.stop()
        self.etcd.start(f"one={PEER}", "existing")
        self.etcd.wait_serving()


@pytest.fixture
def secured_node(host_ns: Namespace, tmp_path: Path) -> Iterator[Secured]:
    made = Secured(host_ns, tmp_path)
    authority = make_authority(tmp_path / "first", "first")
    made.give_etcd(authority)
    made.give_node(authority)
    (tmp_path / "run").mkdir()
    made.etcd.start(f"one={PEER}")
    try:
        made.etcd.wait_serving()
        with forks_in(host_ns) as made.node.forks:
            made.node.apply_pools()
            yield made
    finally:
        made.etcd.stop()


@pytest.mark.parametrize("mounts", ["its callers' mounts", "mounts of its own"])
@pytest.mark.slow_on("its callers' mounts")
def test_authority_and_certificates_are_replaced(secured_node: Secured, make_pod_ns, tmp_path: Path, mounts: str):
    """The old ones are refused from one moment to the next, as when they expire."""
    node, second = secured_node.node, make_authority(tmp_path / "second", "second")
    pods = [make_pod_ns() for _ in range(3)]
    hidden = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs none {secured_node.files} && exec "$@"', "sh"]
    with node.server(wrap=hidden if mounts == "mounts of its own" else ()) as process:
        assert call(node, "ADD", "c0", pods[0].path).ok
        secured_node.give_etcd(second)
        secured_node.restart_etcd()
        refused = call(node, "ADD", "c1", pods[1].path)
        assert not refused.ok and URL in refused.document["msg"], refused
        secured_node.give_node(second)
        assert call(node, "ADD", "c1", pods[1].path).ok, "the very next call"
        assert call(node, "ADD", "c2", pods[2].path).ok
        assert all(call(node, "DEL", f"c{i}", pod.path).ok for i, pod in enumerate(pods))
        assert process.poll() is None
        assert node.metrics()['calico_cni_requests_total{verb="ADD",result="ok"}'] == 3, "all of them served"
    assert not node.leftovers()


def test_files_that_are_replaced_before_etcd_is(secured_node: Secured, make_pod_ns, tmp_path: Path):
    """With both authorities in the file the connection goes on while the files change one after the other."""
    node, second = secured_node.node, make_authority(tmp_path / "second", "second")
    first = (secured_node.files / "ca.crt").read_text()
    pods = [make_pod_ns() for _ in range(2)]
    with node.server():
        assert call(node, "ADD", "c0", pods[0].path).ok
        both = first + second.certificate.read_text()
        (secured_node.files / "ca.crt").write_text(both)
        secured_node.give_etcd(second)
        (secured_node._served / "ca.crt").write_text(both)
        secured_node.restart_etcd()
        assert call(node, "ADD", "c1", pods[1].path).ok, "the old certificate and the new authority"
        secured_node.give_node(second)
        (secured_node._served / "ca.crt").write_text(second.certificate.read_text())
        secured_node.restart_etcd()
        assert all(call(node, "DEL", f"c{i}", pod.path).ok for i, pod in enumerate(pods))
    assert not node.leftovers()


def test_files_that_do_not_fit_together_for_a_moment(secured_node: Secured, make_pod_ns, tmp_path: Path):
    """Whoever replaces them may be slow: the certificate is the new one, the key not yet. The connection goes on."""
    node, authority = secured_node.node, Authority(tmp_path / "first")
    pod = make_pod_ns()
    with node.server():
        assert call(node, "ADD", "c0", pod.path).ok
        certificate, key = authority.issue("renewed", "calico", "clientAuth")
        shutil.copy(certificate, secured_node.files / "client.crt")
        until = time.monotonic() + 2 * FILES_S
        while time.monotonic() < until:
            assert call(node, "DEL", "c0", pod.path).ok and call(node, "ADD", "c0", pod.path).ok
        shutil.copy(key, secured_node.files / "client.key")
        secured_node.restart_etcd()
        assert call(node, "DEL", "c0", pod.path).ok
    assert not node.leftovers()
