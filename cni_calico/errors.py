"""PURE: one tree of errors: every class carries its CNI code and says who has to act.

Rule: the modules that talk to the outside (the kernel, a datastore, other programs) translate its errors into this tree
(``raise X(...) from e``); all other code raises nothing else on purpose. ``str(error)`` reads ``cannot <verb> <object>:
<cause>``, ``details`` says what to do. Codes 1 to 99 are CNI's, 100 and up ours, one per condition (docs/errors.md).
"""

from __future__ import annotations

# CNI specification, "Error" (1.1.0)
INCOMPATIBLE_VERSION = 1
INVALID_ENVIRONMENT = 4
IO_FAILURE = 5
DECODE_FAILURE = 6
INVALID_CONFIG = 7
TRY_AGAIN = 11
NOT_AVAILABLE = 50
NOT_AVAILABLE_LIMITED = 51


class CalicoError(Exception):
    """Base of all errors raised on purpose.

    ``code`` is the CNI error code; ``blame`` names who has to act: "user" (configuration or request), "node" (this
    host), "cluster" (datastore content or reachability), "bug" (us).
    """

    code = IO_FAILURE
    blame = "node"
    hint = ""

    def __init__(self, message: str, *, details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.details = details or self.hint

    def __str__(self) -> str:
        return self.message


# -- the request ------------------------------------------------------------------------------------------------------


class IncompatibleVersion(CalicoError):
    """The cniVersion, or the verb with this cniVersion, is not supported."""

    code = INCOMPATIBLE_VERSION
    blame = "user"
    hint = "use a cniVersion from 0.1.0 to 1.1.0; CHECK needs 0.4.0 or later, STATUS and GC need 1.1.0"


class InvalidEnvironment(CalicoError):
    """A CNI_* variable or a CNI_ARGS entry is missing or malformed."""

    code = INVALID_ENVIRONMENT
    blame = "user"


class DecodeFailure(CalicoError):
    """The configuration on stdin is not JSON, or not JSON of the expected shape."""

    code = DECODE_FAILURE
    blame = "user"


class InvalidConfig(CalicoError):
    """The network configuration is well-formed but wrong."""

    code = INVALID_CONFIG
    blame = "user"


class InvalidAnnotation(InvalidConfig):
    """An annotation of the pod or its namespace is malformed; the text names the annotation and its value."""

    code = 108


class FeatureDisabled(InvalidConfig):
    """The request uses a feature that feature_control does not enable."""

    code = 109


# -- time and concurrency ---------------------------------------------------------------------------------------------


class TryAgain(CalicoError):
    """The request is correct and may succeed later."""

    code = TRY_AGAIN
    blame = "cluster"


class DeadlineExceeded(TryAgain):
    """The deadline of the whole call passed; what was done has been undone."""


class AttachmentBusy(TryAgain):
    """Another process is working on the same attachment."""

    blame = "node"


class LeaseLost(TryAgain):
    """Work that only the holder of a lease may do was stopped: the lease is no longer, or not certainly, ours."""

    hint = "another agent continues it"


class NotReady(TryAgain):
    """ClusterInformation has datastoreReady: false, or is missing; with code 50 (STATUS): no ADD could succeed."""

    blame = "cluster"


# -- the datastore ----------------------------------------------------------------------------------------------------


class DatastoreError(CalicoError):
    """The datastore failed in a way that none of the following codes covers; base class of the datastore's errors."""

    code = 100
    blame = "cluster"


class DatastoreUnavailable(DatastoreError):
    """No answer, or no connection; a write that raised this was NOT applied."""

    code = 101
    hint = "check that the datastore named in the network configuration is running and reachable from this node"


class OutcomeUnknown(DatastoreUnavailable):
    """The connection was lost while a write was in flight: it may have been applied. Re-read before retrying."""


class DatastoreDenied(DatastoreError):
    """The datastore refused our credentials or permissions."""

    code = 102
    hint = "check the certificate, user or token in the network configuration and the role it has"


class DatastoreForbidden(DatastoreDenied):
    """The credentials are valid; the role that belongs to them lacks a right."""


class CorruptRecord(DatastoreError):
    """A stored record cannot be read; it is named and never overwritten."""

    code = 103
    hint = "inspect the record with calicoctl; it has been left as it is"


class Compacted(DatastoreError):
    """The requested revision is no longer kept: list again and watch from there."""

    code = 104


class DatastoreDamaged(DatastoreError):
    """The store cannot be read as a whole (not just one record), or existed before and is gone; no new one is made."""

    code = 105
    hint = "'calicoctl datastore check' says what is wrong, 'salvage' saves what can be read; see docs/runbook.md"


class DatastoreUnsupported(DatastoreError):
    """The store is not usable here: it is a newer version's, another program's, or on a network file system."""

    code = 106
    blame = "user"


class RecordRefused(DatastoreError):
    """The store's own validation refuses a record."""

    code = 107
    blame = "user"


# -- IPAM -------------------------------------------------------------------------------------------------------------


class IPAMError(CalicoError):
    """Addresses cannot be assigned or released for a reason that none of the following codes covers; base class."""

    code = 110
    blame = "cluster"


class PoolExhausted(IPAMError):
    """No address is left in any usable pool."""

    code = 111
    hint = "add an IPPool, or look for leaked addresses with 'calicoctl ipam check'"


class NoPool(IPAMError):
    """No enabled pool is usable for this node, namespace or request."""

    code = 112
    blame = "user"
    hint = "'calicoctl get ippool -o wide' shows the pools; one must be enabled and select this node"


class BlockLimit(IPAMError):
    """The node already has as many blocks as maxBlocksPerHost allows."""

    code = 113
    hint = "raise maxBlocksPerHost with 'calicoctl ipam configure --max-blocks-per-host=N'"


class AddressInUse(IPAMError):
    """The requested address is allocated under another handle."""

    code = 114
    blame = "user"


class AddressOutsidePools(IPAMError):
    """The requested address is in no usable pool."""

    code = 115
    blame = "user"


class Contention(IPAMError):
    """Too many compare-and-swap conflicts in a row."""

    code = TRY_AGAIN


class AddressMismatch(IPAMError):
    """A release named a handle or sequence number that the stored allocation does not have."""

    code = 116
    blame = "user"


# -- the kernel -------------------------------------------------------------------------------------------------------


class KernelError(CalicoError):
    """The kernel, a file or a program of this host refused something; base class of the errors that kernel/ raises.

    ``errno`` is the kernel's, 0 if there is none.
    """

    code = 120

    def __init__(self, message: str, *, errno: int = 0, details: str = "") -> None:
        super().__init__(message, details=details)
        self.errno = errno


class NetnsGone(KernelError):
    """The network namespace path does not exist, or is not a network namespace."""

    code = 121
    hint = "CNI_NETNS must name a network namespace, such as /var/run/netns/NAME or /proc/PID/ns/net"


class LinkConflict(KernelError):
    """An interface of that name exists and belongs to another attachment."""

    code = 122


class RouteConflict(KernelError):
    """A route to the address exists through an interface that is not ours."""

    code = 123


class LinkGone(KernelError):
    """An interface that must exist does not."""

    code = 124


class RulesRefused(KernelError):
    """The kernel refused a transaction of packet filter rules: none of it is in force, the previous rules still are.

    ``index`` is the first operation that was refused, -1 for the transaction as a whole; ``others``: (operation, errno)
    of those behind it that were refused too, some only because of the first.
    """

    code = 125

    def __init__(self, message: str, *, errno: int = 0, details: str = "", index: int = -1) -> None:
        super().__init__(message, errno=errno, details=details)
        self.index = index
        self.others: tuple[tuple[int, int], ...] = ()


class RulesUnknown(KernelError):
    """Answers to a transaction of packet filter rules were lost: either all of it is in force or none. Read it back."""

    code = 126


class InterfaceTaken(KernelError):
    """Another workload has the host interface's name: the first 44 bits of two workloads' digests are the same."""

    code = 127


# -- this node --------------------------------------------------------------------------------------------------------


class NodeNotSetUp(CalicoError):
    """The nodename file or another fact that calico-node writes is missing."""

    code = 130


class DelegateFailed(CalicoError):
    """A delegated IPAM plugin is missing or failed; its own error is in the text."""

    code = 131


class CheckFailed(CalicoError):
    """CHECK found differences; ``details`` lists all of them."""

    code = 132


class TeardownIncomplete(CalicoError):
    """DEL or GC removed what it could; the text lists what is left. Repeating the call finishes it."""

    code = 133


class ProtocolMismatch(CalicoError):
    """The plugin executable and the resident server speak different protocol versions."""

    code = 134
    hint = "restart calico-node, or install the plugin executables of the same release"


class InstallFailed(CalicoError):
    """A step of the installer failed; the network configuration is unchanged."""

    code = 135


class PythonNotExecutable(CalicoError):
    """The executable found no server to pass the call to, and cannot execute the Python program beside it."""

    code = 136
    hint = "install the plugin again: calico.python, calico-ipam.python and .calico-* belong beside the executable"


class PolicyLate(CalicoError):
    """It is not known in time that the new endpoint's policy is in force; what was set up has been undone."""

    code = 138


class DataplaneFailed(CalicoError):
    """The external data plane (``dataplane_options``) did not answer, or refused; its own words are in the text."""

    code = 137
    hint = "check that the program behind dataplane_options.socket is running; its log says more"


class BirdError(CalicoError):
    """The BGP daemon failed in a way that none of the following codes covers; base class of BIRD's errors."""

    code = 150


class BirdUnavailable(BirdError):
    """BIRD does not answer on its control socket, or stopped in the middle of an answer."""

    code = 151
    hint = "'calico-node -bird-live' makes the same check; the log of calico-node has BIRD's own messages"


class BirdRefused(BirdError):
    """BIRD refused a configuration or a command; the text is BIRD's. The previous configuration stays in force."""

    code = 152


class BirdUnsupported(BirdError):
    """BIRD is not installed, or not in a version that we can drive."""

    code = 153
    hint = "install BIRD 2.0.12 or later from the distribution (Debian and Ubuntu: bird2, Fedora: bird)"


class InternalError(CalicoError):
    """A bug: an exception that was not translated. The text names its type; the log has the trace."""

    code = 199
    blame = "bug"
