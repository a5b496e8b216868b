"""Checksums of tunnels: what the agent switches off, switches off again, and switches on when nothing asks for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.kernel.offload import read_tx_checksum, set_tx_checksum
from cni_calico.model.host import TunnelDevice
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.checksums import TunnelChecksums
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

TUNNEL = "vxlan.calico"
DESIRED = Desired(devices={TUNNEL: TunnelDevice(TUNNEL, "vxlan", 1450, None)})
BROKEN = parse_felix({}, None, {"featureDetectOverride": "ChecksumOffloadBroken=true"}).settings
SOUND = parse_felix({}, None, {"featureDetectOverride": "ChecksumOffloadBroken=false"}).settings


@pytest.fixture
def tunnelled():
    with namespace("sums") as made:
        made.do_all("link add eth0 type veth peer name eth1")
        make(made)
        yield made


def make(ns: Namespace) -> None:
    ns.do(*f"link add {TUNNEL} type vxlan id 4096 dstport 4789 dev eth0 local 10.0.0.1".split())


def apply(ns: Namespace, part: TunnelChecksums, felix: FelixSettings, desired: Desired = DESIRED) -> Pass:
    def work() -> tuple[list[str], list[str], dict[str, int] | None]:
        done = Pass()
        part.apply(desired, felix, Deadline.after(10), done, False)
        return done.changed, done.failed, part.changed

    changed, failed, part.changed = ns.call(work)  # in a process of its own
    assert failed == []
    return Pass(changed=changed)


def state(ns: Namespace, device: str = TUNNEL) -> bool | None:
    return ns.call(lambda: read_tx_checksum(device))


def test_off_while_it_is_asked_for_and_on_again(tunnelled: Namespace, tmp_path: Path) -> None:
    path = str(tmp_path / "off")
    part = TunnelChecksums(Files(), path)
    assert state(tunnelled) is True
    assert apply(tunnelled, part, SOUND).changed == [] and state(tunnelled) is True
    assert apply(tunnelled, part, BROKEN).changed == [f"checksums of {TUNNEL} in software"]
    assert (state(tunnelled), state(tunnelled, "eth0")) == (False, True)  # nothing but tunnels
    assert apply(tunnelled, part, BROKEN).changed == []
    tunnelled.call(lambda: set_tx_checksum(TUNNEL, on=True))  # a person's
    apply(tunnelled, part, BROKEN)
    assert state(tunnelled) is False
    tunnelled.do("link", "del", TUNNEL)
    apply(tunnelled, part, BROKEN)
    make(tunnelled)
    apply(tunnelled, part, BROKEN)
    assert state(tunnelled) is False
    part = TunnelChecksums(Files(), path)  # a new agent
    assert apply(tunnelled, part, SOUND).changed == [f"checksums of {TUNNEL} left to the device again"]
    assert state(tunnelled) is True and not Path(path).exists()


def test_what_somebody_else_switched_off_stays_off(tunnelled: Namespace, tmp_path: Path) -> None:
    tunnelled.call(lambda: set_tx_checksum(TUNNEL, on=False))
    part = TunnelChecksums(Files(), str(tmp_path / "off"))
    for felix in (BROKEN, SOUND):
        assert apply(tunnelled, part, felix).changed == [] and state(tunnelled) is False


@pytest.mark.parametrize("text", ["", "[", "[]", '{"vxlan.calico": "2"}', '{"vxlan.calico": true}'])
def test_a_file_that_cannot_be_read_switches_nothing(tunnelled: Namespace, tmp_path: Path, text: str) -> None:
    (tmp_path / "off").write_text(text)
    tunnelled.call(lambda: set_tx_checksum(TUNNEL, on=False))
    apply(tunnelled, TunnelChecksums(Files(), str(tmp_path / "off")), SOUND)
    assert state(tunnelled) is False


def test_a_device_that_is_made_again_is_not_the_one_that_was_changed(tunnelled: Namespace, tmp_path: Path) -> None:
    """Its index is another, and a person may have switched it off."""
    part = TunnelChecksums(Files(), str(tmp_path / "off"))
    apply(tunnelled, part, BROKEN)
    assert list(json.loads((tmp_path / "off").read_text())) == [TUNNEL]
    tunnelled.do("link", "del", TUNNEL)
    tunnelled.do(*["link", "add", "other", "type", "veth", "peer", "name", "another"])
    make(tunnelled)
    tunnelled.call(lambda: set_tx_checksum(TUNNEL, on=False))
    assert apply(tunnelled, part, SOUND).changed == [] and state(tunnelled) is False


def test_devices_that_are_gone_or_cannot_do_it_are_no_failure(tunnelled: Namespace, tmp_path: Path) -> None:
    assert state(tunnelled, "nobody") is None
    assert not tunnelled.call(lambda: set_tx_checksum("nobody", on=False))
    absent = Desired(devices={"tunl0": TunnelDevice("tunl0", "ipip", 1480, None)})
    assert apply(tunnelled, TunnelChecksums(Files(), str(tmp_path / "off")), BROKEN, absent).changed == []


def test_a_file_that_could_not_be_written_is_written_later(tunnelled: Namespace, tmp_path: Path) -> None:
    """And the device is switched off meanwhile, and on again by a new agent."""
    path = tmp_path / "there" / "off"
    path.mkdir(parents=True)  # in the way

    def work() -> tuple[list[list[str]], list[bool | None]]:
        part, failed, states = TunnelChecksums(Files(), str(path)), list[list[str]](), list[bool | None]()
        for _ in range(2):
            done = Pass()
            part.apply(DESIRED, BROKEN, Deadline.after(10), done, False)
            failed.append(done.failed)
            states.append(read_tx_checksum(TUNNEL))
            if path.is_dir():
                path.rmdir()
        return failed, states

    failed, states = tunnelled.call(work)
    assert states == [False, False] and failed[1] == [] and "cannot write" in failed[0][0]
    apply(tunnelled, TunnelChecksums(Files(), str(path)), SOUND)
    assert state(tunnelled) is True and not path.exists()
