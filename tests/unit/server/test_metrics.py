"""What the resident server counts, as Prometheus reads it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cni_calico.cni.answer import NOTHING, Answer, answer_error
from cni_calico.errors import CalicoError, TryAgain
from cni_calico.log import SILENT
from cni_calico.server.metrics import CniMetrics, count_sizes
from cni_calico.server.resident import Resident
from tests.promtool import complaints, undescribed


def read(page: str) -> dict[tuple[object, ...], float]:
    families = text_string_to_metric_families(page)
    return {(s.name, *sorted(s.labels.items())): s.value for family in families for s in family.samples}


def test_calls_and_failures_by_code() -> None:
    metrics = CniMetrics()
    metrics.served("ADD", Answer(0, "{}"), 0.03)
    metrics.served("ADD", answer_error(TryAgain("busy"), "1.1.0"), 0.5)
    metrics.served("ADD", answer_error(TryAgain("busy"), "1.1.0"), 0.5)
    metrics.served("DEL", NOTHING, 0.001)
    metrics.served("a b", Answer(1, "no JSON"), 0.001)
    found = read(metrics.render(lambda page: count_sizes(page, "calico_x_total", "X.", (0, 4, 0, 1)), 2))
    add = ("verb", "ADD")
    assert found["calico_cni_requests_total", ("result", "ok"), add] == 1
    assert found["calico_cni_requests_total", ("result", "error"), add] == 2
    assert found["calico_cni_errors_total", ("code", "11"), add] == 2
    assert found["calico_cni_errors_total", ("code", "0"), ("verb", "other")] == 1
    assert found["calico_cni_request_seconds_bucket", ("le", "0.05"), add] == 1
    assert found["calico_cni_request_seconds_bucket", ("le", "+Inf"), add] == 3
    assert found["calico_cni_request_seconds_sum", add] == pytest.approx(1.03)
    assert found[("calico_cni_queue",)] == 2
    assert (found["calico_x_total", ("size", "1")], found["calico_x_total", ("size", "3")]) == (4, 1)
    assert ("calico_x_total", ("size", "2")) not in found


def test_promtool_has_no_complaint() -> None:
    resident = Resident(SILENT, CniMetrics())
    try:
        empty = CniMetrics().render(resident.add_metrics, 0)
        metrics = CniMetrics()
        metrics.served("ADD", answer_error(CalicoError("x"), "1.1.0"), 0.5)
        for page in (empty, metrics.render(resident.add_metrics, 0)):
            assert complaints(page) == "" and undescribed(page) == set()
            assert "# TYPE calico_cni_requests_total counter\n" in page
    finally:
        resident.close()
