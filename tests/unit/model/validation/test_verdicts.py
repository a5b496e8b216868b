"""Documents that upstream takes or refuses (tests/golden/verdicts): ours takes and refuses the same."""

import pathlib

import pytest
import yaml

from cni_calico.model.validation.check import check_resource
from cni_calico.model.validation.defaults import with_defaults

VERDICTS = pathlib.Path(__file__).parents[3] / "golden" / "verdicts"
NAMESPACED = ("NetworkPolicy", "NetworkSet", "StagedNetworkPolicy", "StagedKubernetesNetworkPolicy")
TABLE = [row for table in sorted(VERDICTS.glob("*.yaml")) for row in yaml.safe_load(table.read_text())]


def document_of(row):
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": row["kind"],
        "metadata": {"name": row.get("name", "x"), **({"namespace": "n"} if row["kind"] in NAMESPACED else {})},
        "spec": row["spec"],
    }


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row['kind']}-{row.get('wrong', 'valid')}")
def test_verdict(row):
    found = [problem.at for problem in check_resource(with_defaults(document_of(row))).problems]
    assert found == ([f"{row['kind']}.{row['wrong']}"] if "wrong" in row else [])
