"""From a DatastoreConfig to an open backend; the client library of a backend is imported only when it is chosen."""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.datastore.interface import Datastore
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.names import DEFAULT_PREFIX

NO_ENDPOINTS = "set etcd_endpoints in the network configuration, or ETCD_ENDPOINTS"
WHICH_TYPES = "datastore_type must be local, etcdv3 or kubernetes"


def open_datastore(
    config: DatastoreConfig,
    *,
    veth_prefix: str = DEFAULT_PREFIX,
    reach: Callable[[str], str] | None = None,
) -> Datastore:
    """Open the backend that ``config`` names. Raises InvalidConfig, DatastoreError.

    ``veth_prefix`` is the prefix of host interfaces' names if they are not stored (Kubernetes): FELIX_INTERFACEPREFIX.
    ``reach`` turns a path in the configuration into one that this process can open, each time it is opened; the
    embedded store's path is always this process's own.
    """
    if config.type == "local":
        from cni_calico.datastore.local.store import LocalStore

        return LocalStore(config.path)
    if config.type == "etcdv3":
        if not config.etcd_endpoints and not config.etcd_discovery_srv:
            raise InvalidConfig(
                "cannot open the etcdv3 datastore: no etcd endpoints specified",
                details=NO_ENDPOINTS,
            )
        from cni_calico.datastore.etcd.config import EtcdConfig
        from cni_calico.datastore.etcd.credentials import as_it_is
        from cni_calico.datastore.etcd.store import EtcdStore

        etcd = EtcdConfig(
            endpoints=config.etcd_endpoints,
            discovery_srv=config.etcd_discovery_srv,
            key_file=config.etcd_key_file,
            cert_file=config.etcd_cert_file,
            ca_file=config.etcd_ca_cert_file,
            username=config.etcd_username,
            password=config.etcd_password,
        )
        return EtcdStore(etcd, reach=reach or as_it_is)
    if config.type == "kubernetes":
        from cni_calico.datastore.kubernetes.store import KubernetesStore

        return KubernetesStore(config.kubernetes, read=reader(reach), veth_prefix=veth_prefix)
    raise InvalidConfig(
        f"cannot open the datastore: unknown datastore type: {config.type}",
        details=WHICH_TYPES,
    )


def connect_soon(store: Datastore) -> None:
    """Begin to connect where that takes time: what comes next does not wait for it. To be called before there are other
    threads, so that no more of the client library is loaded than is used.
    """
    if store.kind == "etcdv3":
        from cni_calico.datastore.etcd.store import EtcdStore

        if isinstance(store, EtcdStore):
            store.cluster.connect_soon()


def reader(reach: Callable[[str], str] | None) -> Callable[[str], bytes]:
    """A function that reads a kubeconfig and the files that it names."""
    from cni_calico.datastore.kubernetes.login import read_file

    return read_file if reach is None else lambda path: read_file(reach(path))
