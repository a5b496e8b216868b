"""PURE: the environment of the installer as values.

Rule: names and defaults are upstream's; an invalid value is an error that names its variable. ``root`` is put in front
of every path that the container's mounts make ("/host/...", "/calico-secrets"), for tests and for use without a
container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cni_calico.directories import CNI_BIN_DIR, CNI_NET_DIR
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import CNI_ACCOUNT
from cni_calico.model.names import valid_identifier

HOST_NET_DIR = f"/host{CNI_NET_DIR}"
HOST_BIN_DIRS = (f"/host{CNI_BIN_DIR}", "/host/secondary-bin-dir")
KUBECONFIG = "calico-kubeconfig"
TLS_DIR = "calico-tls"


@dataclass(frozen=True, slots=True)
class Settings:
    """``environ`` is kept for the template's plain variables; ``bundle`` is the directory of the executables."""

    root: str
    bundle: str
    bin_dir: str
    secondary_bin_dir: str
    net_dir: str
    conf_name: str
    old_conf_name: str
    template: str = field(repr=False)
    template_file: str
    skip_binaries: frozenset[str]
    update_binaries: bool
    sleep: bool
    tls_assets_dir: str
    kubernetes_host: str
    kubernetes_port: str
    kubernetes_protocol: str
    skip_tls_verify: bool
    cni_service_account: str
    log_level: str
    environ: Mapping[str, str] = field(repr=False)

    def inside(self, path: str) -> str:
        """A path of the container's mounts, below ``root``."""
        return self.root + path

    @property
    def host_net_dir(self) -> str:
        return self.inside(HOST_NET_DIR)


def parse_settings(environ: Mapping[str, str], *, bundle: str, template_file: str = "") -> Settings:
    """Raises InvalidConfig. ``template_file`` is used if the environment names no template."""
    given_file = environ.get("CNI_NETWORK_CONFIG_FILE", "")
    given = environ.get("CNI_NETWORK_CONFIG", "")
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    return Settings(
        root=environ.get("CALICO_INSTALL_ROOT", "").rstrip("/"),
        bundle=bundle,
        bin_dir=_path(environ, "CNI_BIN_DIR", CNI_BIN_DIR),
        secondary_bin_dir=environ.get("CNI_SECONDARY_BIN_DIR", ""),
        net_dir=_path(environ, "CNI_NET_DIR", CNI_NET_DIR),
        conf_name=_file_name(environ, "CNI_CONF_NAME", "10-calico.conflist"),
        old_conf_name=_file_name(environ, "CNI_OLD_CONF_NAME", ""),
        template="" if given_file else given,
        template_file=given_file or ("" if given else template_file),
        skip_binaries=frozenset(filter(None, environ.get("SKIP_CNI_BINARIES", "").replace(" ", "").split(","))),
        update_binaries=_flag(environ, "UPDATE_CNI_BINARIES", True),
        sleep=_flag(environ, "SLEEP", True),
        tls_assets_dir=environ.get("TLS_ASSETS_DIR") or "/calico-secrets",
        kubernetes_host=host,
        kubernetes_port=port,
        kubernetes_protocol=_protocol(environ),
        skip_tls_verify=_flag(environ, "SKIP_TLS_VERIFY", False),
        cni_service_account=_service_account(environ),
        log_level=environ.get("LOG_LEVEL") or "info",
        environ=dict(environ),
    )


def _flag(environ: Mapping[str, str], name: str, default: bool) -> bool:
    text = environ.get(name, "").strip().lower()
    if text in ("1", "t", "true", "yes"):
        return True
    if text in ("0", "f", "false", "no"):
        return False
    if text:
        raise InvalidConfig(f"cannot install: {name}: expected true or false, got {environ[name]!r}")
    return default


def _path(environ: Mapping[str, str], name: str, default: str) -> str:
    path = environ.get(name) or default
    if not path.startswith("/"):
        raise InvalidConfig(f"cannot install: {name}: expected an absolute path, got {path!r}")
    return path.rstrip("/") or "/"


def _file_name(environ: Mapping[str, str], name: str, default: str) -> str:
    value = environ.get(name) or default
    if "/" in value or value in (".", ".."):
        raise InvalidConfig(f"cannot install: {name}: expected a file name, got {value!r}")
    return value


def _protocol(environ: Mapping[str, str]) -> str:
    protocol = environ.get("KUBERNETES_SERVICE_PROTOCOL") or "https"
    if protocol not in ("http", "https"):
        raise InvalidConfig(f"cannot install: KUBERNETES_SERVICE_PROTOCOL: expected http or https, got {protocol!r}")
    return protocol


def _service_account(environ: Mapping[str, str]) -> str:
    name = environ.get("CALICO_CNI_SERVICE_ACCOUNT") or CNI_ACCOUNT
    if not valid_identifier(name):
        raise InvalidConfig(f"cannot install: CALICO_CNI_SERVICE_ACCOUNT: expected a name, got {name!r}")
    return name
