"""build/release/install.sh with the tarball: what stops it before anything is changed; there, again, and back."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.install.fresh_host import FreshHost

pytestmark = [pytest.mark.netns]

SCRIPT = ROOT / "build" / "release" / "install.sh"
VERSION = "0.1.0"
TARBALL = f"cni-calico-{VERSION}-linux-amd64.tar.xz"
FROM = ("--from", "/run/release", "--key", "/run/release/key.pub", "--tarball")


def openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


def make_key(directory: Path, name: str) -> None:
    """NAME, its secret half, and NAME.pub."""
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", directory / name)
    openssl("ec", "-in", directory / name, "-pubout", "-out", directory / f"{name}.pub")


def sign(release: Path, key: str = "key") -> None:
    """SHA256SUMS of the archives there, and its signature."""
    files = sorted([*release.glob("*.tar.xz"), *release.glob("*.deb")])
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (release / "SHA256SUMS").write_text("".join(sums))
    openssl("dgst", "-sha256", "-sign", release / key, "-out", release / "SHA256SUMS.sig", release / "SHA256SUMS")


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A release that nobody gets to unpack."""
    release = tmp_path / "release"
    release.mkdir()
    shutil.copy(SCRIPT, release)
    (release / TARBALL).write_bytes(b"not unpacked")
    make_key(release, "key")
    sign(release)
    return release


@pytest.fixture
def fresh_host(tmp_path: Path, small: Path) -> FreshHost:
    return FreshHost(tmp_path / "host", small)


def other_key(release: Path) -> None:
    make_key(release, "other")
    sign(release, "other")


def one_more_line(release: Path) -> None:
    with (release / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  more\n")


def half(release: Path) -> None:
    (release / TARBALL).write_bytes(b"not")


def without(name: str) -> Callable[[Path], None]:
    return lambda release: (release / name).unlink()


def several(release: Path) -> None:
    (release / TARBALL.replace("0.1.0", "0.2.0")).write_bytes(b"another")
    sign(release)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (other_key, "is of none of the known keys"),
        (one_more_line, "is of none of the known keys"),
        (half, f"{TARBALL} from /run/release is damaged"),
        (without(TARBALL), f"cannot get {TARBALL} from /run/release"),
        (without("SHA256SUMS.sig"), "cannot get SHA256SUMS.sig from /run/release"),
        (without("SHA256SUMS"), "cannot get SHA256SUMS from /run/release"),
        (without("key.pub"), "cannot read the key /run/release/key.pub"),
        (several, "lists several releases: name one with --version"),
    ],
)
def test_a_release_that_is_not_as_it_was_signed(fresh_host: FreshHost, spoil: Callable[[Path], None], why: str) -> None:
    spoil(fresh_host.release)
    done = fresh_host.install(*FROM)
    assert done.returncode == 1 and done.stderr.startswith("install.sh: ") and why in done.stderr, done.stderr
    assert fresh_host.changes() == set()


def test_where_releases_are_published_an_older_one_is_refused(fresh_host: FreshHost) -> None:
    """It is signed as well, and whoever has the mirror can show it again."""
    text = SCRIPT.read_text().replace("\nVERSION=\n", "\nVERSION='0.2.0'\n")
    place = fresh_host.release / "v0.2.0"
    place.mkdir()
    for name in (TARBALL, "SHA256SUMS", "SHA256SUMS.sig"):
        (fresh_host.release / name).rename(place / name)
    (fresh_host.release / "install.sh").write_text(text.replace("\nRELEASES=\n", "\nRELEASES=/run/release\n"))
    done = fresh_host.install(*FROM[2:])
    assert done.returncode == 1 and "/v0.2.0 has version 0.1.0, and not 0.2.0" in done.stderr, done.stderr
    assert fresh_host.changes() == set()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--network", "docker"), "known are podman, nerdctl"),
        (("--version",), "--version wants a value"),
        (("--version", "1;reboot"), "no version: 1;reboot"),
        (("--frm", "x"), "unknown argument --frm"),
        (("--uninstall", "--tarball"), "--uninstall takes only --yes and --dry-run"),
        (("--yes",), "--yes belongs to --uninstall"),
    ],
)
def test_arguments_that_mean_nothing(words: tuple[str, ...], why: str) -> None:
    done = subprocess.run([SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 2 and why in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--version", "0.2.0"), "/run/release has version 0.1.0, and not 0.2.0"),
        (("--from", "/nowhere"), "there is no directory /nowhere"),
        (("--from", "http://127.0.0.1:1/x"), "cannot get SHA256SUMS from http://127.0.0.1:1/x: "),
        (("--key", "/etc/hostname"), "no public key to check the release with"),
        (("--network", "nerdctl"), "there is no nerdctl here"),
    ],
)
def test_wishes_that_cannot_be_met(fresh_host: FreshHost, words: tuple[str, ...], why: str) -> None:
    done = fresh_host.install(*FROM, *words, path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert done.returncode == 1 and why in done.stderr, done.stderr
    assert fresh_host.changes() == set()


@pytest.mark.parametrize(
    ("wrap", "systemd", "why"),
    [
        (("setpriv", "--reuid=65534"), True, "it needs root"),
        (("setarch", "i686"), True, "there is no release for Linux on i686"),
        ((), False, "this host is not run by systemd"),
    ],
)
def test_hosts_that_it_is_not_for(fresh_host: FreshHost, wrap: tuple[str, ...], systemd: bool, why: str) -> None:
    done = fresh_host.run(*wrap, "/run/release/install.sh", *FROM, systemd=systemd)
    assert done.returncode == 1 and why in done.stderr, done.stderr
    assert fresh_host.changes() == set()


def test_no_openssl(fresh_host: FreshHost) -> None:
    """Unless that is asked for: then the next thing that is wrong is named."""
    hide = 'mount --bind /dev/null /usr/bin/openssl; exec "$@"'
    done = fresh_host.run("sh", "-c", hide, "sh", "/run/release/install.sh", *FROM)
    assert done.returncode == 1 and "there is no openssl here to check the signature" in done.stderr
    half(fresh_host.release)
    done = fresh_host.run("sh", "-c", hide, "sh", "/run/release/install.sh", *FROM, "--sums-only")
    assert "nobody vouches for these files" in done.stderr and "is damaged" in done.stderr
    assert fresh_host.changes() == set()


@pytest.mark.parametrize("path", ["/opt/cni/bin/calico", "/opt/cni-calico/bin", "/usr/local/bin/calicoctl"])
def test_what_is_somebody_elses_stays(fresh_host: FreshHost, path: str) -> None:
    fresh_host.run("sh", "-c", f"mkdir -p $(dirname {path}) && echo theirs >{path}")
    before = fresh_host.changes()
    assert path in before
    done = fresh_host.install(*FROM)
    assert done.returncode == 1 and (
        "is there and not of this installation" in done.stderr or "/opt/cni-calico is there" in done.stderr
    )
    assert fresh_host.changes() == before


def test_nothing_to_uninstall(fresh_host: FreshHost) -> None:
    done = fresh_host.install("--uninstall")
    assert (done.returncode, done.stdout) == (0, "nothing of this script's is installed\n")
    assert fresh_host.changes() == set()


# -- there and back ---------------------------------------------------------------------------------------------------


def make_release(directory: Path, bundle: Path) -> Path:
    """A tarball as a release's, with what install.sh takes out of it; compressed in seconds."""
    tree = directory / "tree" / TARBALL.removesuffix(".tar.xz")
    tree.mkdir(parents=True)
    subprocess.run([ROOT / "build/install-bundle.sh", "--plain", bundle, tree / "bin"], check=True)
    shutil.copy(ROOT / "build/install-bundle.sh", tree)
    shutil.copy(ROOT / "LICENSE", tree)
    (tree / "plugins").mkdir()
    for name in ("bandwidth", "host-local", "loopback", "portmap", "tuning"):
        shutil.copy("/bin/true", tree / "plugins" / name)
    release = directory / "release"
    release.mkdir()
    with tarfile.open(release / TARBALL, "w:xz", preset=0) as tar:
        tar.add(tree, tree.name)
    shutil.copy(SCRIPT, release)
    make_key(release, "key")
    sign(release)
    return release


@pytest.mark.bundle
@pytest.mark.takes(40)
def test_there_again_and_back(tmp_path: Path, bundle: Path) -> None:
    host = FreshHost(tmp_path / "host", make_release(tmp_path, bundle))
    # of other tests on this machine
    host.run("rm", "-rf", "/etc/calico", "/etc/cni", "/var/lib/calico", "/var/log/calico", "/opt/cni", "/run/calico")
    before = host.changes()
    shown = host.install(*FROM, "--dry-run")
    assert shown.returncode == 0 and "would install version 0.1.0 into /opt/cni-calico\n" in shown.stdout, shown
    assert host.changes() == before

    done = host.install(*FROM)
    assert done.returncode == 0 and "installed version 0.1.0 into /opt/cni-calico\n" in done.stdout, done
    asked = host.run("sh", "-c", """echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION /opt/cni/bin/calico""")
    assert '"supportedVersions"' in asked.stdout
    assert host.run("calicoctl", "version", "--client").returncode == 0
    changed = host.changes() - before
    assert {"/usr/local/bin/calicoctl", "/opt/cni/bin/calico", "/var/lib/cni-calico/installed"} <= changed
    assert all(path.startswith(("/opt", "/usr/local/bin/", "/var/lib/cni-calico")) for path in changed)

    times = {path: path.lstat().st_mtime_ns for path in (host.directory / "upper").rglob("*")}
    again = host.install(*FROM)
    assert again.returncode == 0 and "version 0.1.0 is installed\n" in again.stdout
    assert {path: path.lstat().st_mtime_ns for path in (host.directory / "upper").rglob("*")} == times

    # a link that is gone comes back; one that became somebody else's stops it
    host.run("rm", "/opt/cni/bin/calico-ipam")
    assert host.install(*FROM).returncode == 0 and host.changes() - before == changed
    gone = host.install("--uninstall", systemd=False)  # nobody would answer
    assert gone.returncode == 0 and gone.stdout.endswith("This host is as it was before.\n"), gone
    assert host.changes() == before
