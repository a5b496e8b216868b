"""The webhook's certificate in its Secret, and in the configuration by which the API server trusts it.

Rule: a certificate that we made is replaced when less than a third of its time is left. The API server trusts the new
one, beside the former, before any of the webhook's pods shows it. A Secret that somebody else made (cert-manager, an
administrator) is used and never written; the API server is told its ``ca.crt``, if it has one.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.controllers.admission.certificates import (
    KeyPair,
    make_certificate,
    names_server,
    read_left_s,
    serving_context,
)
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.errors import InvalidConfig

NAME = "calico-webhooks"  # of the Service, and of the ValidatingWebhookConfiguration
SECRET = "calico-webhooks-tls"
MADE_BY = "cni-calico.io/made-by"  # the Secret's annotation
VALID_S = 365 * 86400
RENEW_S = VALID_S // 3
SETTLE_S = 20.0  # until the API server surely works with what its configuration says
CONFIGURATION = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{NAME}"
_CONFLICT = 409


class CertificateKeeper:
    """``look`` keeps both in order; ``now``: seconds of a clock that does not go back."""

    def __init__(self, api: KubernetesAPI, namespace: str, now: Callable[[], float] = time.monotonic) -> None:
        self._api, self._namespace, self._now = api, namespace, now
        self._secrets = f"/api/v1/namespaces/{namespace}/secrets"
        self._name = f"{NAME}.{namespace}.svc"
        self._shown: KeyPair | None = None
        self._next: tuple[KeyPair, float] | None = None

    def look(self, deadline: Deadline) -> KeyPair | None:
        """The certificate to show from now on; None if that has not changed. Raises InvalidConfig, DatastoreError,
        DeadlineExceeded.
        """
        secret = self._api.get(f"{self._secrets}/{SECRET}", deadline, f"read Secret {SECRET}")
        if secret is None or (_is_ours(secret) and not self._is_good(secret)):
            secret = self._renew(secret, deadline)
        if secret is None:
            return None  # another pod was first; it is read at the next look
        pair = self._usable(secret)
        self._trust(_data(secret, "ca.crt"), deadline)
        return self._when_trusted(pair)

    def _when_trusted(self, pair: KeyPair) -> KeyPair | None:
        if pair == self._shown:
            self._next = None
            return None
        if self._shown is not None:
            if self._next is None or self._next[0] != pair:
                self._next = (pair, self._now() + SETTLE_S)
            if self._now() < self._next[1]:
                return None
        self._shown, self._next = pair, None
        return pair

    # -- the Secret ---------------------------------------------------------------------------------------------------

    def _is_good(self, secret: Mapping[str, Any]) -> bool:
        try:
            pair = self._usable(secret)
            return read_left_s(pair.certificate) >= RENEW_S and pair.certificate in _data(secret, "ca.crt")
        except InvalidConfig:
            return False

    def _usable(self, secret: Mapping[str, Any]) -> KeyPair:
        """Raises InvalidConfig."""
        pair = KeyPair(_data(secret, "tls.crt"), _data(secret, "tls.key"))
        where = f"Secret {self._namespace}/{SECRET}"
        try:
            serving_context(pair)
            is_named = names_server(pair.certificate, self._name)
        except (OSError, InvalidConfig) as e:
            raise InvalidConfig(
                f"cannot use the certificate in {where}: {e}", details="delete it, and another one is made"
            ) from e
        if not is_named:
            raise InvalidConfig(f"cannot use the certificate in {where}: it is not for {self._name}")
        return pair

    def _renew(self, former: Mapping[str, Any] | None, deadline: Deadline) -> Mapping[str, Any] | None:
        """The new Secret; None if somebody else has written it meanwhile."""
        pair = make_certificate([self._name, f"{self._name}.cluster.local"], VALID_S)
        trusted = pair.certificate + (b"" if former is None else _still_valid(_data(former, "tls.crt")))
        data = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": trusted}
        body = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": SECRET, "namespace": self._namespace, "annotations": {MADE_BY: NAME}},
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        doing = f"write Secret {SECRET}"
        if former is None:
            request = ApiRequest("POST", self._secrets, doing, body=body, expect=(_CONFLICT,))
        else:
            body["metadata"] = former["metadata"]  # with its resourceVersion
            path = f"{self._secrets}/{SECRET}"
            request = ApiRequest("PUT", path, doing, body={**former, **body}, expect=(_CONFLICT,))
        reply = self._api.send(request, deadline)
        return None if reply.status == _CONFLICT else reply.document

    # -- the configuration --------------------------------------------------------------------------------------------

    def _trust(self, bundle: bytes, deadline: Deadline) -> None:
        """Have the API server trust ``bundle`` (PEM) at our Service; b"": whoever made the Secret sees to that."""
        if not bundle:
            return
        found = self._api.get(CONFIGURATION, deadline, f"read ValidatingWebhookConfiguration {NAME}")
        if found is None:
            return  # it is applied later, or nobody wants to be asked
        text = base64.b64encode(bundle).decode()
        hooks = [self._trusting(hook, text) for hook in found.get("webhooks") or ()]
        if hooks == list(found.get("webhooks") or ()):
            return
        doing = f"write ValidatingWebhookConfiguration {NAME}"
        # after a conflict it is compared at the next look
        request = ApiRequest("PUT", CONFIGURATION, doing, body={**found, "webhooks": hooks}, expect=(_CONFLICT,))
        self._api.send(request, deadline)

    def _trusting(self, hook: Mapping[str, Any], bundle: str) -> Mapping[str, Any]:
        config = hook.get("clientConfig") or {}
        service = config.get("service") or {}
        if (service.get("namespace"), service.get("name")) != (self._namespace, NAME):
            return hook
        return {**hook, "clientConfig": {**config, "caBundle": bundle}}


def _is_ours(secret: Mapping[str, Any]) -> bool:
    return ((secret.get("metadata") or {}).get("annotations") or {}).get(MADE_BY) == NAME


def _data(secret: Mapping[str, Any], key: str) -> bytes:
    try:
        return base64.b64decode(str((secret.get("data") or {}).get(key) or ""), validate=True)
    except binascii.Error:
        return b""  # as if it were absent: nothing that is served


def _still_valid(certificate: bytes) -> bytes:
    try:
        return certificate if read_left_s(certificate) > 0 else b""
    except InvalidConfig:
        return b""
