"""What the installer does to the host: TLS assets, executables, kubeconfig, and last the network configuration.

Rule: every file appears by a rename, complete and with its mode; the network configuration comes last, because its
appearance makes the node Ready. Secrets are copied, never shown.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress

from cni_calico import faults
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.login import SERVICE_ADDRESS, read_file
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.kubernetes.token import Token, find_token, render_kubeconfig
from cni_calico.deadline import Deadline
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import DatastoreForbidden, DatastoreUnavailable, DeadlineExceeded, InstallFailed, InvalidConfig
from cni_calico.install.plugin_versions import read_version, reason_to_stay
from cni_calico.install.settings import HOST_BIN_DIRS, KUBECONFIG, TLS_DIR, Settings
from cni_calico.install.template import API_GROUP_VARIABLE
from cni_calico.kernel.files import Files
from cni_calico.kernel.process import clean_environment, run
from cni_calico.log import Log
from cni_calico.model.access import KubernetesAccess, parse_proxy_variables
from cni_calico.model.keys import ResourceKey

COPY = faults.declare("install.copy")
BUNDLED = ("calico", "calico-ipam")  # each comes with its NAME.python
# files beside the plugins in the image that are neither plugins nor executables of the bundle
NOT_PLUGINS = frozenset(("install", "install-cni.sh", "install-bundle.sh", "kubectl-calico"))
BUNDLE_TIMEOUT_S = 120.0
_NAMESPACE = "kube-system"


def _failed(what: str, error: OSError) -> InstallFailed:
    return InstallFailed(f"cannot {what}: {(error.strerror or str(error)).lower()}")


# -- TLS assets -------------------------------------------------------------------------------------------------------


def ensure_tls_assets(settings: Settings, files: Files) -> frozenset[str]:
    """Copy the files of the Secret to the host; returns their names. Raises InstallFailed."""
    source = settings.inside(settings.tls_assets_dir)
    target = f"{settings.host_net_dir}/{TLS_DIR}"
    copied = set()
    for name in files.names(source):
        path = f"{source}/{name}"
        if name.startswith(".") or not os.path.isfile(path):  # a Secret's own "..data" and dated directories
            continue
        try:
            files.make_directory(target)
            data = files.read_bytes(path)
            if not files.holds(f"{target}/{name}", data):
                files.write_atomic(f"{target}/{name}", data, 0o600)
        except OSError as e:
            raise _failed(f"copy TLS asset {name} to {target}", e) from e
        copied.add(name)
    return frozenset(copied)


# -- executables ------------------------------------------------------------------------------------------------------


def ensure_binaries(settings: Settings, log: Log) -> tuple[str, ...]:
    """Install the executables into every plugin directory of the host that can be written; returns these directories.

    Raises InstallFailed if there is none.
    """
    done = []
    present = [settings.inside(path) for path in HOST_BIN_DIRS if os.path.isdir(settings.inside(path))]
    for directory in present:
        if not _writable(directory):
            log.info(f"{directory} is not writable, skipped")
            continue
        _install_into(directory, settings, log)
        done.append(directory)
    if not done:
        wanted = " or ".join(settings.inside(path) for path in HOST_BIN_DIRS)
        raise InstallFailed(
            f"cannot install the executables: neither {wanted} can be written",
            details="mount the host's CNI plugin directory there",
        )
    return tuple(done)


def _writable(directory: str) -> bool:
    """Whether a file can be written there. It is tried, because for root even a read-only mount claims to be
    writable.
    """
    probe = f"{directory}/.calico-write-test-{os.getpid()}"
    try:
        os.close(os.open(probe, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600))
        os.unlink(probe)
    except OSError:
        return False
    return True


def _install_into(directory: str, settings: Settings, log: Log) -> None:
    wanted = [name for name in BUNDLED if _wanted(name, directory, settings, log)]
    if wanted:
        _install_bundle(directory, wanted, settings, log)
        log.info(f"installed {', '.join(wanted)} into {directory}")
    for name in _other_plugins(settings.bundle):
        if _wanted(name, directory, settings, log) and _replaces(name, directory, settings, log):
            _copy_executable(f"{settings.bundle}/{name}", f"{directory}/{name}")
            log.info(f"installed {name} into {directory}")


def _wanted(name: str, directory: str, settings: Settings, log: Log) -> bool:
    if name in settings.skip_binaries:
        log.info(f"{name} is skipped (SKIP_CNI_BINARIES)")
        return False
    if os.path.lexists(f"{directory}/{name}") and not settings.update_binaries:
        log.info(f"{directory}/{name} is there and stays (UPDATE_CNI_BINARIES is false)")
        return False
    return True


def _replaces(name: str, directory: str, settings: Settings, log: Log) -> bool:
    """Whether a plugin of others is to be copied there: none is there, or one that says that it is older."""
    path, ours = f"{directory}/{name}", f"{settings.bundle}/{name}"
    if not os.path.lexists(path):
        return True
    if _same(path, ours):
        return False
    reason = reason_to_stay(read_version(path), read_version(ours))
    if reason:
        log.info(f"{path} is there and stays: {reason}")
    return not reason


def _same(path: str, other: str) -> bool:
    try:
        return read_file(path) == read_file(other)
    except OSError:
        return False


def _other_plugins(bundle: str) -> list[str]:
    """Other vendors' plugins (portmap, bandwidth, ...) that the image has beside ours."""
    names = sorted(os.listdir(bundle))
    ours = {name for contents in names if contents.startswith(".calico-") for name in _executables(bundle, contents)}
    return [
        name
        for name in names
        if name not in NOT_PLUGINS
        and name not in ours
        and not name.startswith(".")
        and os.path.isfile(f"{bundle}/{name}")
        and os.access(f"{bundle}/{name}", os.X_OK)
    ]


def _executables(bundle: str, contents: str) -> list[str]:
    """The names that belong to a contents directory: all programs of the bundle. Raises InstallFailed."""
    path = f"{bundle}/{contents}/executables"
    try:
        return [line.split()[1] for line in read_file(path).decode().splitlines()]
    except OSError as e:
        raise _failed(f"read {path}", e) from e


def _install_bundle(directory: str, names: list[str], settings: Settings, log: Log) -> None:
    final = _final_directory(directory, settings)
    argv = ["/bin/sh", f"{settings.bundle}/install-bundle.sh"]
    if not final:
        argv.append("--plain")
        log.warning(
            f"the path of {directory} on the host is not known: the executables will use the host's C library. "
            "Set CNI_BIN_DIR (CNI_SECONDARY_BIN_DIR) to that path to make them independent of it"
        )
    argv += [settings.bundle, directory, final or directory, *names]
    done = run(argv, env=clean_environment(settings.environ), deadline=Deadline.after(BUNDLE_TIMEOUT_S))
    if done.rc != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise InstallFailed(f"cannot install into {directory}: {lines[-1][:300] if lines else f'status {done.rc}'}")


def _final_directory(directory: str, settings: Settings) -> str:
    """The directory's path on the host, which is written into the executables; "" if it is not known for sure.

    The environment's value is used unless the mount contradicts it: the mount's source is a path within a file system
    of the host, so one of the two must end like the other.
    """
    said = settings.bin_dir if directory.endswith(HOST_BIN_DIRS[0]) else settings.secondary_bin_dir
    try:
        with open("/proc/self/mountinfo") as f:
            source = mount_source(os.path.realpath(directory), f.read())
    except OSError:
        source = ""
    return said if not source or said.endswith(source) or source.endswith(said) else ""


def mount_source(path: str, mountinfo: str) -> str:
    """For a mount at exactly ``path``, the path in its own file system; "" if there is none (proc(5))."""
    found = ""
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if len(fields) > 5 and fields[4].replace("\\040", " ") == path:
            found = fields[3].replace("\\040", " ")
    return found


def _copy_executable(source: str, target: str) -> None:
    """Copy under a temporary name, compare, rename: a running plugin keeps the file that it was started from."""
    temporary = f"{os.path.dirname(target)}/.{os.path.basename(target)}.{os.getpid()}.new"
    try:
        faults.before(COPY)
        data = read_file(source)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o755)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, stat.S_IMODE(os.stat(source).st_mode) | 0o555)
            os.fsync(fd)
        finally:
            os.close(fd)
        if read_file(temporary) != data:
            raise OSError("the copy differs")
        os.rename(temporary, target)
        faults.after(COPY)
    except OSError as e:
        if os.path.lexists(temporary):
            os.unlink(temporary)
        raise _failed(f"install {target}", e) from e


# -- kubeconfig -------------------------------------------------------------------------------------------------------


def pod_token_file(settings: Settings) -> str:
    """Where the kubelet keeps the token of the pod that this runs in."""
    return f"{settings.inside(SERVICE_ACCOUNT_DIR)}/token"


def ensure_kubeconfig(settings: Settings, files: Files, log: Log, deadline: Deadline) -> Token | None:
    """Write the plugin's kubeconfig with a token of its service account, or with this pod's own where that account is
    missing or forbidden; None outside a cluster.

    Raises InstallFailed, DatastoreError.
    """
    account = settings.inside(SERVICE_ACCOUNT_DIR)
    if not settings.kubernetes_host or not os.path.isdir(account):
        log.info("not in a pod of a cluster: no kubeconfig is written")
        return None
    ca = None if settings.skip_tls_verify else _read_account(account, "ca.crt", files)
    token = _find_token(settings, account, files, deadline)
    path = f"{settings.host_net_dir}/{KUBECONFIG}"
    kubeconfig = render_kubeconfig(server_url(settings), token.text, ca)
    try:
        if not files.holds(path, kubeconfig):
            files.write_atomic(path, kubeconfig, 0o600)
            log.info(f"wrote {path}")
    except OSError as e:
        raise _failed(f"write {path}", e) from e
    return token


def server_url(settings: Settings) -> str:
    host = settings.kubernetes_host
    authority = f"[{host}]" if ":" in host else host
    port = f":{settings.kubernetes_port}" if settings.kubernetes_port else ""
    return f"{settings.kubernetes_protocol}://{authority}{port}"


def _read_account(account: str, name: str, files: Files) -> bytes:
    try:
        return files.read_bytes(f"{account}/{name}")
    except OSError as e:
        raise _failed(f"read the service account's {name}", e) from e


def _pods_access(settings: Settings, account: str, files: Files) -> KubernetesAccess:
    """The API server with the pod's own token. Raises InstallFailed."""
    https_proxy, no_proxy = parse_proxy_variables(settings.environ)
    return KubernetesAccess(
        api_root=server_url(settings),
        token=_read_account(account, "token", files).decode("ascii", "replace").strip(),
        certificate_authority="" if settings.skip_tls_verify else f"{account}/ca.crt",
        insecure=settings.skip_tls_verify,
        https_proxy=https_proxy,
        no_proxy=no_proxy,
    )


def _find_token(settings: Settings, account: str, files: Files, deadline: Deadline) -> Token:
    try:
        namespace = files.read_text(f"{account}/namespace").strip() or _NAMESPACE
    except OSError:
        namespace = _NAMESPACE
    api = KubernetesAPI(_pods_access(settings, account, files))
    try:
        return find_token(api, namespace, settings.cni_service_account, deadline, own=pod_token_file(settings))
    except (DatastoreUnavailable, DeadlineExceeded) as e:
        if e.details == DatastoreUnavailable.hint:  # which names the network configuration
            e.details = SERVICE_ADDRESS
        raise
    finally:
        api.close()


def find_api_group(settings: Settings, template: str, files: Files, deadline: Deadline) -> str:
    """The API group of this cluster's records, for a template that is to name it and an environment that does not;
    else "". So the plugin keeps to it even if somebody applies the definitions of the other group later.

    Raises InstallFailed, DatastoreError.
    """
    account = settings.inside(SERVICE_ACCOUNT_DIR)
    environ = settings.environ
    is_asked = f"__{API_GROUP_VARIABLE}__" in template and not environ.get(API_GROUP_VARIABLE)
    is_kubernetes = environ.get("DATASTORE_TYPE") in (None, "", "kubernetes")
    if not is_asked or not is_kubernetes or not settings.kubernetes_host or not os.path.isdir(account):
        return ""
    store = KubernetesStore(_pods_access(settings, account, files))
    try:
        with suppress(DatastoreForbidden):  # then the definitions alone decide
            store.get(ResourceKey("ClusterInformation", "default"), deadline)
        return store.group.choose(deadline).name
    finally:
        store.close()


# -- network configuration --------------------------------------------------------------------------------------------


def read_template(settings: Settings, files: Files) -> str:
    """Raises InvalidConfig."""
    if not settings.template_file:
        return settings.template
    path = settings.inside(settings.template_file) if settings.root else settings.template_file
    for candidate in (path, settings.template_file):
        try:
            return files.read_text(candidate)
        except (OSError, UnicodeDecodeError) as e:
            error = e
    raise InvalidConfig(f"cannot read the template {settings.template_file}: {error}")


def conflist_path(settings: Settings) -> str:
    return f"{settings.host_net_dir}/{settings.conf_name}"


def apply_conflist(settings: Settings, files: Files, text: str, log: Log) -> None:
    """Put the configuration into place, then remove the old one. Raises InstallFailed."""
    path = conflist_path(settings)
    try:
        files.write_atomic(path, text.encode(), 0o600)
        log.info(f"wrote {path}")
        if settings.old_conf_name and settings.old_conf_name != settings.conf_name:
            files.remove(f"{settings.host_net_dir}/{settings.old_conf_name}")
    except OSError as e:
        raise _failed(f"write {path}", e) from e
