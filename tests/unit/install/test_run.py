"""What an installer that stays does: for the Secret, and for the plugin's token, against an API server whose answers a
test chooses, with a clock of the test's.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.token import STAND_IN_LOOK_S, Token, refresh_pause_s
from cni_calico.install.run import TokenUpkeep, keep_installed, seen_secret
from cni_calico.install.settings import Settings, parse_settings
from cni_calico.install.steps import ensure_tls_assets
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from tests.fakes.scripted_http import Scripted, scripted

TEMPLATE = '{"name": "n", "type": "calico", "policy": {"k8s_auth_token": "__SERVICEACCOUNT_TOKEN__"}}'
WITHOUT = '{"name": "n", "type": "calico"}'
FORBIDDEN = (403, {"message": "no right to serviceaccounts/token"})
DAY_S = 86400.0


def given(token: str) -> tuple[int, dict[str, Any]]:
    return 201, {"status": {"token": token}}


class World:
    """A node's directories and a clock that only the test moves."""

    def __init__(self, root: Path, server: Scripted, template: str = TEMPLATE) -> None:
        self.now_s = 0.0
        self.requests = server.requests
        self.net = root / "host/etc/cni/net.d"
        self.account = root / "var/run/secrets/kubernetes.io/serviceaccount"
        for directory in (self.net, self.account):
            directory.mkdir(parents=True)
        (self.account / "token").write_text("pod-1")
        (self.net / "10-calico.conflist").write_text(template.replace("__SERVICEACCOUNT_TOKEN__", "first"))
        host, port = server.url.removeprefix("http://").split(":")
        environ = {
            "CALICO_INSTALL_ROOT": str(root),
            "CNI_NETWORK_CONFIG": template,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PROTOCOL": "http",
            "SKIP_TLS_VERIFY": "true",
        }
        self.settings: Settings = parse_settings(environ, bundle="/b")

    def upkeep(self, token: Token) -> TokenUpkeep:
        return TokenUpkeep(self.settings, Log("info"), token, now=lambda: self.now_s, random=lambda: 0.0)

    def tokens(self) -> tuple[str, str]:
        """(the kubeconfig's, the network configuration's)."""
        kubeconfig = json.loads((self.net / "calico-kubeconfig").read_text())
        conflist = json.loads((self.net / "10-calico.conflist").read_text())
        return kubeconfig["users"][0]["user"]["token"], conflist["policy"]["k8s_auth_token"]


def test_a_token_is_renewed_before_it_ends(tmp_path: Path) -> None:
    with scripted(given("second")) as server:
        world = World(tmp_path, server)
        upkeep = world.upkeep(Token("first", DAY_S))
        world.now_s = DAY_S / 2 - 1
        upkeep.look()
        assert not world.requests
        world.now_s += 1
        upkeep.look()
        assert world.tokens() == ("second", "second")
        upkeep.look()
        assert len(world.requests) == 1


def test_a_configuration_that_was_removed_stays_away(tmp_path: Path) -> None:
    with scripted(given("second")) as server:
        world = World(tmp_path, server)
        upkeep = world.upkeep(Token("first", DAY_S))
        (world.net / "10-calico.conflist").unlink()
        world.now_s = DAY_S
        upkeep.look()
        assert [path.name for path in world.net.iterdir()] == ["calico-kubeconfig"]


def test_a_configuration_without_the_token_is_not_written_again(tmp_path: Path) -> None:
    with scripted(given("second")) as server:
        world = World(tmp_path, server, WITHOUT)
        before = (world.net / "10-calico.conflist").stat()
        upkeep = world.upkeep(Token("first", DAY_S))
        world.now_s = DAY_S
        upkeep.look()
        after = (world.net / "10-calico.conflist").stat()
        assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
        assert "second" in (world.net / "calico-kubeconfig").read_text()


def test_the_pods_own_token_is_followed_until_the_accounts_may_be_had(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with scripted(FORBIDDEN, FORBIDDEN, given("accounts")) as server:
        world = World(tmp_path, server)
        upkeep = world.upkeep(Token("pod-1", DAY_S, stands_in="it is forbidden"))
        upkeep.look()
        assert not world.requests
        (world.account / "token").write_text("pod-2")
        upkeep.look()  # at once: the pod has another token
        assert world.tokens() == ("pod-2", "pod-2")
        world.now_s += STAND_IN_LOOK_S
        upkeep.look()  # asked again; nothing has changed
        assert world.tokens() == ("pod-2", "pod-2") and len(world.requests) == 2
        world.now_s += STAND_IN_LOOK_S
        upkeep.look()
        assert world.tokens() == ("accounts", "accounts")
        (world.account / "token").write_text("pod-3")
        upkeep.look()
        assert len(world.requests) == 3
    output = capfd.readouterr().err
    assert output.count("The plugin uses the token of this pod instead") == 1
    assert "pod-2" not in output and "accounts" not in output.replace("serviceaccounts", "")


def test_a_failure_is_told_and_tried_again_later(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with scripted((400, {"message": "not now"}), (400, {"message": "not now"}), given("second")) as server:
        world = World(tmp_path, server)
        (world.account / "token").write_text("pod-2")
        upkeep = world.upkeep(Token("pod-1", DAY_S, stands_in="it is forbidden"))
        for seconds, requests in ((0, 1), (0, 1), (2, 2), (2, 2), (2, 3)):
            world.now_s += seconds
            upkeep.look()
            assert len(world.requests) == requests
        assert world.tokens() == ("second", "second")
    assert capfd.readouterr().err.count("not now; trying again in") == 2


def test_how_soon_the_next_one_is_asked_for() -> None:
    own = Token("t", 3600, stands_in="it is forbidden")
    assert refresh_pause_s(Token("t", 1000), random=0.5) == 625
    assert refresh_pause_s(own, random=0.5) == STAND_IN_LOOK_S
    assert refresh_pause_s(Token("t", 600, stands_in="it is forbidden"), random=0.5) == 60


def test_a_secret_that_changes_while_it_is_installed_is_copied_again(tmp_path: Path) -> None:
    secrets, net = tmp_path / "calico-secrets", tmp_path / "host/etc/cni/net.d"
    for directory in (secrets, net):
        directory.mkdir(parents=True)
    (secrets / "etcd-key").write_text("one")
    settings = parse_settings({"CALICO_INSTALL_ROOT": str(tmp_path), "CNI_NETWORK_CONFIG": WITHOUT}, bundle="/b")
    seen = seen_secret(settings)
    ensure_tls_assets(settings, Files())
    assert (net / "calico-tls/etcd-key").read_text() == "one"
    (secrets / "etcd-key").write_text("another")
    looks = iter([False, True])
    keep_installed(settings, Log("error"), None, seen, wait=lambda _: next(looks))
    assert (net / "calico-tls/etcd-key").read_text() == "another"
