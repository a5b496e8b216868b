"""What encryption leaves on a host that calico-node is taken off."""

from __future__ import annotations

import pytest

from cni_calico.ctl.node.setup.traces import remove_traces
from tests.deadlines import soon
from tests.netns.namespaces import namespace

pytestmark = pytest.mark.netns


def test_rules_routes_and_tables_go_and_others_stay() -> None:
    with namespace("leaving") as ns:
        ns.do("rule", "add", "not", "fwmark", "0x200000/0x200000", "lookup", "1", "priority", "99")
        ns.do("rule", "add", "from", "10.65.1.0/26", "lookup", "2", "priority", "98")
        ns.do("rule", "add", "from", "10.77.0.0/16", "lookup", "7", "priority", "50")
        ns.do("rule", "add", "not", "fwmark", "0x1/0x1", "lookup", "7", "priority", "51")
        for table in ("1", "2", "7"):
            ns.do("route", "add", "prohibit", "10.65.0.0/16", "table", table)
        for name in ("calico-encryption", "calico-wireguard", "others"):
            ns.run("nft", "add", "table", "inet", name)
        ns.call(remove_traces, ("cali",), (), soon())
        assert {rule["priority"] for rule in ns.ip("rule", "show")} == {0, 50, 51, 32766, 32767}
        assert ns.run("nft", "list", "tables").stdout.split() == ["table", "inet", "others"]
        left = ns.ip("route", "show", "table", "all", "type", "prohibit")
        assert [route["table"] for route in left] == ["7"]
