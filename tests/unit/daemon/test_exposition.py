"""The text format, as Prometheus' own library and tool read it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cni_calico.daemon.exposition import Exposition
from tests.promtool import complaints, undescribed


def page() -> str:
    made = Exposition()
    made.count("cars_total", "Cars that passed.", 3, colour="red")
    made.gauge("parked", "Cars parked now.", 1.5)
    made.count("cars_total", "Cars that passed.", 2, colour='"odd"\\\n')
    made.count("cars_total", "Cars that passed.", 4, colour="red")
    made.observe("trip_seconds", "How long trips took.", (0.5, 2.0), (1, 2, 4), 17.25, way="there")
    made.declare("trucks_total", "counter", "Trucks that passed.")
    return made.render()


def test_what_is_read_of_it() -> None:
    families = {family.name: family for family in text_string_to_metric_families(page())}
    read = {(s.name, *sorted(s.labels.items())): s.value for family in families.values() for s in family.samples}
    assert read == {
        ("cars_total", ("colour", "red")): 7,
        ("cars_total", ("colour", '"odd"\\\n')): 2,
        ("parked",): 1.5,
        ("trip_seconds_bucket", ("le", "0.5"), ("way", "there")): 1,
        ("trip_seconds_bucket", ("le", "2.0"), ("way", "there")): 3,
        ("trip_seconds_bucket", ("le", "+Inf"), ("way", "there")): 7,
        ("trip_seconds_sum", ("way", "there")): 17.25,
        ("trip_seconds_count", ("way", "there")): 7,
    }
    kinds = {name: (family.type, family.documentation) for name, family in families.items()}
    assert kinds["cars"] == ("counter", "Cars that passed.") and kinds["trip_seconds"][0] == "histogram"
    assert kinds["parked"] == ("gauge", "Cars parked now.") and kinds["trucks"][0] == "counter"


def test_promtool_has_no_complaint_and_would_have() -> None:
    assert complaints(page()) == "" and undescribed(page()) == set()
    assert "counter metrics should have" in complaints("# HELP cars Cars.\n# TYPE cars counter\ncars 1\n")
    assert undescribed("cars 1\n") == {"cars"}


def test_each_limit_has_its_number() -> None:
    with pytest.raises(ValueError, match="argument 2"):
        Exposition().observe("trip_seconds", "How long.", (0.5, 2.0), (1, 2), 1.0)
