"""What is known of interfaces from a first reading and the kernel's reports."""

from __future__ import annotations

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.filter_events import Happened, SeenLink
from cni_calico.model.host import HostInterface
from cni_calico.nodeagent.policing.feed import interfaces
from cni_calico.nodeagent.policing.feed.interfaces import Interfaces
from cni_calico.policy.endpoints import PresentInterface


def test_reports_and_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [HostInterface(1, "lo", True, 65536), HostInterface(2, "cali1", False, 1500, alias="x")]
    monkeypatch.setattr(interfaces, "read_interfaces", lambda deadline: there)
    seen = Interfaces()
    seen.notice(Happened(links={"cali1": None}))  # older than what is read
    assert seen.take_changed() == {"lo": PresentInterface(True), "cali1": PresentInterface(False, "x")}
    seen.notice(Happened(links={"cali1": SeenLink(2, True, "x"), "cali2": SeenLink(3, True)}))
    assert seen.is_up("cali1") and seen.is_up("cali2") and not seen.is_up("cali3")
    assert seen.take_changed() == {"cali1": PresentInterface(True, "x"), "cali2": PresentInterface(True)}
    seen.notice(Happened(links={"cali2": SeenLink(3, True)}))
    assert seen.take_changed() == {}
    seen.notice(Happened(links={"other": SeenLink(3, True), "cali1": None}))  # one is renamed, one is gone
    assert seen.take_changed() == {"cali2": None, "other": PresentInterface(True), "cali1": None}
    seen.notice(Happened(links=None))  # reports were lost
    assert seen.take_changed() == {"other": None, "cali1": PresentInterface(False, "x")}


def test_the_last_known_count_while_they_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(deadline: object) -> list[HostInterface]:
        raise KernelError("no")

    seen = Interfaces()
    monkeypatch.setattr(interfaces, "read_interfaces", fail)
    with pytest.raises(KernelError):
        seen.take_changed()
    monkeypatch.setattr(interfaces, "read_interfaces", lambda deadline: [HostInterface(2, "cali1", True, 1500)])
    seen.take_changed()
    monkeypatch.setattr(interfaces, "read_interfaces", fail)
    seen.notice(Happened(links=None))
    assert seen.take_changed() == {} and seen.is_up("cali1")
    monkeypatch.setattr(interfaces, "read_interfaces", lambda deadline: [])
    assert seen.take_changed() == {"cali1": None}
