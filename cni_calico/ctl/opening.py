"""Opens the datastore that a command works with.

Rule: the only place where calicoctl opens a datastore; leaving ``open_session`` closes it.
"""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from cni_calico.ctl.session import Session
from cni_calico.ctl.settings import is_absent, is_configured, is_named, read_config, require_present
from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.traced import TracedStore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.log import LEVELS, Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.names import DEFAULT_PREFIX
from cni_calico.model.timestamps import rfc3339

KUBECTL = "kubectl calico"  # the name of this program as kubectl's plugin


def now() -> str:
    """The time as stored in metadata (RFC 3339, UTC)."""
    return rfc3339(time.time())


def new_uid() -> str:
    import uuid  # only writing needs one

    return str(uuid.uuid4())


def configured(arguments: Namespace, environ: Mapping[str, str]) -> DatastoreConfig:
    """The datastore that the options, the configuration file or the environment name. Raises InvalidConfig."""
    config = read_config(arguments.config, environ)
    if arguments.prog == KUBECTL and not is_configured(arguments.config, environ):
        default = os.path.join(environ.get("HOME", "/root"), ".kube", "config")
        config = replace(config, type="kubernetes", kubernetes=replace(config.kubernetes, kubeconfig=default))
    if arguments.kubeconfig:
        access = replace(config.kubernetes, kubeconfig=arguments.kubeconfig)
        config = replace(config, type="kubernetes", kubernetes=access)
    if arguments.context:
        config = replace(config, kubernetes=replace(config.kubernetes, context=arguments.context))
    return config


@contextmanager
def open_session(arguments: Namespace, environ: Mapping[str, str], *, creating: bool = False) -> Iterator[Session]:
    """A session on the configured datastore; ``creating`` lets the embedded store create its file.

    Raises InvalidConfig, DatastoreError. Records that cannot be read are passed to ``arguments.note`` at the end.
    """
    try:
        config = configured(arguments, environ)
        with _open_session(config, arguments, environ, creating=creating) as session:
            yield session
    except CalicoError as e:
        from cni_calico.ctl.hints import with_hint

        raise with_hint(e, arguments.config, environ, arguments.kubeconfig) from e.__cause__


@contextmanager
def _open_session(
    config: DatastoreConfig, arguments: Namespace, environ: Mapping[str, str], *, creating: bool
) -> Iterator[Session]:
    if config.type == "local" and not is_named(arguments.config, environ):
        from cni_calico.ctl.node_datastore import require_same

        require_same(config, environ)
    if not creating:
        require_present(config)
    is_new = is_absent(config)
    # for an export from Kubernetes, which records the pods' interfaces: the same prefix as the CNI plugin uses
    prefix = environ.get("FELIX_INTERFACEPREFIX", "").split(",")[0].strip()
    store = open_datastore(config, veth_prefix=prefix or DEFAULT_PREFIX)
    log = Log(arguments.log_level)
    log.info(f"the datastore is {store.identity}")
    asked = store if log.threshold > LEVELS["debug"] else TracedStore(store, log.debug)
    try:
        session = Session(asked, Deadline.after(arguments.timeout), now, new_uid)
        store.corrupt = session.note_damaged
        yield session
        if is_new and not is_absent(config):  # not where the command fails: upstream's words for that come first
            arguments.note(f"Made the embedded datastore: {config.path}")
        for _, why in session.take_damaged():
            arguments.note(f"Left out: {why}")
    finally:
        store.close()
