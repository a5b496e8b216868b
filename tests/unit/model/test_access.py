"""Whether two configurations mean one datastore, however each reaches it."""

import pytest

from cni_calico.model.access import DatastoreConfig, KubernetesAccess, is_same_datastore

ETCD = DatastoreConfig("etcdv3", etcd_endpoints=("https://a:2379", "https://b:2379"), etcd_key_file="/etc/a.key")


def etcd_at(endpoint: str) -> DatastoreConfig:
    return DatastoreConfig("etcdv3", etcd_endpoints=(endpoint,))


@pytest.mark.parametrize(
    ("own", "other", "same"),
    [
        (ETCD, ETCD, True),
        (ETCD, DatastoreConfig("etcdv3", etcd_endpoints=("https://b:2379",), etcd_key_file="/host/b.key"), True),
        (ETCD, DatastoreConfig("etcdv3", etcd_endpoints=("https://c:2379",)), False),
        (DatastoreConfig("etcdv3", etcd_discovery_srv="x"), DatastoreConfig("etcdv3", etcd_discovery_srv="x"), True),
        (ETCD, DatastoreConfig("etcdv3", etcd_endpoints=("http://A:2379/",)), True),
        (ETCD, DatastoreConfig("etcdv3", etcd_endpoints=("b:2379",)), True),
        (ETCD, DatastoreConfig("etcdv3", etcd_endpoints=("https://b",)), True),
        (ETCD, DatastoreConfig("etcdv3", etcd_endpoints=("b:2380",)), False),
        (etcd_at("a:2379"), etcd_at("c:2379"), False),
        (etcd_at("::1"), etcd_at("http://[::1]:2379/"), True),
        (etcd_at("[::1]"), etcd_at("[::1]:2379"), True),
        (etcd_at("[::1]"), etcd_at("[::1]:2380"), False),
        (DatastoreConfig("etcdv3"), DatastoreConfig("etcdv3"), False),
        (DatastoreConfig("local", path="/a"), DatastoreConfig("local", path="/a"), True),
        (DatastoreConfig("local", path="/a"), DatastoreConfig("local", path="/b"), False),
        (DatastoreConfig("local", path="/a"), ETCD, False),
        (
            DatastoreConfig("kubernetes"),
            DatastoreConfig("kubernetes", kubernetes=KubernetesAccess(kubeconfig="/etc/cni/net.d/kc")),
            True,
        ),
    ],
)
def test_the_same_datastore(own, other, same):
    assert is_same_datastore(own, other) is same is is_same_datastore(other, own)
