"""Hints for users of calicoctl about a datastore that cannot be used. Rule: they replace the datastores' own hints,
which name the CNI plugin's network configuration: calicoctl has none.
"""

from __future__ import annotations

from cni_calico.datastore.connect import NO_ENDPOINTS, WHICH_TYPES
from cni_calico.datastore.kubernetes.login import HINT as WHOSE_KUBECONFIG
from cni_calico.datastore.kubernetes.login import NO_LOGIN
from cni_calico.errors import CalicoError, DatastoreDenied, DatastoreUnavailable
from cni_calico.model.access import CERTIFICATE_FILES


def with_hint(error: CalicoError, file: str, *, file_counts: bool, kubeconfig: str = "") -> CalicoError:
    """The error with a hint that names what was given: ``kubeconfig`` (the option), ``file`` (the configuration) if it
    counts, else the environment.
    """
    named = f"--kubeconfig {kubeconfig}" if kubeconfig else file if file_counts else "the environment"
    hints = {
        DatastoreUnavailable.hint: f"check that the datastore that {named} names is running and reachable from here",
        DatastoreDenied.hint: f"check the certificate, user or token that {named} names, and its role",
        NO_ENDPOINTS: f"set spec.etcdEndpoints in {file}" if file_counts else "set ETCD_ENDPOINTS",
        CERTIFICATE_FILES: "etcdCACertFile, etcdCertFile and etcdKeyFile in " + file + " name the files"
        if file_counts
        else "ETCD_CA_CERT_FILE, ETCD_CERT_FILE and ETCD_KEY_FILE name the files",
        WHICH_TYPES: ("spec.datastoreType in " + file if file_counts else "DATASTORE_TYPE")
        + " must be local, etcdv3 or kubernetes",
        WHOSE_KUBECONFIG: "the kubeconfig is the one of --kubeconfig, "
        + (f"or of spec.kubeconfig in {file}" if file_counts else "or of KUBECONFIG"),
        NO_LOGIN: "give --kubeconfig, or set " + (f"spec.kubeconfig in {file}" if file_counts else "KUBECONFIG"),
    }
    error.details = hints.get(error.details, error.details)
    return error
