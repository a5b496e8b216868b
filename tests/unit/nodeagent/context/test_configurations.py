"""Which FelixConfigurations count: node.NAME before a selecting one before default; annotations before fields."""

from __future__ import annotations

import pytest

from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.context.configurations import select_scoped, spec_of
from cni_calico.nodeagent.context.felix import parse_felix

EDGE = {"rack": "edge"}


def felix(name: str, selector: str = "", at: str = "2026-01-01T00:00:00Z", **spec: object) -> Resource:
    chosen = {"nodeSelector": selector} if selector else {}
    return Resource("FelixConfiguration", Metadata(name, creation_timestamp=at), {**chosen, **spec})


def annotated(spec: dict[str, object], **parameters: str) -> Resource:
    annotations = {f"config.projectcalico.org/{name}": text for name, text in parameters.items()}
    return Resource("FelixConfiguration", Metadata("default", annotations={**annotations, "other": "1"}), spec)


def mtu(environ: dict[str, str], node: dict[str, object] | None, *records: Resource) -> int:
    default = next((record.spec for record in records if record.metadata.name == "default"), None)
    return parse_felix(environ, node, default, select_scoped(records, EDGE)).settings.vxlan_mtu


def test_a_selecting_one_stands_between_the_nodes_and_the_default() -> None:
    default, edge = felix("default", vxlanMTU=1100), felix("edge", "rack == 'edge'", vxlanMTU=1200)
    assert mtu({}, None, default, edge) == 1200
    assert mtu({}, {"vxlanMTU": 1300}, default, edge) == 1300
    assert mtu({"FELIX_VXLANMTU": "1400"}, {"vxlanMTU": 1300}, default, edge) == 1400
    assert mtu({}, None, default, felix("others", "rack == 'core'", vxlanMTU=1200)) == 1100
    assert mtu({}, None, default, felix("edge", vxlanMTU=1200)) == 1100  # it selects nothing


def test_of_several_only_the_oldest_counts_then_the_smaller_name() -> None:
    old = felix("z", "has(rack)", "2025-01-01T00:00:00Z", vxlanMTU=1200)
    young = [felix(name, "has(rack)", vxlanMTU=1300, healthPort=1) for name in ("b", "a")]
    found = select_scoped((*young, old), EDGE)
    assert (found.name, dict(found.spec or {})) == ("z", dict(old.spec))
    [warning] = found.warnings
    assert warning.startswith(
        "Multiple selector-scoped FelixConfigurations match this node; using the oldest, z; without effect here: a, b"
    )
    assert select_scoped(young, EDGE).name == "a"


def test_nothing_selects_a_node_whose_labels_are_not_known() -> None:
    assert select_scoped([felix("edge", "all()")], None).spec is None
    assert select_scoped([felix("edge", "all()")], {}).name == "edge"


@pytest.mark.parametrize("name", ["default", "node.n1"])
def test_a_selector_where_the_name_says_enough_is_named(name: str) -> None:
    found = select_scoped([felix(name, "all()", vxlanMTU=1200)], EDGE)
    assert found.spec is None and found.warnings == (
        f"nodeSelector of FelixConfiguration {name} is not used: its name says where it counts",
    )


@pytest.mark.parametrize("selector", ["rack ==", "(" * 300 + "all()", 7])
def test_a_selector_that_cannot_be_read_selects_nothing_and_is_named(selector: object) -> None:
    broken = Resource("FelixConfiguration", Metadata("edge"), {"nodeSelector": selector, "vxlanMTU": 1200})
    found = select_scoped([broken, felix("good", "all()", vxlanMTU=1300)], EDGE)
    assert found.name == "good" and "FelixConfiguration edge is not used" in found.warnings[0]


def test_an_annotation_wins_over_the_field_of_its_resource_only() -> None:
    spec = spec_of(annotated({"vxlanMTU": 1100, "healthPort": 9199}, VXLANMTU="1200", iptablesrefreshinterval="7"))
    found = parse_felix({}, None, spec)
    assert found.warnings == ()
    assert (found.settings.vxlan_mtu, found.settings.health_port, found.settings.iptables_refresh_s) == (1200, 9199, 7)
    assert parse_felix({}, {"vxlanMTU": 1300}, spec).settings.vxlan_mtu == 1300


def test_a_selecting_ones_annotations_count_too() -> None:
    record = Resource(
        "FelixConfiguration",
        Metadata("edge", annotations={"config.projectcalico.org/VXLANMTU": "1200"}),
        {"nodeSelector": "all()", "vxlanMTU": 1100},
    )
    assert parse_felix({}, None, {"vxlanMTU": 1000}, select_scoped([record], {})).settings.vxlan_mtu == 1200


def test_an_annotation_that_is_wrong_or_unknown_is_named() -> None:
    found = parse_felix({}, None, spec_of(annotated({"vxlanMTU": 1100}, VXLANMTU="many", NoSuch="1")))
    assert found.settings.vxlan_mtu == 1100
    assert [text.partition("=")[0] for text in found.warnings] == [
        "annotation config.projectcalico.org/VXLANMTU of FelixConfiguration default",
        "annotation config.projectcalico.org/NoSuch of FelixConfiguration default is unknown: no parameter has this "
        "name",
    ]


@pytest.mark.parametrize(
    ("spec", "deny", "mask"),
    [
        ({"iptablesFilterDenyAction": "Reject", "iptablesMarkMask": 0xFF00}, "Reject", 0xFF00),
        ({"iptablesFilterDenyAction": "Reject", "nftablesFilterDenyAction": "Drop"}, "Drop", 0xFFFF0000),
        ({"iptablesMarkMask": 0xFF00, "nftablesMarkMask": 0xF0, "nftablesMode": "Enabled"}, "Drop", 0xF0),
        ({"iptablesMarkMask": 0xFF00, "nftablesMarkMask": 0xF0, "nftablesMode": "Disabled"}, "Drop", 0xFF00),
        ({"nftablesMarkMask": 0xF0, "nftablesMode": "Disabled"}, "Drop", 0xF0),
    ],
)
def test_the_older_names_of_what_upstream_has_twice(spec: dict[str, object], deny: str, mask: int) -> None:
    found = parse_felix({}, None, spec)
    assert (found.settings.filter_deny_action, found.settings.mark_mask, found.warnings) == (deny, mask, ())
