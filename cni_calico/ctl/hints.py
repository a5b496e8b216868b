"""Hints for users of calicoctl about a datastore that cannot be used. Rule: they replace the datastores' own hints,
which name the CNI plugin's network configuration: calicoctl has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.ctl.settings import fallback_kubeconfig, is_file_used
from cni_calico.datastore.connect import NO_ENDPOINTS, WHICH_TYPES
from cni_calico.datastore.kubernetes.login import HINT as WHOSE_KUBECONFIG
from cni_calico.datastore.kubernetes.login import NO_LOGIN
from cni_calico.errors import CalicoError, DatastoreDenied, DatastoreUnavailable
from cni_calico.model.access import CERTIFICATE_FILES


def with_hint(error: CalicoError, file: str, environ: Mapping[str, str], kubeconfig: str) -> CalicoError:
    """The error with a hint that names the configuration in use: ``kubeconfig`` (the option), ``file`` (the
    configuration) if it counts, kubectl's own kubeconfig, or else the environment.
    """
    file_counts = is_file_used(file)
    home = "" if kubeconfig else fallback_kubeconfig(file, environ)
    named = f"--kubeconfig {kubeconfig}" if kubeconfig else home or (file if file_counts else "the environment")
    where = f"spec.kubeconfig in {file}" if file_counts else "KUBECONFIG"
    hints = {
        DatastoreUnavailable.hint: f"check that the datastore that {named} names is running and reachable from here",
        DatastoreDenied.hint: f"check the certificate, user or token that {named} names, and its role",
        NO_ENDPOINTS: f"set spec.etcdEndpoints in {file}" if file_counts else "set ETCD_ENDPOINTS",
        CERTIFICATE_FILES: "etcdCACertFile, etcdCertFile and etcdKeyFile in " + file + " name the files"
        if file_counts
        else "ETCD_CA_CERT_FILE, ETCD_CERT_FILE and ETCD_KEY_FILE name the files",
        WHICH_TYPES: ("spec.datastoreType in " + file if file_counts else "DATASTORE_TYPE")
        + " must be local, etcdv3 or kubernetes",
        WHOSE_KUBECONFIG: "this is kubectl's own kubeconfig, as no other is named: give --kubeconfig, or set " + where
        if home
        else f"the kubeconfig is the one of {'--kubeconfig' if kubeconfig else where}",
        NO_LOGIN: f"give --kubeconfig, set {where}, or write kubectl's own, ~/.kube/config",
    }
    error.details = hints.get(error.details, error.details)
    return error
