"""Passwords of BGP sessions: read from Secrets, remembered through outages, named when they cannot be had."""

from base64 import b64encode
from types import SimpleNamespace

import pytest

from cni_calico.datastore.connect import open_datastore
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.bgp import feed
from cni_calico.nodeagent.bgp import kubernetes as bgp_kubernetes
from cni_calico.nodeagent.bgp.config.values import SecretRef
from cni_calico.nodeagent.bgp.kubernetes import AnnouncedServices, Secrets, parse_secret
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from tests.deadlines import SOON

REF, OTHER = SecretRef("bgp", "rack"), SecretRef("bgp", "spine")
PATH = "/api/v1/namespaces/kube-system/secrets/bgp"


def secret(**values):
    return {"data": {key: b64encode(value).decode() for key, value in values.items()}}


class Api:
    def __init__(self, bgp=None):
        self.objects = {PATH: bgp}
        self.asked = []

    def get(self, path, deadline, doing):
        self.asked.append(path)
        found = self.objects.get(path)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def reads_again(monkeypatch):
    monkeypatch.setattr(bgp_kubernetes, "READ_AGAIN_S", 0.0)


def secrets_on(api):
    return Secrets(SimpleNamespace(api=api))


def test_the_keys_of_one_secret_are_one_request():
    api = Api(bgp=secret(rack=b"one", spine=b"two"))
    secrets = secrets_on(api)
    assert secrets.read([REF, OTHER, REF], SOON) == ({REF: "one", OTHER: "two"}, [])
    assert secrets.read([REF], SOON) == ({REF: "one"}, [])
    assert api.asked == [PATH]


@pytest.mark.parametrize(("given", "own", "asked"), [("calico", "pods", "calico"), ("", "pods", "pods")])
def test_which_namespace_the_secrets_are_in(given, own, asked, tmp_path, monkeypatch):
    """As upstream's confd: that of NAMESPACE, wherever the pod is."""
    monkeypatch.setattr(feed, "own_namespace", lambda: own)
    api, store = Api(), open_datastore(DatastoreConfig("local", str(tmp_path / "d.db")))
    context = Context(parse_settings({"NAMESPACE": given}), store, None, None)
    context.kubernetes_store = SimpleNamespace(api=api)
    monkeypatch.setattr(feed, "AnnouncedServices", lambda *_: SimpleNamespace(stop=lambda: None))
    following = feed.BgpFeed(context, "n", lambda: None)
    try:
        following.secrets.read([REF], SOON)
    finally:
        following.stop()
        store.close()
    assert api.asked == [f"/api/v1/namespaces/{asked}/secrets/bgp"]


def test_a_secret_or_key_that_is_not_there_has_no_value():
    assert secrets_on(Api()).read([REF], SOON) == ({}, [])
    assert secrets_on(Api(bgp=secret(rack=b"one"))).read([OTHER], SOON) == ({}, [])


def test_a_changed_and_a_deleted_secret_are_noticed(reads_again):
    api = Api(bgp=secret(rack=b"one"))
    secrets = secrets_on(api)
    assert secrets.read([REF], SOON)[0] == {REF: "one"}
    api.objects[PATH] = secret(rack=b"two")
    assert secrets.read([REF], SOON)[0] == {REF: "two"}
    api.objects[PATH] = None
    assert secrets.read([REF], SOON)[0] == {}


def test_an_outage_forgets_nothing(reads_again):
    api = Api(bgp=secret(rack=b"one"))
    secrets = secrets_on(api)
    secrets.read([REF], SOON)
    api.objects[PATH] = DatastoreUnavailable("cannot read: away")
    assert secrets.read([REF], SOON) == ({REF: "one"}, [])


def test_what_was_never_read_is_waited_for():
    with pytest.raises(DatastoreUnavailable, match="away"):
        secrets_on(Api(bgp=DatastoreUnavailable("cannot read: away"))).read([REF], SOON)


def test_what_may_not_be_read_is_named():
    values, [problem] = secrets_on(Api(bgp=DatastoreDenied("cannot read Secret kube-system/bgp: forbidden"))).read(
        [REF], SOON
    )
    assert not values
    assert str(problem) == "Secret kube-system/bgp: cannot read Secret kube-system/bgp: forbidden"


def test_without_kubernetes_there_are_no_secrets_and_no_services():
    values, [problem] = Secrets(None).read([REF, OTHER], SOON)
    assert not values
    assert "no Kubernetes API server" in str(problem) and "Secret bgp" in str(problem)
    services, [problem] = AnnouncedServices(None, lambda: None).read(SOON)
    assert not services
    assert "no Kubernetes API server" in str(problem)


def test_values_are_the_bytes_that_were_stored():
    assert parse_secret(secret(a="pä".encode(), b=b"\xff")) == {"a": "pä", "b": "\udcff"}
    assert parse_secret({"data": {"a": "no base64!", "b": 7}}) == {}
    assert parse_secret({}) == {}
