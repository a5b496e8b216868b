"""PURE: makes the CNI network configuration from a template with ``__VARIABLE__`` in it.

Rule: a value is inserted as text of a JSON string and cannot end it; the result is parsed before it is used, and no
message quotes it, because templates may contain tokens.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from cni_calico.directories import LOG_DIR
from cni_calico.errors import InvalidConfig
from cni_calico.install.settings import KUBECONFIG, TLS_DIR, Settings
from cni_calico.model.access import parse_api_group

API_GROUP_VARIABLE = "CALICO_API_GROUP"  # of template and environment
# variable of the template -> (variable of the environment, default)
_PLAIN = {
    "LOG_LEVEL": ("LOG_LEVEL", "info"),
    "LOG_FILE_PATH": ("LOG_FILE_PATH", f"{LOG_DIR}/cni/cni.log"),
    "LOG_FILE_MAX_SIZE": ("LOG_FILE_MAX_SIZE", "100"),
    "LOG_FILE_MAX_AGE": ("LOG_FILE_MAX_AGE", "30"),
    "LOG_FILE_MAX_COUNT": ("LOG_FILE_MAX_COUNT", "10"),
    "DATASTORE_TYPE": ("DATASTORE_TYPE", "kubernetes"),
    "CNI_MTU": ("CNI_MTU", "1500"),
    "REQUIRE_MTU_FILE": ("REQUIRE_MTU_FILE", "false"),
    "ETCD_ENDPOINTS": ("ETCD_ENDPOINTS", ""),
    "ETCD_DISCOVERY_SRV": ("ETCD_DISCOVERY_SRV", ""),
    API_GROUP_VARIABLE: (API_GROUP_VARIABLE, ""),
}


def template_values(
    settings: Settings, *, node: str, token: str, tls_files: frozenset[str], api_group: str = ""
) -> dict[str, str]:
    """Variable -> value; ``tls_files`` are those that were copied, ``node`` and ``api_group`` are used if the
    environment names none.

    Raises InvalidConfig for an API group that is none of Calico's: each call of the plugin would refuse it.
    """
    environ = settings.environ
    values = {name: environ.get(variable) or default for name, (variable, default) in _PLAIN.items()}
    group = values[API_GROUP_VARIABLE] or api_group
    values[API_GROUP_VARIABLE] = parse_api_group(group, API_GROUP_VARIABLE)
    tls = {
        f"{file.upper().replace('-', '_')}_FILE": f"{settings.net_dir}/{TLS_DIR}/{file}" if file in tls_files else ""
        for file in ("etcd-key", "etcd-cert")
    }
    ca = f"{settings.net_dir}/{TLS_DIR}/etcd-ca" if "etcd-ca" in tls_files else ""
    return {
        **values,
        **tls,
        "ETCD_CA_CERT_FILE": ca,
        "KUBERNETES_NODE_NAME": environ.get("KUBERNETES_NODE_NAME") or environ.get("NODENAME") or node,
        "KUBERNETES_SERVICE_HOST": settings.kubernetes_host,
        "KUBERNETES_SERVICE_PORT": settings.kubernetes_port,
        "KUBERNETES_SERVICE_PROTOCOL": settings.kubernetes_protocol,
        "KUBECONFIG_FILENAME": KUBECONFIG,
        "KUBECONFIG_FILEPATH": f"{settings.net_dir}/{KUBECONFIG}",
        "SERVICEACCOUNT_TOKEN": token,
    }


def render_conflist(template: str, values: Mapping[str, str]) -> str:
    """The configuration. Raises InvalidConfig if it is not one; the text says where, but never quotes the content."""
    text = template
    for name, value in values.items():
        text = text.replace(f"__{name}__", json.dumps(value)[1:-1])
    _require_configuration(text)
    return text if text.endswith("\n") else text + "\n"


def _require_configuration(text: str) -> None:
    hint = "the template comes from CNI_NETWORK_CONFIG_FILE, else CNI_NETWORK_CONFIG (ConfigMap calico-config)"
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as e:
        where = f" at line {e.lineno}, column {e.colno}: {e.msg}" if isinstance(e, json.JSONDecodeError) else ""
        raise InvalidConfig(f"cannot use the CNI network configuration: not JSON{where}", details=hint) from None
    if not isinstance(document, dict):
        raise InvalidConfig("cannot use the CNI network configuration: not a JSON object", details=hint)
    plugins = document.get("plugins", [document])
    if not isinstance(plugins, list) or not plugins:
        raise InvalidConfig("cannot use the CNI network configuration: plugins is not a list of plugins", details=hint)
    for plugin in plugins:
        if not isinstance(plugin, dict) or not isinstance(plugin.get("type"), str) or not plugin["type"]:
            raise InvalidConfig("cannot use the CNI network configuration: a plugin has no type", details=hint)
    if not isinstance(document.get("name"), str) or not document["name"]:
        raise InvalidConfig("cannot use the CNI network configuration: it has no name", details=hint)
