"""The webhook's certificate: made, trusted before it is shown, renewed, and never taken from somebody else."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from cni_calico.controllers.admission import keeping
from cni_calico.controllers.admission.certificates import DAY_S, KeyPair, make_certificate
from cni_calico.controllers.admission.keeping import (
    CONFIGURATION,
    MADE_BY,
    NAME,
    RENEW_S,
    SECRET,
    SETTLE_S,
    VALID_S,
    CertificateKeeper,
)
from cni_calico.datastore.kubernetes.answers import ApiReply
from cni_calico.deadline import Deadline
from cni_calico.errors import InvalidConfig
from tests.deadlines import soon

SECRETS = "/api/v1/namespaces/kube-system/secrets"
SERVER = f"{NAME}.kube-system.svc"


class ObjectServer:
    """Objects by path, with resourceVersions that are compared."""

    def __init__(self) -> None:
        service = {"name": NAME, "namespace": "kube-system"}
        hooks = [{"name": "a", "clientConfig": {"service": service}}, {"name": "b", "clientConfig": {"url": "x"}}]
        self.objects: dict[str, Any] = {CONFIGURATION: {"metadata": {"resourceVersion": "1"}, "webhooks": hooks}}
        self.writes: list[str] = []

    def get(self, path: str, _deadline: Deadline, _doing: str) -> Any:
        return self.objects.get(path)

    def send(self, request: Any, _deadline: Deadline) -> ApiReply:
        path = request.path + (f"/{SECRET}" if request.method == "POST" else "")
        there = self.objects.get(path)
        version = 0 if there is None else int(there["metadata"]["resourceVersion"])
        given = int(request.body["metadata"].get("resourceVersion", 0))
        if given != version:
            return ApiReply(409, {})
        metadata = {**request.body["metadata"], "resourceVersion": str(version + 1)}
        self.objects[path] = {**request.body, "metadata": metadata}
        self.writes.append(path)
        return ApiReply(200, self.objects[path])

    def put_secret(self, pair: KeyPair, ca: bytes, **annotations: str) -> None:
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": ca}
        self.objects[f"{SECRETS}/{SECRET}"] = {
            "metadata": {"resourceVersion": "5", "annotations": annotations},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items() if value},
        }

    def data(self, key: str) -> bytes:
        return base64.b64decode(self.objects[f"{SECRETS}/{SECRET}"]["data"][key])

    def trusted(self) -> bytes:
        hooks = self.objects[CONFIGURATION]["webhooks"]
        assert "caBundle" not in hooks[1]["clientConfig"]  # another's
        return base64.b64decode(hooks[0]["clientConfig"].get("caBundle", ""))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def keeper_of(server: Any, clock: Clock | None = None) -> CertificateKeeper:
    return CertificateKeeper(server, "kube-system", clock or Clock())


def test_the_first_is_made_and_trusted_and_stays() -> None:
    server = ObjectServer()
    keeper = keeper_of(server)
    shown = keeper.look(soon())
    assert shown is not None and server.data("tls.crt") == shown.certificate and server.data("tls.key") == shown.key
    assert server.trusted() == shown.certificate
    writes = list(server.writes)
    assert keeper.look(soon()) is None and server.writes == writes
    assert keeper_of(server).look(soon()) == shown and server.writes == writes  # another pod, or this one again


def test_a_configuration_that_was_applied_anew_is_filled_in() -> None:
    server = ObjectServer()
    keeper = keeper_of(server)
    shown = keeper.look(soon())
    server.objects[CONFIGURATION] = ObjectServer().objects[CONFIGURATION]
    assert keeper.look(soon()) is None
    assert shown is not None and server.trusted() == shown.certificate
    del server.objects[CONFIGURATION]
    assert keeper.look(soon()) is None and CONFIGURATION not in server.objects


@pytest.mark.parametrize("left_s", [RENEW_S - DAY_S, -DAY_S])
def test_an_old_one_is_replaced_and_trusted_until_every_pod_shows_the_new_one(left_s: int) -> None:
    server, clock = ObjectServer(), Clock()
    server.objects[CONFIGURATION]["webhooks"].reverse()
    server.objects[CONFIGURATION]["webhooks"].reverse()
    old = make_certificate([SERVER], VALID_S)
    server.put_secret(old, old.certificate, **{MADE_BY: NAME})
    first, second = keeper_of(server, clock), keeper_of(server, clock)
    assert first.look(soon()) == second.look(soon()) == old
    aged = make_certificate([SERVER], left_s)
    server.put_secret(aged, aged.certificate, **{MADE_BY: NAME})
    assert first.look(soon()) is None  # renewed; the API server may not know it yet
    new = server.data("tls.crt")
    assert new not in (old.certificate, aged.certificate)
    assert server.trusted() == new + (aged.certificate if left_s > 0 else b"")
    assert second.look(soon()) is None
    clock.now += SETTLE_S
    shown = [keeper.look(soon()) for keeper in (first, second)]
    assert [each.certificate for each in shown if each] == [new, new]


def test_two_pods_at_once_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ObjectServer()
    first, second = keeper_of(server), keeper_of(server)
    make, others = keeping.make_certificate, []

    def while_another_looks(names: list[str], valid_s: int) -> KeyPair:
        if not others:
            others.append(None)
            others.append(second.look(soon()))
        return make(names, valid_s)

    monkeypatch.setattr(keeping, "make_certificate", while_another_looks)
    assert first.look(soon()) is None
    assert others[1] is not None and first.look(soon()) == others[1]
    assert server.writes.count(f"{SECRETS}/{SECRET}") == 1


@pytest.mark.parametrize("ca", [True, False])
def test_somebody_elses_is_used_and_left_alone(ca: bool) -> None:
    server = ObjectServer()
    theirs, authority = make_certificate([SERVER], DAY_S), make_certificate(["authority"], DAY_S)
    server.put_secret(theirs, authority.certificate if ca else b"")
    assert keeper_of(server).look(soon()) == theirs
    assert server.trusted() == (authority.certificate if ca else b"")
    assert f"{SECRETS}/{SECRET}" not in server.writes


@pytest.mark.parametrize("wrong", ["another server", "another key", "no certificate", "no base64"])
def test_one_that_cannot_be_used(wrong: str) -> None:
    server = ObjectServer()
    good, other = make_certificate([SERVER], VALID_S), make_certificate(["elsewhere.svc"], VALID_S)
    bad = {
        "another server": other,
        "another key": KeyPair(good.certificate, other.key),
        "no certificate": KeyPair(b"garbage", good.key),
        "no base64": KeyPair(b"", b""),
    }[wrong]
    server.put_secret(bad, bad.certificate)
    if wrong == "no base64":
        server.objects[f"{SECRETS}/{SECRET}"]["data"] = {"tls.crt": "%%%", "tls.key": 5}
    with pytest.raises(InvalidConfig, match="Secret kube-system/calico-webhooks-tls"):
        keeper_of(server).look(soon())
    assert not server.writes
    server.objects[f"{SECRETS}/{SECRET}"]["metadata"]["annotations"] = {MADE_BY: NAME}
    shown = keeper_of(server).look(soon())  # ours: made anew
    assert shown is not None and server.data("tls.crt") == shown.certificate
