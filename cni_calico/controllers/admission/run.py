"""The webhook as a process: ``calico-kube-controllers webhook``.

Rule: it serves once it has a certificate that the API server trusts. With ``--tls-cert-file`` the files are used, read
again when they change, and neither the Secret nor the configuration is touched.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cni_calico.backoff import Backoff
from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_datastore
from cni_calico.controllers.admission.certificates import KeyPair
from cni_calico.controllers.admission.decisions import TierAuthorizer
from cni_calico.controllers.admission.keeping import CertificateKeeper
from cni_calico.controllers.admission.serving import PORT, ReviewServer
from cni_calico.daemon.said import Said
from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.login import own_namespace
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.log import LEVELS, Log, wants_json

LOOK_S, LOOKED_S = 10.0, 8.0  # how often, and for how long at most
_FIRST_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class WebhookFlags:
    """``certificate``, ``key``: files, "" for a certificate of our own."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    port: int = PORT
    level: str = "info"


def parse_webhook_flags(flags: Mapping[str, str]) -> WebhookFlags:
    """Raises InvalidConfig."""
    certificate, key = flags.get("tls-cert-file", ""), flags.get("tls-private-key-file", "")
    if bool(certificate) != bool(key):
        raise InvalidConfig("--tls-cert-file and --tls-private-key-file belong together: give both, or none")
    port = flags.get("port", str(PORT))
    if not port.isascii() or not port.isdigit() or not int(port) <= 65535:
        raise InvalidConfig(f"--port is {port!r}: expected a number up to 65535")
    level = flags.get("log-level", "info").lower()
    if level != "trace" and level not in LEVELS:
        raise InvalidConfig(f"--log-level is {level!r}: expected one of trace, {', '.join(LEVELS)}")
    return WebhookFlags(
        certificate, key, flags.get("client-ca-file", ""), int(port), "debug" if level == "trace" else level
    )


class WebhookProcess:
    """``stopping`` ends it."""

    def __init__(self, flags: WebhookFlags, environ: Mapping[str, str], stopping: Stopping) -> None:
        """Raises InvalidConfig."""
        self._flags, self._stopping = flags, stopping
        self._log = Log(flags.level, as_json=wants_json(environ))
        config = parse_datastore(JsonFields({}), {**environ, "CALICO_DATASTORE_TYPE": "kubernetes"})
        self._api = KubernetesAPI(config.kubernetes)
        namespace = environ.get("POD_NAMESPACE", "").strip() or own_namespace()
        self.server = ReviewServer(flags.port, TierAuthorizer(self._api), namespace, self._log, flags.client_ca)
        self._keeper = CertificateKeeper(self._api, namespace)
        self._shown: KeyPair | None = None
        self._said = Said(self._log)

    def run(self) -> int:
        """Serve until it is stopped; returns the exit status. Raises InvalidConfig."""
        backoff = Backoff(_FIRST_PAUSE_S, LOOK_S)
        try:
            while not self._stopping.is_set():
                self.look()
                self._stopping.wait(LOOK_S if self.server.port else backoff.next())
        finally:
            self.server.close()
            self._api.close()
        return 0

    def look(self) -> None:
        """Read the certificate, and serve with it if it is another one."""
        try:
            pair = self._read_files() if self._flags.certificate else self._keeper.look(Deadline.after(LOOKED_S))
            if pair is not None:
                was_serving = bool(self.server.port)
                self.server.serve_with(pair)
                at = f"serving on port {self.server.port}"
                self._log.info(f"{at} with a new certificate" if was_serving else at)
        except (CalicoError, OSError) as e:
            hint = f" ({e.details})" if isinstance(e, CalicoError) and e.details else ""
            self._said.say("certificate", [f"no certificate to serve with: {e}{hint}"], "error")
            return
        self._said.say("certificate", [])

    def _read_files(self) -> KeyPair | None:
        """Raises OSError."""
        pair = KeyPair(Path(self._flags.certificate).read_bytes(), Path(self._flags.key).read_bytes())
        if pair == self._shown:
            return None
        self._shown = pair
        return pair


def run_webhook(flags: Mapping[str, str], environ: Mapping[str, str]) -> int:
    """Raises InvalidConfig."""
    stopping = Stopping()
    wanted = parse_webhook_flags(flags)
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    return WebhookProcess(wanted, environ, stopping).run()
