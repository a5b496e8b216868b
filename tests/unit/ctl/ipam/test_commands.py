"""ipam show, check, release, configure, and what deleting nodes and pools does to addresses."""

import contextlib
import json
import sqlite3

import pytest

from tests.unit.ctl.conftest import pool, resource

IPAM = "/calico/ipam/v2/"
RESOURCES = "/calico/resources/v3/projectcalico.org/"
BLOCK = IPAM + "assignment/ipv4/block/10.65.141.64-26"
POOL = RESOURCES + "ippools/pool4"
BORROWED_FROM = IPAM + "assignment/ipv4/block/10.65.248.128-26"
ENDPOINT = RESOURCES + "workloadendpoints/default/vm-cni-cnitool--a6a677acb8bc88c337ae-eth0"
HANDLE = IPAM + "handle/calnet.cnitool-a6a677acb8bc88c337ae"


def cells(text):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]


class TestShow:
    def test_pools_and_blocks(self, cluster):
        assert cells(cluster.ok("ipam", "show")) == [
            ["GROUPING", "CIDR", "IPS TOTAL", "IPS IN USE", "IPS FREE"],
            ["IP Pool", "10.65.0.0/16", "65536", "5 (0%)", "65531 (100%)"],
            ["IP Pool", "fd00:65::/112", "65536", "1 (0%)", "65535 (100%)"],
        ]
        blocks = cells(cluster.ok("ipam", "show", "--show-blocks"))
        assert ["Block", "10.65.141.64/26", "64", "2 (3%)", "62 (97%)"] in blocks
        assert ["Block", "fd00:65::8d40/122", "64", "1 (2%)", "63 (98%)"] in blocks

    def test_one_address(self, cluster):
        out = cluster.ok("ipam", "show", "--ip=10.65.141.64")
        assert out.startswith("IP 10.65.141.64 is in use\nAttributes:\n  node: vm\n")
        assert "Handle: calnet.cnitool-a6a677acb8bc88c337ae" in out
        assert cluster.ok("ipam", "show", "--ip", "10.65.141.70") == "10.65.141.70 is not assigned\n"
        assert cluster.ok("ipam", "show", "--ip", "192.0.2.1") == "192.0.2.1 is not assigned\n"
        assert "it is not an IP address" in cluster.fails("ipam", "show", "--ip=10.65.141")

    def test_whose_an_address_is(self, cluster):
        """By the container's name, where the record of it says one."""
        document = cluster.stored(ENDPOINT)
        assert "Container:" not in cluster.ok("ipam", "show", "--ip=10.65.141.64")
        document["metadata"]["labels"]["cni-calico.io/container"] = "web"
        bad = ENDPOINT.replace("vm-cni", "vm-cni-bad")
        cluster.write({ENDPOINT: document, bad: {"spec": 7}})
        assert "\nContainer: web\nHandle: calnet." in cluster.ok("ipam", "show", "--ip=10.65.141.64")
        shown = json.loads(cluster.ok("ipam", "show", "--ip=10.65.141.64", "-o", "json"))
        assert shown["container"] == "web"
        assert "Container:" not in cluster.ok("ipam", "show", "--ip=10.65.141.65")

    def test_borrowed(self, cluster):
        assert cells(cluster.ok("ipam", "show", "--show-borrowed"))[1:] == [
            [
                "10.65.248.133",
                "vm",
                "10.65.248.128/26",
                "nodeb",
                "workload",
                "handle calnet.eeeeeeeeeeeeeeeeeee5",
            ]
        ]

    def test_blocks_without_pool_and_corrupt_ones(self, cluster):
        cluster.write({RESOURCES + "ippools/pool4": None, BORROWED_FROM: {"cidr": "10.65.248.128/26"}})
        result = cluster("ipam", "show", "--show-blocks")
        assert ["Block without pool", "10.65.141.64/26", "64", "2 (3%)", "62 (97%)"] in cells(result.out)
        assert result.err.startswith("cannot read block 10.65.248.128/26: allocations: ")


class TestConfigure:
    def test_show_and_change(self, cluster):
        assert cells(cluster.ok("ipam", "show", "--show-configuration"))[1:] == [
            ["StrictAffinity", "false"],
            ["AutoAllocateBlocks", "true"],
            ["MaxBlocksPerHost", "0"],
            ["KubeVirtVMAddressPersistence", "Enabled"],
        ]
        out = cluster.ok("ipam", "configure", "--max-blocks-per-host=3")
        assert out == "Successfully set MaxBlocksPerHost to: 3\n"
        refused = cluster.fails("ipam", "configure", "--strictaffinity=true")
        assert "10.65.248.133 is borrowed by node vm" in refused
        out = cluster.ok("ipam", "configure", "--strict-affinity", "true", "--force")
        assert out == "Successfully set StrictAffinity to: true\n"
        assert cluster.stored(IPAM + "config") == {
            "auto_allocate_blocks": True,
            "kubeVirtVMAddressPersistence": "Enabled",
            "maxBlocksPerHost": 3,
            "strict_affinity": True,
        }

    def test_a_new_configuration_is_upstreams(self, calicoctl):
        calicoctl.ok("ipam", "configure", "--strict-affinity=false")
        expected = {"auto_allocate_blocks": True, "kubeVirtVMAddressPersistence": "Enabled"}
        assert calicoctl.stored(IPAM + "config") == expected

    def test_errors(self, calicoctl):
        assert "expected true or false" in calicoctl.fails("ipam", "configure", "--strict-affinity=maybe")
        assert "must not be negative" in calicoctl.fails("ipam", "configure", "--max-blocks-per-host=-1")
        assert "give --strict-affinity" in calicoctl.fails("ipam", "configure")


def lock(calicoctl):
    assert calicoctl.ok("datastore", "migrate", "lock") == "Datastore locked.\n"


class TestCheckAndRelease:
    def test_a_sound_store(self, cluster):
        out = cluster.ok("ipam", "check", "--show-all-ips")
        assert "Found 4 IPAM blocks." in out
        assert " IPAM block 10.65.141.64/26 affinity=host:vm: 2 allocated" in out
        assert "10.65.141.64 handle=calnet.cnitool-a6a677acb8bc88c337ae used by workload endpoint default/vm-cni" in out
        assert "IPAM blocks record 6 allocations." in out
        assert "  vm has 5 allocations\n  nodeb has 1 allocations\n" in out
        assert out.endswith("Check complete; found 0 problems.\n")

    def test_as_a_document(self, cluster, tmp_path):
        """The report itself, with the exit status of the text."""
        report = tmp_path / "report"
        document = json.loads(cluster.ok("ipam", "check", "--format", "json", "-o", str(report)))
        assert document == json.loads(report.read_text())
        assert document["problems"] == [] and len(document["allocations"]) == 6
        cluster.write({ENDPOINT: None})
        done = cluster("ipam", "check", "--format", "jsonpath={.problems[*].problem}")
        assert done.code == 1 and "leaked" in done.out.lower()

    def test_what_may_be_borrowed_where_nobody_can_tell(self, cluster):
        """A configuration that cannot be read forbids no borrowing."""
        block = cluster.stored(BLOCK)
        block["attributes"] = [{"handle_id": "ab" * 32, "secondary": {}} for _ in block["attributes"]]
        cluster.write({BLOCK: block, ENDPOINT: None, IPAM + "config": {"strict_affinity": "yes"}})
        out = cluster.finds("ipam", "check")
        assert f"(handle {'ab' * 32}): it may be another node's container's, as affinity is not strict" in out

    def test_a_leak_is_found_reported_and_released(self, cluster, tmp_path):
        cluster.write({ENDPOINT: None})
        out = cluster.finds("ipam", "check", "--show-problem-ips")
        assert "Found 1 IPs that are allocated in IPAM but not actually in use." in out
        assert "10.65.141.64 is allocated to handle calnet.cnitool-a6a677acb8bc88c337ae but nobody uses it" in out
        lock(cluster)
        report = tmp_path / "report.json"
        assert f"Report written to {report}\n" in cluster.finds("ipam", "check", "-o", str(report))
        entry = json.loads(report.read_text())["allocations"]["10.65.141.64"][0]
        assert (entry["inUse"], entry["sequenceNumber"]) == (False, 1795176388957943422)
        assert cluster.ok("ipam", "release", f"--from-report={report}") == "Released 1 IPs successfully\n"
        assert cluster.stored(BLOCK)["allocations"][:3] == [None, 0, None]
        assert cluster.stored(BLOCK)["unallocated"][-1] == 0
        assert cluster.stored(HANDLE) is None
        assert "found 0 problems" in cluster.ok("ipam", "check")

    def test_an_address_that_found_a_new_owner_is_not_released(self, cluster, tmp_path):
        cluster.write({ENDPOINT: None})
        lock(cluster)
        report = tmp_path / "report.json"
        cluster.finds("ipam", "check", "-o", str(report))
        block = cluster.stored(BLOCK)
        block["sequenceNumberForAllocation"]["0"] = block["sequenceNumber"]
        cluster.write({BLOCK: block})
        out = cluster.ok("ipam", "release", "--from-report", str(report))
        assert out.startswith("Skipped 10.65.141.64: cannot release 10.65.141.64: it was assigned at sequence number")
        assert "Released 0 IPs successfully" in out
        assert cluster.stored(BLOCK) == block

    def test_only_what_all_reports_say(self, cluster, tmp_path):
        lock(cluster)
        sound, leaky = tmp_path / "1.json", tmp_path / "2.json"
        cluster.ok("ipam", "check", "-o", str(sound))
        cluster.write({ENDPOINT: None})
        cluster.finds("ipam", "check", "-o", str(leaky))
        out = cluster.ok("ipam", "release", "--from-report", str(sound), "--from-report", str(leaky))
        assert out == "Released 0 IPs successfully\n"

    def test_reports_that_are_not_safe_to_use(self, cluster, tmp_path):
        report = tmp_path / "report.json"
        cluster.write({ENDPOINT: None})
        cluster.finds("ipam", "check", "-o", str(report))
        assert "was not locked" in cluster.fails("ipam", "release", "--from-report", str(report))
        body = json.loads(report.read_text()) | {"clusterGUID": "other", "datastoreLocked": True}
        report.write_text(json.dumps(body))
        assert "about another cluster" in cluster.fails("ipam", "release", "--from-report", str(report))
        assert "Released 1 IPs" in cluster.ok("ipam", "release", "--force", "--from-report", str(report))
        report.write_text("{}")
        assert "was not written by" in cluster.fails("ipam", "release", "--from-report", str(report))
        assert "No such file" in cluster.fails("ipam", "release", "--from-report", str(tmp_path / "none"))

    def test_what_the_janitor_would_release(self, cluster, tmp_path):
        out = cluster.ok("ipam", "check")
        assert "Scanning for what the janitor would release...\nFound 0 things without an owner.\n" in out
        cluster.write(
            {
                IPAM + "host/gone/ipv4/block/10.65.0.0-26": {"state": "pendingDeletion", "deleted": False},
                IPAM + "handle/calnet.gone": {"block": {}, "deleted": False},
            }
        )
        report = tmp_path / "report.json"
        out = cluster.finds("ipam", "check", "-o", str(report))
        assert (
            "  block 10.65.0.0/26 of node gone: there is no Node gone\n  handle calnet.gone: it holds no address\n"
            in out
        )
        assert json.loads(report.read_text())["lost"] == [
            {"kind": "block", "subject": "block 10.65.0.0/26 of node gone", "reason": "there is no Node gone"},
            {"kind": "handle", "subject": "handle calnet.gone", "reason": "it holds no address"},
        ]
        assert cluster.stored(IPAM + "handle/calnet.gone") is not None, "nothing is written"

    def test_empty_handles_go_with_a_report(self, cluster, tmp_path):
        gone = IPAM + "handle/calnet.gone"
        cluster.write({gone: {"block": {"10.65.0.0/26": 1}, "deleted": False}})
        report = tmp_path / "report.json"
        assert "handle calnet.gone claims addresses in 10.65.0.0/26" in cluster.finds(
            "ipam", "check", "-o", str(report)
        )
        out = cluster.ok("ipam", "release", "--force", "--from-report", str(report))
        assert out == "Released 0 IPs successfully\nReleased 1 handles without addresses\n"
        assert cluster.stored(gone) is None

    def test_single_addresses(self, cluster):
        out = cluster.ok("ipam", "release", "--ip=10.65.141.64")
        assert out == "Successfully released IP address 10.65.141.64\n"
        assert cluster.stored(HANDLE) is None
        assert "IP address 10.65.141.64 is not assigned" in cluster.fails("ipam", "release", "--ip=10.65.141.64")
        assert "is not assigned" in cluster.fails("ipam", "release", "--ip=192.0.2.1")
        assert "give --ip or --from-report" in cluster.fails("ipam", "release")

    def test_corrupt_records_and_the_rest(self, cluster):
        document = cluster.stored(BORROWED_FROM)
        document["allocations"][3] = 99
        cluster.write({BORROWED_FROM: document})
        out = cluster.finds("ipam", "check")
        assert "cannot read block 10.65.248.128/26: allocations[3]: expected an index into attributes or null" in out
        assert "Found 3 IPAM blocks." in out

    def test_records_that_are_no_json_are_problems_too(self, cluster):
        with contextlib.closing(sqlite3.connect(cluster.path)) as raw, raw:
            assert raw.execute("UPDATE change SET value = '[' WHERE key = ?", (HANDLE,)).rowcount == 1
        out = cluster.finds("ipam", "check")
        assert "Found 1 records that cannot be read.\n  cannot read handle calnet.cnitool-a6a677acb8bc88c337ae: " in out
        assert out.endswith("Check complete; found 2 problems.\n")  # and an address whose handle is missing
        pool = "/calico/resources/v3/projectcalico.org/ippools/pool4"
        with contextlib.closing(sqlite3.connect(cluster.path)) as raw, raw:
            raw.execute("UPDATE change SET value = '[' WHERE key = ?", (pool,))
        result = cluster("get", "ippool", "-o", "name")
        assert (result.code, result.out) == (0, "ippool/pool6\n")
        assert result.err.startswith("Left out: cannot read IPPool pool4: ")


class TestDeletingWhatAddressesDependOn:
    def test_node(self, cluster):
        assert cluster.ok("delete", "node", "vm") == "Successfully deleted 1 'Node' resource(s)\n"
        assert cluster.stored(ENDPOINT) is None
        assert cluster.stored(HANDLE) is None
        assert cluster.stored(BLOCK) is None
        assert cluster.stored(IPAM + "host/vm/ipv4/block/10.65.141.64-26") is None
        # what it had borrowed is free again, what others have stays
        assert cluster.stored(BORROWED_FROM)["allocations"][5] is None
        assert cluster.stored(BORROWED_FROM)["allocations"][0] == 0
        assert "found 0 problems" in cluster.ok("ipam", "check")

    def test_tunnel_addresses_of_a_node(self, calicoctl):
        node = resource("Node", "n", {"bgp": {"ipv4IPIPTunnelAddr": "10.65.0.1"}})
        calicoctl.apply([pool("p", "10.65.0.0/16"), node])
        block = IPAM + "assignment/ipv4/block/10.65.0.0-26"
        attribute = {"handle_id": "ipip-tunnel-addr-n", "secondary": {"node": "n", "type": "ipipTunnelAddress"}}
        calicoctl.write(
            {
                block: {
                    "cidr": "10.65.0.0/26",
                    "affinity": "host:n",
                    "allocations": [None, 0, *[None] * 62],
                    "unallocated": [0, *range(2, 64)],
                    "attributes": [attribute],
                    "sequenceNumber": 5,
                    "sequenceNumberForAllocation": {"1": 4},
                    "deleted": False,
                },
                IPAM + "host/n/ipv4/block/10.65.0.0-26": {"state": "confirmed", "deleted": False},
                IPAM + "handle/ipip-tunnel-addr-n": {"block": {"10.65.0.0/26": 1}, "deleted": False},
            }
        )
        assert "found 0 problems" in calicoctl.ok("ipam", "check")
        calicoctl.ok("delete", "node", "n")
        assert calicoctl.stored(block) is None
        assert calicoctl.stored(IPAM + "handle/ipip-tunnel-addr-n") is None

    def test_what_a_node_had_without_an_endpoint(self, cluster):
        """Another plugin's address, and one whose handle is lost; what says nothing about a node stays."""
        block = cluster.stored(BORROWED_FROM)
        attributes = [*block["attributes"], {"handle_id": "bridge.x", "secondary": {"node": "vm"}}]
        attributes.append({"handle_id": "by-hand", "secondary": {}})
        allocations = list(block["allocations"])
        allocations[7], allocations[8] = len(attributes) - 2, len(attributes) - 1
        free = [o for o in block["unallocated"] if o not in (7, 8)]
        cluster.write(
            {BORROWED_FROM: {**block, "attributes": attributes, "allocations": allocations, "unallocated": free}}
        )
        cluster.ok("delete", "node", "vm")
        left = cluster.stored(BORROWED_FROM)
        assert left["allocations"][7] is None and left["allocations"][8] is not None

    def test_records_of_others_that_cannot_be_read(self, cluster):
        bad = "/calico/resources/v3/projectcalico.org/workloadendpoints/default/nodeb-cni-x-eth0"
        cluster.write({bad: {"spec": 7}, IPAM + "assignment/ipv4/block/10.65.0.0-26": {"cidr": 7}})
        result = cluster("delete", "node", "vm")
        assert result.code == 0 and "Left out: cannot read block 10.65.0.0/26: " in result.err
        assert cluster.stored(HANDLE) is None and cluster.stored(bad) == {"spec": 7}
        cluster.write({bad.replace("nodeb", "nodec"): {"spec": 7}})
        cluster.apply(resource("Node", "nodec"))
        assert "cannot read" in cluster.fails("delete", "node", "nodec")

    def test_pool(self, cluster):
        cluster.ok("ipam", "release", "--ip=10.65.200.7")
        before = cluster.stored(POOL)
        said = cluster.fails("delete", "ippool", "pool4")
        assert "cannot delete IPPool(pool4): 4 workload addresses are in use, on nodes vm (" in said
        assert "--force" in said and cluster.stored(POOL) == before
        cluster.ok("delete", "ippool", "pool4", "--force")
        # an empty block goes, one with addresses stays and belongs to nobody
        assert cluster.stored(IPAM + "assignment/ipv4/block/10.65.200.0-26") is None
        assert cluster.stored(BLOCK)["affinity"] is None
        for node, block in (("vm", "10.65.141.64-26"), ("vm", "10.65.200.0-26"), ("nodeb", "10.65.248.128-26")):
            assert cluster.stored(f"{IPAM}host/{node}/ipv4/block/{block}") is None
        assert cluster.stored(IPAM + "host/vm/ipv6/block/fd00:65::8d40-122")["state"] == "confirmed"
        assert cluster.fails("get", "ippool", "pool4").startswith("resource does not exist")

    def test_tunnel_addresses_keep_no_pool(self, cluster):
        block = cluster.stored(BORROWED_FROM)
        used = [i for i, index in enumerate(block["allocations"]) if index is not None]
        for address in used[1:]:
            cluster.ok("ipam", "release", f"--ip=10.65.248.{128 + address}")
        for address in ("10.65.141.64", "10.65.141.65", "10.65.200.7"):
            cluster("ipam", "release", f"--ip={address}")
        block = cluster.stored(BORROWED_FROM)
        block["attributes"][0]["secondary"] = {"node": "nodeb", "type": "vxlanTunnelAddress"}
        cluster.write({BORROWED_FROM: block})
        cluster.ok("delete", "ippool", "pool4")

    def test_a_node_takes_its_own_configuration_and_peers_along(self, calicoctl):
        mine = [
            resource("FelixConfiguration", "node.n"),
            resource("BGPConfiguration", "node.n", {"logSeverityScreen": "Info"}),
            resource("BGPPeer", "of-n", {"node": "n", "peerIP": "10.0.0.1", "asNumber": 1}),
            resource("HostEndpoint", "of-n", {"node": "n", "interfaceName": "eth0"}),
        ]
        others = [
            resource("FelixConfiguration", "default"),
            resource("FelixConfiguration", "node.n2"),
            resource("BGPPeer", "of-all", {"nodeSelector": "all()", "peerIP": "10.0.0.1", "asNumber": 1}),
            resource("BGPPeer", "of-n2", {"node": "n2", "peerIP": "10.0.0.1", "asNumber": 1}),
            resource("HostEndpoint", "of-n2", {"node": "n2", "interfaceName": "eth0"}),
        ]
        calicoctl.apply([resource("Node", "n"), *mine, *others])
        calicoctl.ok("delete", "node", "n")
        for document in mine:
            assert "does not exist" in calicoctl.fails("get", document["kind"], document["metadata"]["name"])
        for document in others:
            calicoctl.ok("get", document["kind"], document["metadata"]["name"])

    def test_what_is_not_there(self, cluster):
        for kind, name in (("node", "x"), ("ippool", "x")):
            assert "resource does not exist" in cluster.fails("delete", kind, name)


@pytest.mark.parametrize("argv", [("ipam",), ("datastore",), ("datastore", "migrate"), ("ipam", "nonsense"), ()])
def test_incomplete_commands(calicoctl, argv):
    result = calicoctl(*argv)
    assert result.code == 1
    assert "usage: calicoctl" in result.err
