"""What messages call an attachment: by the container's name where it is known, which is not part of its identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.cni.environment import parse_call
from cni_calico.cni.netconf import parse_netconf
from cni_calico.deadline import Deadline
from cni_calico.errors import AttachmentBusy
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.identity.labels import CallIdentity

ID = "0123456789ab" + 52 * "c"
CONF = {"cniVersion": "1.0.0", "name": "calnet", "type": "calico", "ipam": {"type": "calico-ipam"}}


def attachment(arguments: str) -> Attachment:
    environ = {
        "CNI_COMMAND": "DEL",
        "CNI_CONTAINERID": ID,
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": arguments,
    }
    return plan_attachment(parse_call(environ, b"{}"), parse_netconf(CONF, environ, "DEL"), "n1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("IgnoreUnknown=1;K8S_POD_NAME=web", "web (calnet/0123456789ab/eth0)"),
        ("", "calnet/0123456789ab/eth0"),
        (f"K8S_POD_NAME={'x' * 65}", "calnet/0123456789ab/eth0"),
        ("K8S_POD_NAME=a\x1b[2J", "calnet/0123456789ab/eth0"),
        ("K8S_POD_NAME=web;K8S_POD_NAMESPACE=default", "calnet/0123456789ab/eth0"),
    ],
)
def test_shown(arguments: str, expected: str) -> None:
    assert attachment(arguments).shown == expected


def test_a_name_changes_neither_lock_nor_records() -> None:
    named, bare = attachment("K8S_POD_NAME=web"), attachment("")
    assert named == bare and named.label == bare.label == f"calnet/{ID}/eth0"
    assert named.endpoint_key == bare.endpoint_key and named.handle_ids == bare.handle_ids


def test_who_is_busy_is_called_by_name(tmp_path: Path) -> None:
    services, named = Services({"CALICO_RUN_DIR": str(tmp_path)}), attachment("K8S_POD_NAME=web")
    with services.attachment_lock(named.label, Deadline.after(5), named.shown):
        again = services.attachment_lock(replace(named, name="").label, Deadline.after(0), named.shown)
        with pytest.raises(AttachmentBusy) as failed, again:
            pass
    assert failed.value.message == "cannot lock attachment web (calnet/0123456789ab/eth0): another call holds it"


def test_a_stores_name_is_used_too() -> None:
    assert CallIdentity({"cni-calico.io/container": "web"}).name == "web" and CallIdentity().name == ""
