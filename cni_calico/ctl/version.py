"""``calicoctl version``: the versions of this program and of the data in the datastore.

Rule: the first lines are printed before any datastore is looked for. Tools take the third word of the line "Client
Version:" and compare it with Calico's versions, so it names the version of Calico that this is compatible with.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping

from cni_calico import BUILD, UPSTREAM_VERSION, __version__
from cni_calico.ctl.ipam.records import read_cluster
from cni_calico.ctl.opening import KUBECTL, open_session
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed
from cni_calico.ctl.settings import is_configured
from cni_calico.errors import CalicoError

CLIENT = f"Client Version:    {UPSTREAM_VERSION}\ncni-calico:        v{__version__}{BUILD}\n"


def show(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CommandFailed if the configured datastore does not answer, unless it is polled."""
    if arguments.output != TABLE:
        return _document(arguments, environ)
    arguments.say(CLIENT)
    if arguments.client or not (_is_asked_for(arguments) or is_configured(arguments.config, environ)):
        return ""
    if arguments.poll <= 0:
        try:
            arguments.say(_cluster(arguments, environ))
        except CalicoError as e:
            failed = CommandFailed(f"unable to retrieve Cluster Version or Type: {e}")
            failed.details = e.details
            raise failed from e
        return ""
    said = ""
    while True:
        try:
            text = _cluster(arguments, environ)
            if text != said:
                arguments.say(text)
            said = text
        except CalicoError as e:
            arguments.note(f"unable to retrieve Cluster Version or Type: {e}")
            said = ""  # print the version as soon as it can be read again, even if it is the same
        time.sleep(arguments.poll)


def _document(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """The versions as a document, made once even with --poll. Raises DatastoreError."""
    found: dict[str, object] = {"client": {"version": UPSTREAM_VERSION, "cniCalico": f"v{__version__}{BUILD}"}}
    if not arguments.client and (_is_asked_for(arguments) or is_configured(arguments.config, environ)):
        with open_session(arguments, environ) as session:
            spec, _ = read_cluster(session)
        found["cluster"] = {"version": spec.get("calicoVersion"), "type": spec.get("clusterType")}
    return render_value(found, arguments.output)


def _is_asked_for(arguments: Namespace) -> bool:
    return bool(arguments.kubeconfig or arguments.context or arguments.prog == KUBECTL)


def _cluster(arguments: Namespace, environ: Mapping[str, str]) -> str:
    with open_session(arguments, environ) as session:
        spec, _ = read_cluster(session)
    unknown = "unknown"
    text = f"Cluster Version:   {spec.get('calicoVersion') or unknown}\n"
    return text + f"Cluster Type:      {spec.get('clusterType') or unknown}\n"
