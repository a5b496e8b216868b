"""docs/compatibility.md has every name: those that the code knows, and upstream's that it does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cni_calico.ctl.arguments import build_parser, leaves
from cni_calico.daemon.settings_table import settings_of
from cni_calico.nodeagent import flags
from cni_calico.nodeagent.context.legacy import ACCESS
from cni_calico.nodeagent.context.settings import DATASTORE_VARIABLES, WITHOUT_EFFECT, NodeSettings

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()
NAMES = PAGE[PAGE.index("## Every name") :]
QUOTED = {text.strip() for text in re.findall(r"`([^`]+)`", NAMES)}

# what upstream has and nothing here reads, or what is no setting
UPSTREAM = """
calico calico-ipam calico-node calicoctl kube-controllers check-status wrapper calico-typha calico-apiserver dikastes
flexvol csi-driver goldmane whisker operator host-local portmap bandwidth loopback tuning bird bird6 birdcl sv
restart-calico-confd start_runit /install-cni.sh /opt/cni/bin/install kubectl-calico
FELIX_USEINTERNALDATAPLANEDRIVER FELIX_DATAPLANEDRIVER FELIX_OPENSTACKREGION FELIX_TYPHAK8SSERVICENAME
FELIX_POLICYSYNCPATHPREFIX FELIX_BPFENABLED FELIX_WIREGUARDENABLED
/var/lib/calico/nodename /var/lib/calico/mtu /var/run/calico/ipam.lock /var/run/calico/bird.ctl
/var/run/calico/bird6.ctl /etc/calico/felix.cfg /etc/calico/calicoctl.cfg /etc/calico/confd/templates
/etc/calico/confd/config /etc/service/enabled /status/status.json /var/run/calico/endpoint-status
/etc/cni/net.d/10-calico.conflist /etc/cni/net.d/calico-kubeconfig /var/run/calico/cni/ipam_upgraded convert
projectcalico.org/IPv6WireguardInterfaceAddr projectcalico.org/WireguardPublicKeyV6 FLANNEL_
DEBUG_USE_SHORT_POLL_INTERVALS /run/xtables.lock /var/lib/cni/networks
/usr/libexec/kubernetes/kubelet-plugins/volume/exec/nodeagent~uds
"""


def variables_of(page: str) -> set[str]:
    """The variables in the first column of a page's tables."""
    rows = re.findall(r"^\| ([^|]+) \|", (ROOT / "docs" / page).read_text(), re.M)
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9]*_?[A-Z0-9_]*)`", row)}


def annotations() -> set[str]:
    text = (ROOT / "docs" / "configuration.md").read_text()
    table = text[text.index("## Annotations of pods") : text.index("`qos.projectcalico.org/`")]
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.M)
    return {f"cni.projectcalico.org/{name}" for row in rows for name in re.findall(r"`(\w+)`", row)}


def keys() -> set[str]:
    """Top-level keys of the network configuration."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    rows = re.findall(r"^\| (`[^|]+) \|", text[: text.index("## Addresses: `ipam`")], re.M)
    return {name.partition(".")[0] for row in rows for name in re.findall(r"`([a-z][A-Za-z0-9_.]*)`", row)}


def known() -> set[str]:
    names = (
        {item.name for item in settings_of(NodeSettings)}
        | {row[0] for row in DATASTORE_VARIABLES}
        | set(WITHOUT_EFFECT)
    )
    names |= {f"FELIX_{name.upper()}" for name in ACCESS}
    names |= {f"-{flag}" for table in (flags.SERVICES, flags.COMMANDS, flags.PROBES) for flag in table}
    names |= {f"-{flag}" for table in (flags.MODIFIERS, flags.VALUES) for flag in table}
    return names | variables_of("install.md") | variables_of("controllers.md")


@pytest.mark.parametrize("kind", ["settings", "annotations", "keys", "commands", "upstream"])
def test_every_name_is_on_the_page(kind: str) -> None:
    names = {
        "settings": known,
        "annotations": annotations,
        "keys": keys,
        "commands": lambda: {name for name, _ in leaves(build_parser())},
        "upstream": lambda: set(UPSTREAM.split()),
    }[kind]()
    assert len(names) > 7
    assert sorted(names - QUOTED) == []
