"""An operator's Installation as the chart's values: nothing is left out silently."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.convert.fields import FIELDS, REFUSED, USED
from cni_calico.ctl.convert.installation import convert_installation, select_installation
from cni_calico.ctl.convert.values import nested
from cni_calico.errors import InvalidConfig
from tests.installations import EXAMPLES

# what the operator decides where nothing is said, and so is there always
ALWAYS = {"cni": {"type": "Calico"}, "calicoNetwork": {"bgp": "Enabled"}}


def values_of(spec: Any) -> Any:
    return convert_installation(spec, "i.yaml").values


def without_defaults(values: Any) -> Any:
    out = json.loads(json.dumps(values))
    installation = out["installation"]
    for part, defaults in ALWAYS.items():
        for name, value in defaults.items():
            if installation[part].get(name) == value:
                del installation[part][name]
        if not installation[part]:
            del installation[part]
    if not installation:
        del out["installation"]
    return out


@pytest.mark.parametrize("path", [field.path for field in FIELDS if field.becomes == USED])
def test_a_field_that_is_used_is_in_the_values(path: str) -> None:
    given_value, wanted = EXAMPLES[path]
    found = without_defaults(values_of(nested(path, given_value)))
    assert found == without_defaults(
        {**wanted, "installation": {**{part: {} for part in ALWAYS}, **wanted.get("installation", {})}}
    )


@pytest.mark.parametrize("field", [field for field in FIELDS if field.becomes == REFUSED], ids=lambda field: field.path)
def test_a_field_that_is_refused_says_what_to_do(field: Any) -> None:
    with pytest.raises(InvalidConfig) as refused:
        values_of(nested(field.path, "Else"))
    assert f'{field.path}: "Else": {field.text}' in str(refused.value)
    for value in field.unless:
        assert values_of(nested(field.path, value)) == values_of({})


@pytest.mark.parametrize(
    "field", [field for field in FIELDS if field.becomes not in (USED, REFUSED)], ids=lambda field: field.path
)
def test_a_field_without_effect_is_named(field: Any) -> None:
    converted = convert_installation(nested(field.path, "x"), "i.yaml")
    assert converted.values == values_of({})
    [note] = converted.notes
    assert note.startswith(f"{field.path}: ") and field.text in note


def test_every_field_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(InvalidConfig) as refused:
        values_of({"fipsMode": "Enabled", "cni": {"new": 1}, "calicoNetwork": {"mtu": 9, "linuxDataplane": "VPP"}})
    text = f"{refused.value} {refused.value.details}"
    assert "fipsMode" in text and "calicoNetwork.linuxDataplane" in text
    assert "cni.new: 1: this version does not know the field" in text


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"cni": {"type": "GKE"}}, "cni.type: expected Calico or AmazonVPC or AzureVNET"),
        ({"kubernetesProvider": "GKE"}, "GKE's network cannot be replaced"),
        ({"kubernetesProvider": "TKG"}, "kubernetesProvider"),
        (
            {"cni": {"type": "AmazonVPC"}, "calicoNetwork": {"ipPools": [{"cidr": "10.0.0.0/16"}]}},
            "calicoNetwork.ipPools",
        ),
        ({"calicoNetwork": {"ipPools": [{"cidr": 7}]}}, r"calicoNetwork.ipPools\[0\].cidr"),
        ({"calicoNetwork": {"nodeAddressAutodetectionV6": {"interface": "a", "canReach": "b"}}}, "one of firstFound"),
        ({"logging": {"cni": {"logFileMaxSize": "much"}}}, "logging.cni.logFileMaxSize"),
        ({"proxy": {"ftp": "x"}}, "proxy.ftp"),
        ({"componentResources": [{"componentName": "Dex"}]}, "componentName"),
        ({"calicoNodeDaemonSet": {"spec": {"minReadySeconds": 5}}}, "calicoNodeDaemonSet.spec.minReadySeconds"),
        (
            {"calicoNodeDaemonSet": {"spec": {"template": {"spec": {"containers": [{"name": "other"}]}}}}},
            "calico-node or install-cni",
        ),
    ],
)
def test_what_cannot_be_said_with_values(spec: Any, text: str) -> None:
    with pytest.raises(InvalidConfig, match=text):
        values_of(spec)


def test_no_pool_is_made_where_the_operator_was_told_to_make_none() -> None:
    assert values_of({"calicoNetwork": {"ipPools": []}})["node"]["env"] == [
        {"name": "NO_DEFAULT_POOLS", "value": "true"}
    ]
    other = values_of({"kubernetesProvider": "EKS", "calicoNetwork": {"ipPools": []}})
    assert other["installation"]["cni"]["type"] == "AmazonVPC" and other["node"]["env"] == []


def test_host_local_addresses_without_bgp_have_no_tunnels() -> None:
    network = {"cni": {"ipam": {"type": "HostLocal"}}, "calicoNetwork": {"bgp": "Disabled"}}
    assert values_of(network)["network"] == "none"


def document(name: str, spec: Any, **more: Any) -> dict[str, Any]:
    head = {"apiVersion": "operator.tigera.io/v1", "kind": "Installation", "metadata": {"name": name}}
    return {**head, "spec": spec, **more}


def test_what_the_operator_computed_counts() -> None:
    computed = document("default", {"variant": "x"}, status={"computed": {"variant": "Calico"}})
    assert select_installation([computed], "f") == {"variant": "Calico"}


def test_an_overlay_is_merged_over_it() -> None:
    main = document("default", {"cni": {"type": "Calico", "binDir": "/a"}, "imagePullSecrets": [{"name": "a"}]})
    over = document("overlay", {"cni": {"binDir": "/b"}, "imagePullSecrets": [{"name": "b"}]})
    assert select_installation([over, main], "f") == {
        "cni": {"type": "Calico", "binDir": "/b"},
        "imagePullSecrets": [{"name": "b"}],
    }


@pytest.mark.parametrize(
    "documents",
    [[], [document("overlay", {})], [document("default", 7)], [{**document("default", {}), "metadata": ["x"]}]],
)
def test_a_file_without_an_installation(documents: Any) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot convert f: "):
        select_installation(documents, "f")


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([field.path for field in FIELDS]), TREES, max_size=3))
def test_any_value_is_converted_or_refused(fields: dict[str, Any]) -> None:
    from cni_calico.ctl.convert.values import merged

    spec: Any = {}
    for path, value in fields.items():
        spec = merged(spec, nested(path, value))
    try:
        assert values_of(spec)["installation"]
    except InvalidConfig as e:
        assert str(e).startswith("cannot convert the Installation of i.yaml: ")
