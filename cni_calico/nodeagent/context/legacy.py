"""PURE: the settings of older deployments, as the variables that this agent reads.

Rule: a CALICO_ form of the datastore's variables wins over the plain one, that one over its FELIX_ form, the
environment over felix.cfg; CALICO_NETWORKING wins over CALICO_NETWORKING_BACKEND. Sources: upstream's client library
and its start scripts, of which one exports the FELIX_ forms and another translates CALICO_NETWORKING, and Felix's
configuration file (``[global]``, ``Name = value``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cni_calico.errors import InvalidConfig
from cni_calico.model.access import parse_api_group, without_prefixes

FELIX_CFG = "/etc/calico/felix.cfg"
# Felix's parameter (lower case) -> the variable with the same meaning; only a bare "calico-node -felix" gets the former
ACCESS = {
    "felixhostname": "NODENAME",
    "datastoretype": "DATASTORE_TYPE",
    "etcdendpoints": "ETCD_ENDPOINTS",
    "etcdaddr": "ETCD_AUTHORITY",
    "etcdscheme": "ETCD_SCHEME",
    "etcdkeyfile": "ETCD_KEY_FILE",
    "etcdcertfile": "ETCD_CERT_FILE",
    "etcdcafile": "ETCD_CA_CERT_FILE",
}
_REFUSED = {
    "openstackregion": "OpenStack regions are not supported; remove it (docs/compatibility.md)",
}


def expand_environment(environ: Mapping[str, str], felix_cfg: str = "") -> dict[str, str]:
    """The environment, with its older names and those of felix.cfg translated."""
    felix = {name[6:].lower(): text for name, text in environ.items() if name.upper().startswith("FELIX_")}
    environ = without_prefixes(environ)
    expanded = dict(environ)
    for name, text in _entries(felix_cfg):
        if name.lower() not in felix:
            felix[name.lower()] = expanded[f"FELIX_{name.upper()}"] = text
    for parameter, variable in ACCESS.items():
        if felix.get(parameter, "").strip() and not environ.get(variable, "").strip():
            expanded[variable] = felix[parameter].strip()
    networking = environ.get("CALICO_NETWORKING", "").strip()
    if networking:
        expanded["CALICO_NETWORKING_BACKEND"] = "none" if networking == "false" else "bird"
    return expanded


def require_supported(environ: Mapping[str, str]) -> None:
    """Raises InvalidConfig for settings that we would silently treat differently."""
    parse_api_group(environ.get("CALICO_API_GROUP", ""), "CALICO_API_GROUP")
    for name, text in environ.items():
        parameter = name[6:].lower() if name.upper().startswith("FELIX_") else ""
        if not text.strip() or not parameter:
            continue
        if parameter in _REFUSED:
            raise InvalidConfig(f"cannot use {name}={text!r}: {_REFUSED[parameter]}")


def _entries(felix_cfg: str) -> Iterator[tuple[str, str]]:
    for line in felix_cfg.splitlines():
        name, equals, text = line.partition("=")
        if equals and not line.lstrip().startswith(("#", ";", "[")) and name.strip():
            yield name.strip(), text.strip()
