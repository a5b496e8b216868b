"""Real etcd servers: without TLS, with it, and with users."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.deadline import Deadline
from tests.contract import etcd_process
from tests.e2e.etcd import admin
from tests.e2e.etcd.certificates import Authority, make_authority
from tests.e2e.etcd.servers import tls_arguments, tls_config


@pytest.fixture
def within_a_minute() -> Deadline:
    return Deadline.after(60)


@pytest.fixture
def undo() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with etcd_process.single() as server:
        yield server.urls[0]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def tls_server(authority: Authority) -> Iterator[etcd_process.Cluster]:
    with etcd_process.single(arguments=tls_arguments(authority), scheme="https") as server:
        yield server


@pytest.fixture(scope="module")
def secured_etcd(authority: Authority) -> Iterator[tuple[etcd_process.Cluster, EtcdConfig]]:
    """TLS and users: root, calico (role on /calico/ only), and one known by the CN of its certificate."""
    arguments = [*tls_arguments(authority), "--auth-token-ttl", "2"]
    with etcd_process.single(arguments=arguments, scheme="https") as server:
        config = tls_config(authority, server.urls, "somebody")
        pems = [Path(p).read_bytes() for p in (config.ca_file, config.key_file, config.cert_file)]
        target = server.urls[0].removeprefix("https://")
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(*pems)) as channel:
            admin.add_role(channel, "calico-role", "/calico/")
            admin.add_user(channel, "calico", "pa55-w0rd", "calico-role")
            admin.add_user(channel, "calico-cn", "", "calico-role")
            admin.add_role(channel, "other-role", "/other/")
            admin.add_user(channel, "other-cn", "", "other-role")
            admin.enable(channel, "r00t-w0rd")
        yield server, config
