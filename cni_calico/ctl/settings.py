"""Which datastore calicoctl talks to: its configuration file, else the environment, else what this host has.

Rule: if the configuration file exists, only the file counts, as in upstream; otherwise the environment does. Where
neither names a datastore: the embedded store if there is one, else Kubernetes as it can be reached from this process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cni_calico.ctl.input.files import read_file
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import (
    LOCAL_PATH,
    DatastoreConfig,
    KubernetesAccess,
    parse_api_group,
    parse_proxy_variables,
    without_prefixes,
)
from cni_calico.model.documents.resources import API_VERSION

DEFAULT_PATH = "/etc/calico/calicoctl.cfg"

# field of the file's spec, environment variable
_FIELDS = {
    "datastoreType": "DATASTORE_TYPE",
    "datastorePath": "DATASTORE_PATH",
    "etcdEndpoints": "ETCD_ENDPOINTS",
    "etcdDiscoverySrv": "ETCD_DISCOVERY_SRV",
    "etcdUsername": "ETCD_USERNAME",
    "etcdPassword": "ETCD_PASSWORD",
    "etcdKeyFile": "ETCD_KEY_FILE",
    "etcdCertFile": "ETCD_CERT_FILE",
    "etcdCACertFile": "ETCD_CA_CERT_FILE",
    "kubeconfig": "KUBECONFIG",
    "k8sCurrentContext": "K8S_CURRENT_CONTEXT",
    "k8sAPIEndpoint": "K8S_API_ENDPOINT",
    "k8sAPIToken": "K8S_API_TOKEN",
    "k8sKeyFile": "K8S_KEY_FILE",
    "k8sCertFile": "K8S_CERT_FILE",
    "k8sCAFile": "K8S_CA_FILE",
}
_GROUP = "calicoAPIGroup"
_REFUSED = ("etcdKey", "etcdCert", "etcdCACert", "kubeconfigInline", "k8sInsecureSkipTLSVerify")


def read_config(path: str, environ: Mapping[str, str]) -> DatastoreConfig:
    """The datastore that a user means. Raises InvalidConfig."""
    try:
        text = read_file(path, what="configuration")
    except InvalidConfig as e:
        if path != DEFAULT_PATH or not isinstance(e.__cause__, FileNotFoundError):
            raise
        return _completed(parse_environment(environ), environ)
    return _completed(parse_config(text, path), environ)


def is_configured(path: str, environ: Mapping[str, str]) -> bool:
    """Whether a datastore is configured anywhere, or this host has one that is used without being named."""
    if is_file_used(path):
        return True
    environ = without_prefixes(environ)
    named = any(environ.get(name) for name in _FIELDS.values())
    return named or _has_embedded(LOCAL_PATH) or _reaches_kubernetes(environ)


def is_named(path: str, environ: Mapping[str, str]) -> bool:
    """Whether the configuration file, or else the environment, says which datastore is meant. Raises InvalidConfig."""
    if is_file_used(path):
        return bool(parse_config(read_file(path, what="configuration"), path).type)
    return bool(parse_environment(environ).type)


def is_file_used(path: str) -> bool:
    """Whether the configuration file counts, and the environment does not."""
    return path != DEFAULT_PATH or os.path.exists(path)


def fallback_kubeconfig(path: str, environ: Mapping[str, str]) -> str:
    """The kubeconfig of kubectl itself if ``read_config`` uses it because no other is named; else ""."""
    try:
        access = read_config(path, environ).kubernetes
    except InvalidConfig:
        return ""
    home = _home_kubeconfig(environ)
    if is_file_used(path):
        named = parse_config(read_file(path, what="configuration"), path).kubernetes.kubeconfig
    else:
        named = without_prefixes(environ).get("KUBECONFIG", "")
    return home if access.kubeconfig == home and not named else ""


def _completed(config: DatastoreConfig, environ: Mapping[str, str]) -> DatastoreConfig:
    """The configuration with a type, and completed from the environment."""
    if not config.type:
        here = not _has_embedded(config.path) and _reaches_kubernetes(environ)
        config = replace(config, type="kubernetes" if here else "local")
    https_proxy, no_proxy = parse_proxy_variables(environ)
    access = replace(config.kubernetes, https_proxy=https_proxy, no_proxy=no_proxy)
    if config.type == "kubernetes" and not access.kubeconfig and not access.api_root:
        access = replace(access, kubeconfig=_home_kubeconfig(environ))
    return replace(config, kubernetes=access)


def _home_kubeconfig(environ: Mapping[str, str]) -> str:
    """The path of kubectl's own kubeconfig; "" if there is none."""
    home = environ.get("HOME", "")
    path = os.path.join(home, ".kube", "config")
    return path if home and os.path.exists(path) else ""


def _reaches_kubernetes(environ: Mapping[str, str]) -> bool:
    """Whether there is kubectl's own kubeconfig, or this is a pod with a service account."""
    in_pod = bool(environ.get("KUBERNETES_SERVICE_HOST")) and os.path.exists(f"{SERVICE_ACCOUNT_DIR}/token")
    return in_pod or bool(_home_kubeconfig(environ))


def _has_embedded(path: str) -> bool:
    """Whether the embedded store exists, or existed and is lost."""
    return os.path.exists(path) or os.path.exists(f"{path}.was-made")


def is_absent(config: DatastoreConfig) -> bool:
    """Whether this is the embedded store and would have to be made."""
    return config.type == "local" and not _has_embedded(config.path)


def require_present(config: DatastoreConfig) -> None:
    """Raises InvalidConfig if the embedded store's file does not exist: reading must not create it."""
    if is_absent(config):
        raise InvalidConfig(
            f"cannot open the datastore: {config.path} does not exist yet",
            details=f"write to it first, or name another datastore in {DEFAULT_PATH} or with DATASTORE_TYPE",
        )


def parse_config(text: str, path: str = DEFAULT_PATH) -> DatastoreConfig:
    """A CalicoAPIConfig document; its type is "" if it names no datastore. Raises InvalidConfig."""
    from cni_calico.ctl.input.manifests import parse_documents  # imports a parser of YAML

    documents = parse_documents(text, path)
    document = documents[0] if len(documents) == 1 else {}
    if document.get("kind") != "CalicoAPIConfig":
        raise InvalidConfig(f"cannot read configuration {path}: expected one document of kind CalicoAPIConfig")
    if document.get("apiVersion") != API_VERSION:
        got = document.get("apiVersion")
        raise InvalidConfig(f"cannot read configuration {path}: apiVersion must be projectcalico.org/v3, got {got}")
    spec = document.get("spec") or {}
    if not isinstance(spec, Mapping):
        raise InvalidConfig(f"cannot read configuration {path}: spec must be an object")
    for field in _REFUSED:
        if spec.get(field):
            raise InvalidConfig(
                f"cannot read configuration {path}: spec.{field} is not supported", details="name files instead"
            )
    group = parse_api_group(_text(path, _GROUP, spec.get(_GROUP)), f"spec.{_GROUP} of {path}")
    return build_config({field: _text(path, field, spec.get(field)) for field in _FIELDS}, group)


def _text(path: str, field: str, value: Any) -> str:
    if value is not None and not isinstance(value, str):
        raise InvalidConfig(f"cannot read configuration {path}: spec.{field} must be a text")
    return value or ""


def parse_environment(environ: Mapping[str, str]) -> DatastoreConfig:
    """The environment's variables, each also with the prefix CALICO_, which wins; the type is "" if they name no
    datastore. Raises InvalidConfig.
    """
    group = parse_api_group(environ.get("CALICO_API_GROUP", ""), "CALICO_API_GROUP")
    environ = without_prefixes(environ)
    return build_config({field: environ.get(name, "") for field, name in _FIELDS.items()}, group)


def build_config(values: Mapping[str, str], group: str = "") -> DatastoreConfig:
    """``group``: of Kubernetes' custom resources."""
    endpoints = tuple(part.strip() for part in values["etcdEndpoints"].split(",") if part.strip())
    return DatastoreConfig(
        type=values["datastoreType"] or _default_type(values, endpoints),
        path=values["datastorePath"] or LOCAL_PATH,
        etcd_endpoints=endpoints,
        etcd_discovery_srv=values["etcdDiscoverySrv"],
        etcd_key_file=values["etcdKeyFile"],
        etcd_cert_file=values["etcdCertFile"],
        etcd_ca_cert_file=values["etcdCACertFile"],
        etcd_username=values["etcdUsername"],
        etcd_password=values["etcdPassword"],
        kubernetes=KubernetesAccess(
            kubeconfig=values["kubeconfig"],
            context=values["k8sCurrentContext"],
            api_root=values["k8sAPIEndpoint"],
            token=values["k8sAPIToken"],
            client_certificate=values["k8sCertFile"],
            client_key=values["k8sKeyFile"],
            certificate_authority=values["k8sCAFile"],
            api_group=group,
        ),
    )


def _default_type(values: Mapping[str, str], endpoints: tuple[str, ...]) -> str:
    if values["datastorePath"]:
        return "local"
    if endpoints or values["etcdDiscoverySrv"]:
        return "etcdv3"
    return "kubernetes" if values["kubeconfig"] or values["k8sAPIEndpoint"] else ""
