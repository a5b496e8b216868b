"""docs/from-operator.md has the table of fields as it is."""

import runpy

from cni_calico.ctl.convert.fields import BY_PATH, FIELDS, USED
from cni_calico.ctl.convert.values import USED as VALUES_OF
from tests.conftest import ROOT


def test_the_page_has_the_table() -> None:
    table = runpy.run_path(str(ROOT / "build" / "operator_page.py"))["render_table"]()
    assert table in (ROOT / "docs" / "from-operator.md").read_text()


def test_each_field_has_one_row_and_what_is_used_a_function() -> None:
    assert len(BY_PATH) == len(FIELDS)
    assert {field.path for field in FIELDS if field.becomes == USED} == set(VALUES_OF)
