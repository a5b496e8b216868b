"""From kubeconfig files, inline values and service accounts to a server and credentials."""

from __future__ import annotations

import json
import os
import threading
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.login import (
    Login,
    parse_url,
    read_login,
    read_servers,
    runs_program,
)
from cni_calico.datastore.kubernetes.trust import server_of
from cni_calico.deadline import Deadline
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import DatastoreDenied, DeadlineExceeded
from cni_calico.model.access import KubernetesAccess
from tests.deadlines import SOON, until

SECRET = "s3cret-value"


def config(user: dict[str, Any] | None = None, **cluster: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.96.0.1:443", **cluster}}],
        "users": [{"name": "u", "user": user or {"token": SECRET}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }


def login(tmp_path: Path, document: Any, **access: str) -> Login:
    file = tmp_path / "kubeconfig"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_login(KubernetesAccess(kubeconfig=str(file), **access), SOON)


def test_token_and_authority(tmp_path: Path) -> None:
    found = login(tmp_path, config(**{"certificate-authority-data": b64encode(b"PEM").decode()}))
    assert (found.url, found.ca, found.authorization) == ("https://10.96.0.1:443", b"PEM", f"Bearer {SECRET}")


def test_the_server_alone(tmp_path: Path) -> None:
    """No credential program runs for it, and nothing is said about a file that cannot be used."""
    file = tmp_path / "kubeconfig"
    file.write_text(json.dumps(config({"exec": {"command": "/nonexistent"}})))
    access = KubernetesAccess(kubeconfig=str(file))
    assert read_servers(access, environ={}) == ("https://10.96.0.1:443",)
    assert read_servers(access, environ={"KUBERNETES_SERVICE_HOST": "10.96.0.1"}) == ()
    assert read_servers(KubernetesAccess(kubeconfig=str(file), context="y"), environ={}) == ()
    assert read_servers(KubernetesAccess(kubeconfig=str(tmp_path / "none")), environ={}) == ()
    assert read_servers(KubernetesAccess(api_root="192.0.2.1:6443"), environ={}) == ("192.0.2.1:6443",)
    assert read_servers(KubernetesAccess(), environ={"KUBERNETES_SERVICE_HOST": "192.0.2.1"}) == ()


def test_yaml_as_upstream_writes_it(tmp_path: Path) -> None:
    text = """# Kubeconfig file for Calico CNI plugin.
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://[fd96::1]:443
    certificate-authority-data: "UEVN"
users:
- name: calico
  user:
    token: "abc.def"
contexts:
- name: calico-context
  context:
    cluster: local
    user: calico
current-context: calico-context
"""
    found = login(tmp_path, text)
    assert (found.url, found.ca, found.authorization) == ("https://[fd96::1]:443", b"PEM", "Bearer abc.def")


def test_files_are_relative_to_the_kubeconfig_and_win_over_the_token(tmp_path: Path) -> None:
    for name in ("ca", "crt", "key", "token"):
        (tmp_path / name).write_text(f"{name}-text\n")
    user = {"client-certificate": "crt", "client-key": str(tmp_path / "key"), "tokenFile": "token", "token": "old"}
    found = login(tmp_path, config(user, **{"certificate-authority": "ca"}))
    assert (found.ca, found.certificate, found.key) == (b"ca-text\n", b"crt-text\n", b"key-text\n")
    assert found.authorization == "Bearer token-text"


def test_name_and_password(tmp_path: Path) -> None:
    assert login(tmp_path, config({"username": "a", "password": "b"})).authorization == "Basic YTpi"


def test_other_fields_of_the_cluster(tmp_path: Path) -> None:
    fields = {"insecure-skip-tls-verify": True, "tls-server-name": "kubernetes", "proxy-url": "http://proxy:3128"}
    found = login(tmp_path, config(**fields))
    server = server_of(found)
    assert found.insecure and server.server_name == "kubernetes" and server.proxy == ("proxy", 3128)
    assert server.tls is not None and not server.tls.check_hostname


def test_inline_values_win(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("own")
    changes = {"api_root": "http://a:8080", "token": "t", "certificate_authority": str(tmp_path / "ca")}
    found = login(tmp_path, config(), **changes)
    assert (found.url, found.ca, found.authorization) == ("http://a:8080", b"own", "Bearer t")


def test_first_of_several_files_wins_and_the_others_add(tmp_path: Path) -> None:
    first, second = config({"token": "one"}), config({"token": "two"})
    del first["clusters"], first["current-context"]
    for name, document in (("a", first), ("b", second)):
        (tmp_path / name).write_text(json.dumps(document))
    found = read_login(KubernetesAccess(kubeconfig=f"{tmp_path}/a:{tmp_path}/b"), SOON)
    assert (found.url, found.authorization) == ("https://10.96.0.1:443", "Bearer one")


def test_in_a_pod() -> None:
    files = {f"{SERVICE_ACCOUNT_DIR}/token": b" abc\n", f"{SERVICE_ACCOUNT_DIR}/ca.crt": b"PEM"}
    environ = {"KUBERNETES_SERVICE_HOST": "fd96::1", "KUBERNETES_SERVICE_PORT": "443"}
    found = read_login(KubernetesAccess(), SOON, read=files.__getitem__, environ=environ)
    assert (found.url, found.ca, found.authorization) == ("https://[fd96::1]:443", b"PEM", "Bearer abc")
    with pytest.raises(DatastoreDenied, match="no kubeconfig, no API root, and not in a pod"):
        read_login(KubernetesAccess(), SOON, environ={})


VERSION = "client.authentication.k8s.io/v1"


def program(script: str, **more: object) -> dict:
    """An exec section that runs a shell script."""
    call = {"apiVersion": VERSION, "command": "/bin/sh", "args": ["-c", script], "interactiveMode": "Never"}
    return {"exec": {**call, **more}}


def answered(**status: str) -> str:
    document = {"apiVersion": VERSION, "kind": "ExecCredential", "status": status}
    return f"cat <<'END'\n{json.dumps(document)}\nEND"


def test_a_programs_token(tmp_path: Path) -> None:
    found = login(tmp_path, config(program(answered(token="from-plugin"))))
    assert (found.url, found.authorization) == ("https://10.96.0.1:443", "Bearer from-plugin")


def test_a_program_is_given_its_environment_and_the_cluster(tmp_path: Path) -> None:
    script = 'printf "%s\\n%s" "$MINE" "$KUBERNETES_EXEC_INFO" > given; ' + answered(token="t")
    own = {"env": [{"name": "MINE", "value": "yes"}], "provideClusterInfo": True}
    (tmp_path / "helper").write_text(f"#!/bin/sh\ncd {tmp_path}\n{script}\n")
    (tmp_path / "helper").chmod(0o755)
    login(tmp_path, config(program("", command="./helper", **own)))
    mine, info = (tmp_path / "given").read_text().split("\n", 1)
    assert mine == "yes"
    assert json.loads(info)["apiVersion"] == VERSION
    assert json.loads(info)["spec"]["cluster"]["server"] == "https://10.96.0.1:443"


@pytest.mark.parametrize(
    ("section", "cause"),
    [
        (program("echo " + SECRET + " >&2; exit 3"), "ended with status 3"),
        (program("echo " + SECRET), "returned none"),
        (program(answered()), "returned none"),
        (program("echo '" + "[" * 100_000 + "'"), "returned none"),
        (program("kill -9 $$"), "killed by signal 9"),
        (program("", command="no-such-helper"), "there is no program no-such-helper"),
        (program("", apiVersion="v7"), "exec.apiVersion is not one of"),
        (program("", env=[SECRET]), "exec.env is not a list"),
        ({"exec": [SECRET]}, "exec is not a mapping"),
        (program("yes"), "wrote more than"),
    ],
)
def test_what_is_wrong_with_a_program_is_named_without_what_it_wrote(tmp_path: Path, section: dict, cause: str) -> None:
    with pytest.raises(DatastoreDenied, match=cause) as caught:
        login(tmp_path, config(section))
    assert SECRET not in str(caught.value) + caught.value.details


def test_a_program_that_hangs_ends_with_the_deadline_and_its_children(tmp_path: Path) -> None:
    script = f"sleep 1000 & echo $! > {tmp_path}/child; wait"
    (tmp_path / "kubeconfig").write_text(json.dumps(config(program(script))))
    with pytest.raises(DeadlineExceeded):
        read_login(KubernetesAccess(kubeconfig=str(tmp_path / "kubeconfig")), Deadline.after(0.5))
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_running(child), "the child ends")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_threads_wait_for_one_opening_each_until_its_own_deadline(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    (tmp_path / "kubeconfig").write_text(json.dumps(config(program(f"cat {gate} >&2; " + answered(token="late")))))
    api = KubernetesAPI(KubernetesAccess(kubeconfig=str(tmp_path / "kubeconfig")))
    opened: list[str] = []
    first = threading.Thread(target=lambda: opened.append(api.session(SOON).login.authorization))
    first.start()
    writing = os.open(gate, os.O_WRONLY)  # waits until the program reads
    with pytest.raises(DeadlineExceeded, match="did not come in time"):
        api.session(Deadline.after(0.05))
    os.close(writing)
    first.join()
    assert opened == ["Bearer late"]
    assert api.session(Deadline.after(0.05)).login.authorization == "Bearer late"
    api.close()


@pytest.mark.parametrize("text", ["[" * 50_000, "a: " + "{b: " * 50_000, "- " * 50_000])
def test_a_deeply_nested_kubeconfig_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(DatastoreDenied, match="deep"):
        read_login(KubernetesAccess(kubeconfig=str(tmp_path / "kubeconfig")), SOON)


@pytest.mark.parametrize("field", ["kubeconfig", "certificate_authority", "client_key"])
def test_a_fifo_in_the_place_of_a_file_is_refused(tmp_path: Path, field: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    access = {"api_root": "https://10.96.0.1", field: str(tmp_path / "fifo")}
    with pytest.raises(DatastoreDenied, match="not a regular file"):
        read_login(KubernetesAccess(**access), SOON)


@pytest.mark.parametrize(
    ("document", "cause"),
    [
        ("{[ " + SECRET, r"it is not YAML \(line \d\)"),
        ("- a\n", "it is not a mapping"),
        ({**config(), "users": []}, "users has no 'u'"),
        ({**config(), "users": {"name": SECRET}}, "users is not a list of mappings"),
        ({**config(), "current-context": "other"}, "contexts has no 'other'"),
        (config({"token": [SECRET]}), "token is not a text"),
        (config({"client-certificate-data": "%%%" + SECRET + "="}), "client-certificate-data is not base64"),
        (config({"tokenFile": "nowhere"}), "cannot read tokenFile .*nowhere: no such file"),
        (config(**{"certificate-authority": "nowhere"}), "cannot read certificate-authority .*nowhere: no such file"),
    ],
    ids=range(9),
)
def test_what_is_wrong_with_a_kubeconfig_is_named_without_its_secrets(
    tmp_path: Path, document: Any, cause: str
) -> None:
    with pytest.raises(DatastoreDenied, match=cause) as caught:
        login(tmp_path, document)
    assert SECRET not in f"{caught.value} {caught.value.details}"


def test_a_missing_kubeconfig_is_named() -> None:
    with pytest.raises(DatastoreDenied, match="cannot read kubeconfig /nowhere/calico-kubeconfig: no such file"):
        read_login(KubernetesAccess(kubeconfig="/nowhere/calico-kubeconfig"), SOON)


def test_secrets_are_in_no_representation(tmp_path: Path) -> None:
    assert SECRET not in repr(login(tmp_path, config())) + repr(KubernetesAccess(token=SECRET))


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://10.0.0.1:6443", ("https", "10.0.0.1", 6443, "")),
        ("https://api.example/k8s/clusters/c-1/", ("https", "api.example", 443, "/k8s/clusters/c-1")),
        ("http://localhost", ("http", "localhost", 80, "")),
        ("10.0.0.1:6443", ("https", "10.0.0.1", 6443, "")),
        ("https://[fd00::1]", ("https", "fd00::1", 443, "")),
        ("https://[fd00::1]:6443/x", ("https", "fd00::1", 6443, "/x")),
    ],
)
def test_urls(url: str, parts: tuple[str, str, int, str]) -> None:
    assert parse_url(url) == parts


@pytest.mark.parametrize("url", ["", "https://", "ftp://a", "https://a:b", "https://a:99999", "https://:443"])
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(DatastoreDenied):
        parse_url(url)


def test_certificates_that_are_none_are_denied() -> None:
    for wrong in ({"ca": b"no PEM"}, {"certificate": b"no PEM", "key": b"x"}):
        with pytest.raises(DatastoreDenied, match="cannot use the certificates for https://a"):
            server_of(Login("https://a", **wrong))


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ({"exec": {"command": "x"}}, True),
        ({"auth-provider": {"name": "oidc", "config": {"client-id": "exec"}}}, False),
        ({"token": "exec"}, False),
        ({"token": SECRET}, False),
        ({"exec": None, "token": "t"}, False),
    ],
)
def test_whether_a_program_gives_the_credentials(user: dict[str, Any], expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config(user=user)))
    assert runs_program(str(path)) is expected
    assert runs_program(f"{path}:{path}") is expected


def test_a_kubeconfig_that_cannot_be_used_is_told_later(tmp_path: Path) -> None:
    assert not runs_program(str(tmp_path / "none"))
    (tmp_path / "kubeconfig").write_text("exec: [")
    assert not runs_program(str(tmp_path / "kubeconfig"))
