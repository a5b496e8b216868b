"""From the environment to a Context (settings, log, datastore, Kubernetes), in the same way for every part of
calico-node.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.daemon.said import Said
from cni_calico.datastore.connect import connect_soon, open_datastore
from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.relayed.store import RelayedStore
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.kernel.files import Files
from cni_calico.log import LEVELS, Log
from cni_calico.model.access import NATIVE_GROUP, DatastoreConfig
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.context.legacy import FELIX_CFG, expand_environment, require_supported
from cni_calico.nodeagent.context.node_name import read_node_name
from cni_calico.nodeagent.context.relay import choose_relay
from cni_calico.nodeagent.context.settings import (
    NodeSettings,
    parse_running_settings,
    parse_settings,
    with_kubernetes_access,
    without_effect,
)


@dataclass(frozen=True, slots=True)
class Opened:
    """``wrong`` are the settings in ``environ`` that are not used because they are invalid; ``environ`` includes
    felix.cfg. ``felix``: the parameters that it has.
    """

    context: Context
    node: str
    felix: FelixSettings
    wrong: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict)


def read_environment(environ: Mapping[str, str], path: str = FELIX_CFG) -> Mapping[str, str]:
    """The environment, including what Felix's configuration file adds if there is one."""
    try:
        text = Files().read_text(path)
    except (OSError, UnicodeDecodeError):
        text = ""
    return expand_environment(environ, text)


def open_log(settings: NodeSettings, part: str) -> Log:
    """The log of a part: stderr, and a file unless that is disabled."""
    file = "" if settings.disable_file_logging else f"{settings.log_dir}/calico-node.log"
    log = Log("info", file, context=f"{part}: ")
    log.threshold = LEVELS.get(settings.startup_log_level, 20)
    log.as_json = settings.log_format == "json"
    return log


def open_context(
    environ: Mapping[str, str], part: str, wait: Callable[[float], bool], *, running: bool = False
) -> Opened:
    """Everything that a part works with; ``running`` parts ignore most variables that are wrong.

    Raises InvalidConfig, DatastoreError.
    """
    environ = read_environment(environ)
    require_supported(environ)
    settings, wrong = parse_running_settings(environ) if running else (parse_settings(environ), ())
    log = open_log(settings, part)
    for text in (*(f"not used: {text}" for text in wrong), *without_effect(environ)):
        log.warning(text)
    config = with_kubernetes_access(parse_datastore(JsonFields({}), environ), environ)
    felix = parse_felix(environ).settings
    context = Context(
        settings,
        open_datastore(config, veth_prefix=felix.interface_prefixes[0]),
        log,
        wait,
        ipv6_support=felix.ipv6_support,
        is_kubernetes_datastore=config.type == "kubernetes",
        config=config,
    )
    if running:
        connect_soon(context.store)
        context.relayed = open_relayed(context, felix)
    node = read_node_name(settings, context.files)
    store = kubernetes_store(config, environ, context.store)
    if store is None:
        return Opened(context, node, felix, wrong, environ)
    from cni_calico.nodeagent.context.kubernetes import ApiNode

    kubernetes = ApiNode(store.api, settings.k8s_node_ref or node)
    return Opened(replace(context, kubernetes=kubernetes, kubernetes_store=store), node, felix, wrong, environ)


def open_relayed(context: Context, felix: FelixSettings) -> RelayedStore | None:
    """The datastore as followed through a relay; None if there is none to use."""
    choice = choose_relay(felix, is_kubernetes=context.is_kubernetes_datastore)
    if choice.why_not:
        context.log.warning(choice.why_not)
    if choice.access is None or context.config is None:
        return None
    if context.config.kubernetes.api_group == NATIVE_GROUP:
        context.log.warning(f"relays do not serve records of {NATIVE_GROUP} yet: following the API server")
        return None
    from cni_calico.datastore.kubernetes.relayed.store import RelayedStore

    said = Said(context.log)

    def tell(why: str) -> None:
        said.say("relay", [why] if why else [])
        if why:
            context.troubles["relay"] = why
        else:
            context.troubles.pop("relay", None)

    return RelayedStore(context.config.kubernetes, choice.access, tell, veth_prefix=felix.interface_prefixes[0])


def kubernetes_store(
    config: DatastoreConfig, environ: Mapping[str, str], datastore: Datastore
) -> KubernetesStore | None:
    """Kubernetes' own objects, through the datastore if that is Kubernetes; None outside of Kubernetes."""
    in_cluster = bool(environ.get("KUBERNETES_SERVICE_HOST")) and os.path.exists(f"{SERVICE_ACCOUNT_DIR}/token")
    if config.type != "kubernetes" and not config.kubernetes.kubeconfig and not in_cluster:
        return None
    from cni_calico.datastore.kubernetes.store import KubernetesStore

    return datastore if isinstance(datastore, KubernetesStore) else KubernetesStore(config.kubernetes)
