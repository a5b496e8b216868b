"""When a migration between the API groups keeps the controllers from running: by its phase and by the group in use."""

import pytest

from cni_calico.controllers.elsewhere import VERSIONS, read_why_refused
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.model.access import API_GROUP, NATIVE_GROUP, KubernetesAccess
from tests.deadlines import soon
from tests.fakes.scripted_http import scripted


@pytest.mark.parametrize(
    ("group", "phase", "refused"),
    [
        (API_GROUP, "", True),
        (API_GROUP, "Migrating", True),
        (API_GROUP, "Converged", True),
        (API_GROUP, "Complete", True),
        (NATIVE_GROUP, "", True),
        (NATIVE_GROUP, "Migrating", True),
        (NATIVE_GROUP, "Converged", False),
        (NATIVE_GROUP, "Complete", False),
    ],
)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_migration_keeps_the_controllers_off_the_records_that_are_not_in_use(group, phase, refused, version):
    migration = {"metadata": {"name": "v1-to-v3"}, "status": {"phase": phase}}
    with scripted(*([(404, "")] if version == "v1" else []), (200, {"items": [migration]})) as server:
        store = KubernetesStore(KubernetesAccess(api_root=server.url, token="t", api_group=group))
        why = read_why_refused(store, soon())
        assert version in server.requests[-1][1]
    assert bool(why) == refused
    assert not why or ("DatastoreMigration v1-to-v3" in why and f"keep the records in {group}" in why)


@pytest.mark.parametrize("answer", [(200, {"items": []}), (404, "404 page not found"), (403, {"message": "no"})])
def test_no_migration_is_no_reason(answer):
    with scripted(answer, always=answer) as server:
        store = KubernetesStore(KubernetesAccess(api_root=server.url, token="t", api_group=NATIVE_GROUP))
        assert read_why_refused(store, soon()) == ""
