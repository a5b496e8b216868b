"""Which Kubernetes API server to use, and with which identity: kubeconfig files, inline values, a pod's service
account.

Rule: files are read on request and never remembered, so that a second request after a 401 finds renewed credentials.
The official client is not used: it takes 190 ms to import. Source: Kubernetes' kubeconfig (v1) reference.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.bounded import CONFIG_BYTES, OutOfBounds, parse_json, parse_yaml, require_size
from cni_calico.deadline import Deadline
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable, DeadlineExceeded
from cni_calico.model.access import KubernetesAccess
from cni_calico.redaction import shown_url
from cni_calico.regular import read_regular

Read = Callable[[str], bytes]
Environ = Mapping[str, str]

NAMESPACE = "kube-system"  # upstream's usual one
NO_LOGIN = "set kubernetes.kubeconfig in the network configuration, or KUBECONFIG"
# in a pod, whose way to the API server is a Service
SERVICE_ADDRESS = (
    "that is the address of the Service kubernetes, unless the ConfigMap kubernetes-services-endpoint in kube-system"
    " names another: check that kube-proxy, or what replaces it, works on this node, or write the API server's own"
    " address into that ConfigMap (docs/kubernetes.md)"
)
HINT = "the file named by kubernetes.kubeconfig in the network configuration is written by the installer"


@dataclass(frozen=True, slots=True)
class Login:
    """A server and credentials as they were at one moment, as PEM texts; ``ca`` None means the system's authorities.

    ``peer``: a common name and a URI; the server's certificate must have one of them, whatever its host is called.
    """

    url: str
    ca: bytes | None = None
    insecure: bool = False
    server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    certificate: bytes = field(default=b"", repr=False)
    key: bytes = field(default=b"", repr=False)
    authorization: str = field(default="", repr=False)
    peer: tuple[str, str] = ("", "")


def read_file(path: str) -> bytes:
    """The content of a file in this process's own root. Raises OSError."""
    return read_regular(path)


def read_login(
    access: KubernetesAccess, deadline: Deadline, *, read: Read = read_file, environ: Environ = os.environ
) -> Login:
    """The server and credentials that ``access`` names; the deadline limits a credential program.

    Raises DatastoreDenied, which names the file or field; DeadlineExceeded.
    """
    if access.kubeconfig:
        merged = _read_merged(access.kubeconfig, read)
        if access.context:
            merged["current-context"] = access.context
        return _with_inline(_login_of(merged, access.kubeconfig, read, environ, deadline), access, read)
    if access.api_root:
        return _with_inline(Login(access.api_root), access, read)
    return _with_inline(_read_in_cluster(read, environ), access, read)


def read_servers(access: KubernetesAccess, *, read: Read = read_file, environ: Environ = os.environ) -> tuple[str, ...]:
    """The URL of the server that ``access`` names, read without its credentials. None for a service's address, which
    pods have, and for a kubeconfig that cannot be used, which is reported by the code that uses it.
    """
    try:
        url = access.api_root or (_server_of(access, read) if access.kubeconfig else "")
        service = environ.get("KUBERNETES_SERVICE_HOST", "")
        return (url,) if url and parse_url(url)[1] != service else ()
    except DatastoreDenied:
        return ()


def _server_of(access: KubernetesAccess, read: Read) -> str:
    merged = _read_merged(access.kubeconfig, read)
    context, _ = _pick(merged, "contexts", access.context or merged["current-context"], access.kubeconfig)
    cluster, path = _pick(merged, "clusters", context.get("cluster"), access.kubeconfig)
    return _KubeconfigEntry(cluster, path, read).text("server")


def unreachable_hint(access: KubernetesAccess) -> str:
    """What to do about a server that does not answer."""
    in_pod = not access.kubeconfig and not access.api_root
    return SERVICE_ADDRESS if in_pod else DatastoreUnavailable.hint


def is_outdated(login: Login, read_again: Callable[[], Login]) -> bool:
    """Whether the credentials are now others than those in ``login``; False while that is unknown."""
    try:
        return read_again() != login
    except (DatastoreDenied, DeadlineExceeded):
        return False  # they are just being replaced


def _with_inline(login: Login, access: KubernetesAccess, read: Read) -> Login:
    changes: dict[str, Any] = {}
    if access.api_root:
        changes["url"] = access.api_root
    if access.certificate_authority:
        changes["ca"] = _read(access.certificate_authority, "certificate authority", read)
    if access.insecure:
        changes["insecure"] = True
    if access.token:
        changes["authorization"] = f"Bearer {access.token}"
    if access.client_certificate:
        changes["certificate"] = _read(access.client_certificate, "client certificate", read)
    if access.client_key:
        changes["key"] = _read(access.client_key, "client key", read)
    if access.https_proxy and not login.proxy_url:
        changes["proxy_url"] = _proxy_for(changes.get("url", login.url), access)
    return replace(login, **changes) if changes else login


def _proxy_for(url: str, access: KubernetesAccess) -> str:
    """The environment's proxy, if that server is reached through it."""
    from cni_calico.datastore.kubernetes.proxy import is_direct

    scheme, host, port, _ = parse_url(url)
    return "" if scheme != "https" or is_direct(host, port, access.no_proxy) else access.https_proxy


def _read(path: str, what: str, read: Read) -> bytes:
    try:
        return read(path)
    except OSError as e:
        raise DatastoreDenied(f"cannot read {what} {path}: {(e.strerror or str(e)).lower()}", details=HINT) from e


# -- in a pod ---------------------------------------------------------------------------------------------------------


def _read_in_cluster(read: Read, environ: Environ) -> Login:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise DatastoreDenied(
            "cannot find the Kubernetes API server: no kubeconfig, no API root, and not in a pod of a cluster",
            details=NO_LOGIN,
        )
    token = _read(f"{SERVICE_ACCOUNT_DIR}/token", "service account token", read).decode("utf-8", "replace").strip()
    authority = f"[{host}]" if ":" in host else host
    return Login(
        f"https://{authority}:{port}",
        ca=_read(f"{SERVICE_ACCOUNT_DIR}/ca.crt", "service account's certificate authority", read),
        authorization=f"Bearer {token}",
    )


# -- kubeconfig -------------------------------------------------------------------------------------------------------


def _read_merged(paths: str, read: Read) -> dict[str, Any]:
    """``paths`` may be several, separated by ":" as in KUBECONFIG: the first definition of a name wins."""
    merged: dict[str, Any] = {"clusters": {}, "users": {}, "contexts": {}, "current-context": ""}
    for path in filter(None, paths.split(":")):
        document = parse_kubeconfig(_read(path, "kubeconfig", read), path)
        merged["current-context"] = merged["current-context"] or document.get("current-context") or ""
        for section, item in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for name, value in _named(document, section, item, path).items():
                merged[section].setdefault(name, (value, path))
    return merged


def runs_program(paths: str, *, read: Read = read_file) -> bool:
    """Whether a kubeconfig uses a credential program. Errors are left to the code that uses the kubeconfig."""
    try:
        if not any(b"exec" in read(path) for path in paths.split(":") if path):
            return False  # the usual case, without parsing anything
        user, _ = _user_of(_read_merged(paths, read), paths)
    except (OSError, DatastoreDenied):
        return False
    return bool(user.get("exec"))


def parse_kubeconfig(raw: bytes, path: str) -> dict[str, Any]:
    """Parse JSON (which is YAML too, and read faster; the installer writes it) or YAML. Raises DatastoreDenied."""
    try:
        require_size(raw, path, limit=CONFIG_BYTES)
        try:
            document = parse_json(raw, path)
        except ValueError:
            document = _parse_yaml(raw, path)
    except OutOfBounds as e:
        raise DatastoreDenied(f"cannot use kubeconfig: {e}", details=HINT) from e
    if not isinstance(document, dict):
        raise DatastoreDenied(f"cannot use kubeconfig {path}: it is not a mapping", details=HINT)
    return document


def _parse_yaml(raw: bytes, path: str) -> Any:
    import yaml

    try:
        documents = parse_yaml(raw, path)
    except (yaml.YAMLError, UnicodeDecodeError) as e:
        # the error's own text quotes the file, which may contain a token
        line = getattr(getattr(e, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise DatastoreDenied(f"cannot use kubeconfig {path}: it is not YAML{where}", details=HINT) from None
    if len(documents) > 1:
        raise DatastoreDenied(f"cannot use kubeconfig {path}: it has more than one YAML document", details=HINT)
    return documents[0] if documents else None


def _named(document: dict[str, Any], section: str, item: str, path: str) -> dict[str, Any]:
    entries = document.get(section) or []
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise DatastoreDenied(f"cannot use kubeconfig {path}: {section} is not a list of mappings", details=HINT)
    return {str(entry.get("name", "")): entry.get(item) or {} for entry in entries}


def _pick(merged: dict[str, Any], section: str, name: object, paths: str) -> tuple[dict[str, Any], str]:
    if name not in merged[section]:
        raise DatastoreDenied(f"cannot use kubeconfig {paths}: {section} has no {str(name)!r}", details=HINT)
    value, path = merged[section][name]
    if not isinstance(value, dict):
        raise DatastoreDenied(f"cannot use kubeconfig {path}: {section} {name!r} is not a mapping", details=HINT)
    return value, path


def _user_of(merged: dict[str, Any], paths: str) -> tuple[dict[str, Any], str]:
    context, _ = _pick(merged, "contexts", merged["current-context"], paths)
    return _pick(merged, "users", context.get("user"), paths) if context.get("user") else ({}, paths)


def _login_of(merged: dict[str, Any], paths: str, read: Read, environ: Environ, deadline: Deadline) -> Login:
    context, _ = _pick(merged, "contexts", merged["current-context"], paths)
    cluster, cluster_path = _pick(merged, "clusters", context.get("cluster"), paths)
    user, user_path = _user_of(merged, paths)
    if user.get("exec") and read is not read_file:
        raise DatastoreDenied(
            f"cannot use kubeconfig {paths}: it uses a credential program, which must run where the caller is",
            details="let the CNI server run in the host's mount namespace, or use a token or a certificate",
        )
    cluster_files, user_files = _KubeconfigEntry(cluster, cluster_path, read), _KubeconfigEntry(user, user_path, read)
    login = Login(
        url=cluster_files.text("server"),
        ca=cluster_files.pem("certificate-authority") or None,
        insecure=cluster.get("insecure-skip-tls-verify") is True,
        server_name=cluster_files.text("tls-server-name"),
        proxy_url=cluster_files.text("proxy-url"),
        certificate=user_files.pem("client-certificate"),
        key=user_files.pem("client-key"),
        authorization=_authorization(user_files),
    )
    return _with_program(login, user, cluster, user_path, environ, deadline) if user.get("exec") else login


def _with_program(
    login: Login,
    user: Mapping[str, Any],
    cluster: Mapping[str, Any],
    path: str,
    environ: Environ,
    deadline: Deadline,
) -> Login:
    from cni_calico.datastore.kubernetes.programs import ask_program

    if not isinstance(user["exec"], dict):
        raise DatastoreDenied(f"cannot use kubeconfig {path}: exec is not a mapping", details=HINT)
    found = ask_program(user["exec"], cluster, path, environ, deadline)
    return replace(
        login,
        certificate=found.certificate or login.certificate,
        key=found.key or login.key,
        authorization=f"Bearer {found.token}" if found.token else login.authorization,
    )


class _KubeconfigEntry:
    """The fields of one kubeconfig entry; file names are relative to the kubeconfig's directory."""

    def __init__(self, values: dict[str, Any], path: str, read: Read) -> None:
        self.values = values
        self.path = path
        self._read = read

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise DatastoreDenied(f"cannot use kubeconfig {self.path}: {name} is not a text", details=HINT)
        return value

    def file(self, name: str) -> bytes:
        path = self.text(name)
        return _read(os.path.join(os.path.dirname(self.path), path), name, self._read) if path else b""

    def pem(self, name: str) -> bytes:
        """``NAME-data`` (base64) or the file that ``NAME`` names."""
        data = self.text(f"{name}-data")
        if not data:
            return self.file(name)
        from binascii import Error, a2b_base64

        try:
            return a2b_base64("".join(data.split()), strict_mode=True)
        except (Error, ValueError):
            raise DatastoreDenied(
                f"cannot use kubeconfig {self.path}: {name}-data is not base64", details=HINT
            ) from None


def _authorization(user: _KubeconfigEntry) -> str:
    token = user.file("tokenFile").decode("utf-8", "replace").strip() or user.text("token")
    if token:
        return f"Bearer {token}"
    if user.values.get("auth-provider"):
        from time import time

        from cni_calico.datastore.kubernetes.oidc import oidc_token

        return f"Bearer {oidc_token(user.values['auth-provider'], user.path, time())}"
    if user.text("username"):
        return basic(f"{user.text('username')}:{user.text('password')}")
    return ""


def basic(pair: str) -> str:
    from binascii import b2a_base64

    return "Basic " + b2a_base64(pair.encode(), newline=False).decode()


# -- addresses --------------------------------------------------------------------------------------------------------


def parse_url(url: str) -> tuple[str, str, int, str]:
    """(scheme, host, port, path) of a server's URL. Raises DatastoreDenied."""
    scheme, _, rest = (url if "://" in url else f"https://{url}").partition("://")
    authority, slash, path = rest.partition("/")
    authority = authority.rpartition("@")[2]
    if authority.startswith("["):
        host, _, port = authority[1:].partition("]")
    else:
        host, _, port = authority.partition(":")
    port = port.removeprefix(":")
    number = int(port) if port.isascii() and port.isdecimal() else -1 if port else {"http": 80}.get(scheme, 443)
    # an @ behind the host belongs to a password with a slash in it, whose first part would be taken for the host
    if scheme not in ("http", "https") or not host or not 0 < number < 65536 or "@" in path:
        raise DatastoreDenied(f"cannot use the Kubernetes API server's address {shown_url(url)!r}", details=HINT)
    return scheme, host, number, (slash + path).rstrip("/")


def own_namespace() -> str:
    """The namespace of the pod this runs in; outside of a pod, the one that upstream usually uses."""
    try:
        return read_regular(f"{SERVICE_ACCOUNT_DIR}/namespace").decode("ascii").strip() or NAMESPACE
    except (OSError, ValueError):
        return NAMESPACE
