"""build/release.sh: what it makes, in two places; the Debian packages in a fresh root; nothing without its licence."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.install.test_bundle_install import renamed
from tests.release_sizes import read_sizes, too_large

sys.path.insert(0, str(ROOT / "build" / "image"))

from archive import read_files

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(1800)]

LIBRARY = "/usr/lib/cni-calico"
(GO,) = re.findall(r"(?m)^go (\S+)$", (ROOT / "build/toolchain.txt").read_text())
PACKAGES = ("cni-calico-bundle", "calico-cni", "calico-node", "calico-kube-controllers", "calicoctl")


def make(out: Path, sources: Path, umask: int, **environment: str) -> dict[str, str]:
    """Name of each file -> its sum."""
    command = ["nice", sources / "build/release.sh", "--dirty", out]
    subprocess.run(command, check=True, env={**os.environ, **environment}, umask=umask)
    return read_sums(out)


def read_sums(out: Path) -> dict[str, str]:
    """Name of each file -> its sum, which is the right one."""
    lines = (out / "SHA256SUMS").read_text().splitlines()
    sums = {line.split()[1]: line.split()[0] for line in lines}
    assert {path.name for path in out.iterdir()} == {*sums, "SHA256SUMS", "BUILDINFO-amd64"}
    assert sums == {name: hashlib.sha256((out / name).read_bytes()).hexdigest() for name in sums}
    return sums


@pytest.fixture(scope="module")
def made(built_release: Path) -> Path:
    read_sums(built_release)
    return built_release


def one(made: Path, pattern: str) -> Path:
    (found,) = made.glob(pattern)
    return found


@pytest.fixture(scope="module")
def tree(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked tarball."""
    unpacked = tmp_path_factory.mktemp("tree")
    with tarfile.open(one(made, "*.tar.xz")) as tar:
        assert {(member.uid, member.gid, member.mtime) for member in tar} == {(0, 0, 0)}
        tar.extractall(unpacked)
    (found,) = unpacked.iterdir()
    return found


def clone(directory: Path) -> None:
    """The work tree as it is here, as a clone with a commit of its own, whose requirements-tests.lock is another."""
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@localhost"]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    subprocess.run([*git, "clone", "-q", "--no-checkout", ROOT, directory], check=True)
    for name in filter(None, listed.split("\0")):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, directory / name, follow_symlinks=False)
            if not (directory / name).is_symlink():  # as git makes them under such a umask
                (directory / name).chmod((directory / name).stat().st_mode & 0o700)
    lock = directory / "requirements-tests.lock"
    lock.write_text(re.sub(r"(?m)^pytest==\S+", "pytest==0.0.1", lock.read_text()))
    subprocess.run([*git, "add", "-A"], cwd=directory, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "another version of a test tool"], cwd=directory, check=True)


def test_another_place_makes_the_same(made: Path, tmp_path: Path) -> None:
    """Another directory, home, zone, umask and version of a test tool; the image's lower layer is made again, too. The
    build root is the same one, as its list of packages says.
    """
    home, sources = tmp_path / "home", tmp_path / "much" / "deeper" / "sources-of-cni-calico"
    before = os.umask(0o077)
    try:
        clone(sources)
        (home / ".cache" / "cni-calico").mkdir(parents=True)
    finally:
        os.umask(before)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # checked by their hashes, not fetched; the root's own name is a hash of its packages
    (home / ".cache/cni-calico/wheels").symlink_to(caches / "cni-calico/wheels")
    script = ROOT / "build/release/root.sh"
    root = subprocess.run([script, "amd64", "--print"], capture_output=True, text=True, check=True).stdout.strip()
    for name in {root, root.rpartition("-")[0]}:
        (home / ".cache/cni-calico" / Path(name).name).symlink_to(name)
    environment = {"HOME": str(home), "TZ": "Asia/Kathmandu", "LC_ALL": "C", "XDG_CACHE_HOME": ""}
    environment["SOURCE_DATE_EPOCH"] = "1577836800"
    # sources, checked by their hashes; what was compiled stays where it is
    environment["GOMODCACHE"] = os.environ.get("GOMODCACHE") or str(Path.home() / "go/pkg/mod")
    first = dict(line.split()[::-1] for line in (made / "SHA256SUMS").read_text().splitlines())
    assert make(tmp_path / "again", sources, 0o077, **environment) == first
    assert not list((sources / ".venv/lib").glob("python*/site-packages/pytest*")), "a release needs no test tools"


def test_nothing_is_larger_than_it_may_be(made: Path) -> None:
    assert len(read_sizes(made)) == 6
    assert too_large(made) == {}


def test_buildinfo_says_what_it_was_made_of(made: Path, tree: Path) -> None:
    text = (made / "BUILDINFO-amd64").read_text()
    fields = Parser().parsestr(text)
    (contents,) = (tree / "bin").glob(f".calico-*-{fields['Build']}")
    assert contents.name == f".calico-{fields['Version'].removesuffix('.dirty')}-{fields['Build']}"
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert fields["Commit"].removesuffix(" (changed)") == head.strip()
    sums = [line.split() for line in (made / "SHA256SUMS").read_text().splitlines()]
    assert [line.split() for line in fields["Checksums-Sha256"].strip().splitlines()] == sums
    script = ROOT / "build/release/root.sh"
    root = subprocess.run([script, "amd64", "--print"], capture_output=True, text=True, check=True).stdout.strip()
    packages = [f"{name}={version}" for name, version in re.findall(r"(?m)^ (\S+) \(= (\S+)\)$", text)]
    listed = (Path(root) / "packages").read_text().splitlines()
    assert sorted(packages) == sorted(listed), "of the build root, not of this machine"
    assert str(ROOT) not in text


def test_the_tarball_has_what_an_installation_needs(tree: Path, tmp_path: Path) -> None:
    names = {"LICENSE", "NOTICE", "README.md", "install-bundle.sh", "bin", "docs", "manifests", "install", "conflist"}
    assert names <= {path.name for path in tree.iterdir()}
    assert {"calico.yaml", "calico-etcd.yaml", "crds.yaml", "monitoring"} <= {
        p.name for p in (tree / "manifests").iterdir()
    }
    subprocess.run([tree / "install-bundle.sh", tree / "bin", tmp_path / "cni"], check=True)
    done = subprocess.run(
        [tmp_path / "cni/calicoctl", "version", "--client"], capture_output=True, text=True, check=True
    )
    (contents,) = (tree / "bin").glob(".calico-*")
    version, _, build = contents.name.removeprefix(".calico-").rpartition("-")
    assert f"v{version}+{build}" in done.stdout


@pytest.mark.helm
def test_the_chart_is_one(made: Path, tree: Path) -> None:
    done = subprocess.run(
        [LAB_CACHE / "bin" / "helm", "template", "calico", one(made, "*-chart-*.tgz")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    same = [LAB_CACHE / "bin" / "helm", "template", "calico", tree / "manifests" / "chart"]
    assert done.stdout == subprocess.run(same, capture_output=True, text=True, check=True).stdout


def shipped(tree: Path) -> list[str]:
    """The Python packages at the top of the bundle's contents that are neither ours nor the standard library's."""
    (contents,) = (tree / "bin").glob(".calico-*")
    modules = (path for path in contents.iterdir() if path.is_dir() or path.suffix == ".pyc")
    found = {path.name.partition(".")[0] for path in modules if path.suffix != ".dist-info"}
    ours = {"cni_calico", "share", "install", "packs", "glibc", "python3", ""}
    return sorted(name for name in found - ours - set(sys.stdlib_module_names) if not name.startswith("_sysconfigdata"))


def test_the_notice_has_everything(tree: Path) -> None:
    notice = (tree / "NOTICE").read_text()
    tables = notice.partition("=" * 100)[0]
    listed = {line.split()[0] for line in tables.splitlines() if re.match(r"  \S+  +\S", line)}
    wanted = {"libpython3.11-minimal", "libssl3", "libc6", "libstdc++6", "libsqlite3-0", "zlib1g", "grpcio", "protobuf"}
    wanted |= {"pyroute2", "pyyaml", "dnspython", "boringssl", "c-ares", "pyinstaller", "bird2", "nftables"}
    wanted |= {"iptables", "ipset", "libipset13", "github.com/containernetworking/plugins", "std"}
    assert wanted - listed == set()
    called = {"google": "protobuf", "grpc": "grpcio", "dns": "dnspython", "yaml": "pyyaml"}
    for name in shipped(tree):
        assert {called.get(name, name), name.replace("_", "-"), f"python-{name}"} & listed, name
    for text in (
        "PYTHON SOFTWARE FOUNDATION LICENSE",
        "GNU GENERAL PUBLIC LICENSE",
        "Daniel Stenberg",
        "The RE2 Authors",
    ):
        assert text in notice
    headings = re.findall(r"^={100}\n(.*?)\n={100}$", notice, re.MULTILINE | re.DOTALL)
    under = {name for heading in headings for name in re.split(r",\s*|\n", heading)}
    assert listed - under <= {"abseil-cpp"}, "listed without a licence text"


def test_the_bill_of_materials_is_valid(made: Path, tree: Path) -> None:
    from cyclonedx.schema import SchemaVersion  # three seconds, which each worker would pay to collect this file
    from cyclonedx.validation.json import JsonStrictValidator

    text = one(made, "*.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    purls = [component["purl"] for component in document["components"]]
    assert len(set(purls)) == len(purls)
    lock = (ROOT / "requirements.lock").read_text()
    for purl in purls:
        if purl.startswith("pkg:pypi/"):
            assert f"\n{purl.removeprefix('pkg:pypi/').replace('@', '==')} " in lock.lower().replace("_", "-"), purl
    known = {document["metadata"]["component"]["bom-ref"], *(each["bom-ref"] for each in document["components"])}
    named = {reference for each in document["dependencies"] for reference in (each["ref"], *each["dependsOn"])}
    assert named == known


Image = tuple[dict[str, Any], dict[str, Any], list[bytes]]


def images_of(made: Path) -> list[Image]:
    """Manifest, configuration and layers of each image of the archive."""
    files = read_files(one(made, "*-images-amd64.tar"))

    def blob(descriptor: Any) -> bytes:
        return files["blobs/" + descriptor["digest"].replace(":", "/")]

    manifests = [json.loads(blob(entry)) for entry in json.loads(files["index.json"])["manifests"]]
    return [(each, json.loads(blob(each["config"])), [blob(layer) for layer in each["layers"]]) for each in manifests]


def names_in(layer: bytes) -> set[str]:
    with tarfile.open(fileobj=io.BytesIO(layer)) as tar:
        return {member.name.removeprefix("./") for member in tar}


def test_the_image_says_what_it_is_and_keeps_its_licences(made: Path) -> None:
    node, controllers = images_of(made)
    manifest, config, blobs = node
    layers = [names_in(gzip.decompress(data)) for data in blobs]
    labels = config["config"]["Labels"]
    assert labels == manifest["annotations"]
    (version,) = re.findall(r"^__version__ = \"(.*)\"", (ROOT / "cni_calico/__init__.py").read_text(), re.MULTILINE)
    assert labels["org.opencontainers.image.version"] == f"{version}.dirty"
    assert re.fullmatch("[0-9a-f]{8}", labels["org.opencontainers.image.revision"])
    lower, upper = layers
    for package in ("bird2", "nftables", "iptables", "ipset", "libipset13", "libc6", "bash"):
        assert f"usr/share/doc/{package}/copyright" in lower
    assert {"usr/share/doc/cni-calico/LICENSE", "usr/share/doc/cni-calico/NOTICE"} <= upper
    assert config["config"]["Cmd"] == ["/opt/cni/bin/calico-node", "run"]
    assert controllers[0]["layers"] == manifest["layers"]
    assert (controllers[1]["config"]["User"], controllers[1]["config"]["Entrypoint"]) == (
        "999",
        ["/usr/bin/wrapper", "/usr/bin/kube-controllers"],
    )
    assert {config["architecture"], controllers[1]["architecture"]} == {"amd64"}


def test_the_images_are_called_as_the_manifests_and_the_page_say(made: Path) -> None:
    index = json.loads(read_files(one(made, "*-images-amd64.tar"))["index.json"])
    names = [entry["annotations"]["io.containerd.image.name"] for entry in index["manifests"]]
    named = set(re.findall(r"(?m)^ *image: *(\S+)", (ROOT / "manifests/calico.yaml").read_text()))
    assert named == {names[0]} and names[1] == names[0].replace("/node:", "/kube-controllers:") != names[0]


def test_the_reference_plugins_say_which_they_are(made: Path, tree: Path) -> None:
    """In the tarball and the image alike; as a runtime starts them, and by hand."""
    plugins = {path.name: path for path in (tree / "plugins").iterdir()}
    assert plugins.keys() == {"bandwidth", "host-local", "loopback", "portmap", "tuning"}
    (version,) = re.findall(r"containernetworking/plugins (v\S+)", (ROOT / "build/image/plugins/go.mod").read_text())
    for name, path in plugins.items():
        done = subprocess.run([path], capture_output=True, text=True, env={})
        assert done.stderr.splitlines()[0] == f"CNI {name} plugin {version}"
        asked = {"CNI_COMMAND": "VERSION"}
        done = subprocess.run([path], input='{"cniVersion":"1.0.0"}', capture_output=True, text=True, env=asked)
        assert "1.1.0" in json.loads(done.stdout)["supportedVersions"]
    _, _, (_, upper) = images_of(made)[0]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(upper))) as tar:
        for name, path in plugins.items():
            file = tar.extractfile(f"opt/cni/bin/{name}")
            assert file is not None and file.read() == path.read_bytes()


def test_what_is_compiled_into_the_plugins_is_in_the_bill_of_materials(made: Path, tree: Path) -> None:
    """Compared with what the programs say themselves: Go writes its modules into them, here found as text."""
    document = json.loads(one(made, "*.cdx.json").read_text())
    components = {each["purl"]: each for each in document["components"] if each["purl"].startswith("pkg:golang/")}
    said = set()
    for path in (tree / "plugins").iterdir():
        for module, number in re.findall(rb"\n(?:mod|dep)\t(\S+)\t(\S+)\th1:", path.read_bytes()):
            said.add(f"pkg:golang/{module.decode()}@{number.decode()}")
    assert len(said) > 5 and components.keys() - said == {f"pkg:golang/std@{GO}"} and said <= components.keys()
    assert all(each["properties"] == [{"name": "cni-calico:in", "value": "plugins"}] for each in components.values())
    assert all(each["licenses"] for each in components.values())


@pytest.fixture(scope="module")
def image_root(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root that a container of the agent's image has."""
    directory = tmp_path_factory.mktemp("container")
    for data in images_of(made)[0][2]:
        subprocess.run(["tar", "-C", directory, "-xzf", "-"], input=data, check=True)
    return directory


def test_the_image_installs_the_plugins(image_root: Path) -> None:
    """As the manifests' container does it, outside a cluster; the executables find all that they need in the layer."""
    script = """
mkdir -p /host/opt/cni/bin /host/etc/cni/net.d
SLEEP=false /install-cni.sh
for plugin in calico portmap; do
  echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION /host/opt/cni/bin/$plugin
done
"""
    assert inside(image_root, script).stdout.count('"supportedVersions"') == 2
    names = {path.name for path in (image_root / "host/opt/cni/bin").iterdir() if not path.name.startswith(".")}
    ours = {"calico", "calico-ipam", "calico.python", "calico-ipam.python"}
    assert names == ours | {"bandwidth", "host-local", "loopback", "portmap", "tuning"}
    assert json.loads((image_root / "host/etc/cni/net.d/10-calico.conflist").read_text())["plugins"]


def test_the_image_runs_the_agent_with_bird(image_root: Path) -> None:
    script = """
ip link set lo up
export NODENAME=host DATASTORE_TYPE=local IP=192.0.2.1/24 CALICO_NETWORKING_BACKEND=bird FELIX_HEALTHENABLED=true
ip link add up0 type veth peer name up1; ip addr add 192.0.2.1/24 dev up0; ip link set up0 up; ip link set up1 up
calico-node run >/var/log/agent 2>&1 &
agent=$!
until calico-node -felix-ready -bird-live >/var/log/ready 2>&1; do
  kill -0 $agent || { cat /var/log/agent /var/log/ready; exit 1; }
  sleep 0.3
done
birdcl -s /var/run/calico/bird.ctl show status | head -n 1
nft list tables
kill $agent
wait $agent || :
"""
    said = inside(image_root, script).stdout
    assert "BIRD 2" in said and "calico" in said, said


# -- Debian packages --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh Debian 12 with the packages installed by its own dpkg."""
    script = ROOT / "build/release/root.sh"
    shown = subprocess.run([script, "amd64", "--print"], capture_output=True, text=True, check=True).stdout.strip()
    directory = tmp_path_factory.mktemp("built") / "root"
    subprocess.run(["cp", "-a", Path(shown) / "tree", directory], check=True)
    (directory / "given").mkdir()
    for package in PACKAGES:
        shutil.copy(one(made, f"{package}_*.deb"), directory / "given")
    inside(directory, "dpkg -i /given/*.deb")
    yield directory


def inside(root: Path, script: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    """In the root, in mount, process and network namespaces that end with the script."""
    mounts = 'mount --bind /dev "$0/dev" && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/run"'
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    started = f'mkdir -p "$0/dev" "$0/proc" "$0/run" && {mounts} && exec chroot "$0" /bin/sh -euc "$1"'
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c", started, root, script]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": path, "LC_ALL": "C"}, timeout=300)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done


def test_dpkg_has_them_whole(root: Path) -> None:
    shown = inside(root, f"dpkg-query -W -f '${{Package}} ${{Status}}\\n' {' '.join(PACKAGES)}").stdout
    assert shown.splitlines() == [f"{name} install ok installed" for name in sorted(PACKAGES)]
    assert inside(root, f"dpkg --verify {' '.join(PACKAGES)}").stdout == ""
    assert inside(root, "dpkg --audit").stdout == ""


def test_programs_are_where_people_and_runtimes_look(root: Path) -> None:
    assert "cni-calico:" in inside(root, "calicoctl version --client").stdout
    assert inside(root, "kubectl-calico version --client").stdout.startswith("Client Version:")
    for name in (
        "calico-node -v",
        "calico-kube-controllers -version",
        "/opt/cni/bin/calico -v",
        "/usr/lib/cni/calico-ipam -v",
    ):
        assert re.fullmatch(r"v[0-9.]+\+[0-9a-f]{8}\n", inside(root, name).stdout), name
    assert (root / "usr/share/bash-completion/completions/calicoctl").is_file()
    assert gzip.decompress((root / "usr/share/man/man1/calicoctl.1.gz").read_bytes()).startswith(b".TH CALICOCTL")
    assert "/usr/bin/install" in inside(root, "command -v install").stdout


def test_what_policies_need_without_nf_tables_is_there(root: Path) -> None:
    """The programs of Debian, in the image's lower layer as on a host with the package of calico-node."""
    needs = inside(root, "dpkg-query -W -f '${Depends}' calico-node").stdout
    assert {"iptables", "ipset"} <= set(re.split(r"[\s,]+", needs))
    script = """
printf 'create one hash:ip\\nadd one 192.0.2.1\\n' | ipset restore -exist
for program in iptables ip6tables; do
  printf '*filter\\n-A FORWARD -j DROP\\nCOMMIT\\n' | $program-legacy-restore --noflush -w 5
done
iptables-legacy -A FORWARD -m set --match-set one src -m multiport -p tcp --dports 80,90:99 -j DROP
ip6tables-legacy-save
iptables-legacy-save
"""
    said = inside(root, script).stdout
    assert said.count("-A FORWARD -j DROP") == 2 and "--match-set one src" in said


@pytest.mark.parametrize("unit", ["calico-node", "calico-cni", "calico-kube-controllers"])
def test_units_name_what_is_there(root: Path, unit: str) -> None:
    done = subprocess.run(
        ["systemd-analyze", f"--root={root}", "--man=no", "--recursive-errors=no", "verify", f"{unit}.service"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "not executable" not in done.stderr, done.stderr
    text = (root / f"lib/systemd/system/{unit}.service").read_text()
    for page in re.findall(r"Documentation=file://(\S+)", text):
        assert (root / page.lstrip("/")).is_file()
    for file in re.findall(r"EnvironmentFile=-?(\S+)", text):
        assert (root / file.lstrip("/")).is_file()
        assert file in inside(root, f"dpkg-query -W -f '${{Conffiles}}' {unit}").stdout
        assert (root / file.lstrip("/")).stat().st_mode & 0o777 == 0o600


def test_what_the_units_start_runs_and_is_ready(root: Path) -> None:
    """One host by itself, as the installed unit and its settings say; then a call, as a runtime makes it."""
    (command,) = re.findall(r"^ExecStart=(.*)$", (root / "lib/systemd/system/calico-node.service").read_text(), re.M)
    script = f"""
ip link set lo up
set -a; . /etc/calico/calico-node.env; set +a
export NODENAME=host
{command} >/var/log/agent 2>&1 &
agent=$!
until calico-node -felix-ready >/var/log/ready 2>&1; do
  kill -0 $agent || {{ cat /var/log/agent /var/log/ready; exit 1; }}
  sleep 0.3
done
test -S /run/calico/cni.sock
echo '{{"cniVersion":"1.0.0"}}' | CNI_COMMAND=VERSION /opt/cni/bin/calico
kill $agent
wait $agent || :
"""
    assert '"supportedVersions"' in inside(root, script).stdout


CALLS = """
while ! test -e /stop; do
  calicoctl version --client >/dev/null 2>>/var/log/calls || echo calicoctl: $? >>/var/log/calls
  echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION /opt/cni/bin/calico.python >/dev/null 2>>/var/log/calls ||
    echo calico: $? >>/var/log/calls
done &
calls=$!
"""


def test_an_upgrade_disturbs_no_call(root: Path, made: Path, tmp_path: Path) -> None:
    """Calls go on all the time; what was started before two upgrades finds its modules after the first."""
    copy = tmp_path / "root"
    subprocess.run(["cp", "-a", root, copy], check=True)
    for build in ("11111111", "22222222"):
        newer(one(made, "cni-calico-bundle_*.deb"), build, copy / "given", tmp_path)
    script = f"""
ln -s {LIBRARY}/calico.python /opt/cni/bin/calico.python
cd {LIBRARY}
ln calicoctl started-before
{CALLS}
for build in 11111111 22222222; do
  dpkg --force-depends -i /given/newer-$build.deb >/var/log/dpkg-i 2>&1 || {{ cat /var/log/dpkg-i; exit 1; }}
  grep -qF -- -$build calicoctl
  for program in ./calicoctl ./started-before; do $program version --client >/dev/null; done
done
touch /stop
wait $calls
cat /var/log/calls >&2
test ! -s /var/log/calls
rm started-before
dpkg --verify cni-calico-bundle >&2
"""
    done = inside(copy, script)
    assert done.stderr == "", done.stderr
    found = {path.name.rpartition("-")[2] for path in (copy / LIBRARY[1:]).glob(".calico-*")}
    assert found > {"11111111", "22222222"} and len(found) == 3


def newer(file: Path, build: str, out: Path, scratch: Path) -> None:
    """The package of the bundle as if of another build, newer-BUILD.deb."""
    unpacked = scratch / build
    subprocess.run(["dpkg-deb", "-R", file, unpacked], check=True)
    owned = unpacked / "usr/share/cni-calico"
    (owned / "bin").rename(owned / "former")
    (owned / "bin").mkdir()
    renamed(owned / "former", owned / "bin", build)
    shutil.rmtree(owned / "former")
    control = unpacked / "DEBIAN" / "control"
    control.write_text(re.sub(r"(?m)^(Version: .*)$", rf"\1+{build}", control.read_text()))
    (unpacked / "DEBIAN" / "md5sums").unlink()
    package = out / f"newer-{build}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zzstd", "-z1", "-b", unpacked, package], check=True)


def test_removal_leaves_nothing_of_ours(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "root"
    subprocess.run(["cp", "-a", root, copy], check=True)
    inside(copy, f"dpkg --purge {' '.join(reversed(PACKAGES))}")
    left = inside(copy, "find / -xdev -name '*calico*' -not -path '/given/*' -not -path '/var/l*'").stdout
    assert left == ""


def test_packages_as_the_distribution_wants_them(made: Path) -> None:
    for package in PACKAGES:
        file = one(made, f"{package}_*.deb")
        listed = subprocess.run(["dpkg-deb", "-c", file], capture_output=True, text=True, check=True).stdout
        rows = [(line.split()[0], line.split()[1], line.split()[5]) for line in listed.splitlines()]
        assert {owner for _, owner, _ in rows} == {"root/root"}
        plain = {(mode, name.startswith("./etc/calico/")) for mode, _, name in rows if mode[0] == "-"}
        # settings may hold passwords
        assert plain <= {("-rw-r--r--", False), ("-rwxr-xr-x", False), ("-rw-------", True)}
        names = {name for _, _, name in rows}
        for wanted in ("copyright", "changelog.Debian.gz"):
            assert f"./usr/share/doc/{package}/{wanted}" in names
        assert not [name for name in names if name.startswith(("./usr/local", "./var", "./run", "./home"))]
        fields = subprocess.run(["dpkg-deb", "-f", file], capture_output=True, text=True, check=True).stdout
        assert "Architecture: amd64" in fields and "\nDescription: " in fields
