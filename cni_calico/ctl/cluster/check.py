"""``calicoctl cluster check``: tries the network, and removes what it made for that.

Rule: with an API server between pods of two nodes, else between two network namespaces of this host. Each finding is
printed at once; the exit status is 1 if anything that was tried does not work.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict

from cni_calico.ctl.cluster.connectivity.findings import SKIPPED, Trial, render_finding, render_sum
from cni_calico.ctl.cluster.connectivity.undisturbed import interruptible
from cni_calico.ctl.hints import with_hint
from cni_calico.ctl.opening import configured, open_session
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.access import DatastoreConfig


def check(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises CommandFailed if something does not work, InvalidConfig, DatastoreError."""
    if arguments.as_pod:
        from cni_calico.ctl.cluster.connectivity.inside import act

        return act(arguments.as_pod, arguments.say)
    findings: list[Trial] = []
    try:
        # closing the generator makes it remove what it made
        with interruptible(), closing(_trying(arguments, environ)) as trying:
            for finding in trying:
                findings.append(finding)
                if arguments.output == TABLE:
                    arguments.say(render_finding(finding, arguments.look))
    except CalicoError as e:
        raise with_hint(e, arguments.config, environ, arguments.kubeconfig) from e.__cause__
    wrong = render_sum(findings)
    text = "" if wrong else "The network works.\n"
    if arguments.output != TABLE:
        text = render_value({"findings": [asdict(finding) for finding in findings]}, arguments.output)
    if wrong:
        raise CommandFailed(wrong, output=text)
    return text


def _trying(arguments: Namespace, environ: Mapping[str, str]) -> Generator[Trial, None, None]:
    config = configured(arguments, environ)
    if arguments.host or not _has_api(config):
        yield from _on_host(arguments, environ)
    else:
        yield from _in_cluster(arguments, config, environ)


def _has_api(config: DatastoreConfig) -> bool:
    return config.type == "kubernetes" or bool(config.kubernetes.kubeconfig or config.kubernetes.api_root)


def _in_cluster(arguments: Namespace, config: DatastoreConfig, environ: Mapping[str, str]) -> Iterator[Trial]:
    from cni_calico.ctl.cluster.connectivity.encrypted import EncryptedCluster, read_encrypted
    from cni_calico.ctl.cluster.connectivity.masquerading import NAME, check_services
    from cni_calico.ctl.cluster.connectivity.pods import PodCheck
    from cni_calico.datastore.kubernetes.api import KubernetesAPI

    api = KubernetesAPI(config.kubernetes)
    wanted = [name for name in arguments.nodes.split(",") if name]
    try:
        try:
            with open_session(arguments, environ) as session:
                yield from check_services(session, api)
        except CalicoError as e:
            yield Trial(NAME, SKIPPED, e.message)
        encrypted: EncryptedCluster | None = None
        try:
            with open_session(arguments, environ) as session:
                encrypted = read_encrypted(session)
        except CalicoError as e:
            yield Trial("encryption", SKIPPED, e.message)
        deadline = Deadline.after(arguments.timeout)
        checking = PodCheck(api, deadline, os.urandom(3).hex(), arguments.note, encrypted)
        yield from checking.run(wanted, arguments.image)
    finally:
        api.close()


def _on_host(arguments: Namespace, environ: Mapping[str, str]) -> Iterator[Trial]:
    from cni_calico.ctl.cluster.connectivity.chain import find_network
    from cni_calico.ctl.cluster.connectivity.host import HostCheck

    network = find_network(arguments.network, arguments.plugins)
    wanted = [name for name in arguments.nodes.split(",") if name]
    with open_session(arguments, environ) as session:
        yield from HostCheck(session, network, environ, arguments.note, wanted).run()
