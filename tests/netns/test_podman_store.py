"""Who a container is, read from the database of a real podman: made, renamed, in a pod, with labels of all kinds.

This machine's podman 4, and podman 5 in a root of Debian 13; tests/golden/podman is from one like it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.errors import CalicoError
from cni_calico.plugin.identity.bolt import BoltFile
from tests.conftest import LAB_CACHE, ROOT

pytestmark = pytest.mark.netns

READ = """
import json, sys
from dataclasses import asdict
from cni_calico.kernel.files import Files
from cni_calico.plugin.identity.stores import read_identity
for line in sys.argv[1:]:
    found = read_identity(line, Files(), 1.0)
    print(json.dumps([found.identity and asdict(found.identity), found.troubles]))
"""
# podman in mounts of its own; nothing is started, so no network is needed
MADE = r"""
set -eu
mount --make-rprivate /
for d in /var/lib/containers /run /etc/cni; do mkdir -p $d; mount -t tmpfs none $d; done
mkdir -p /run/netns /run/lock /run/image/bin
cp /bin/busybox /run/image/bin/
tar -C /run/image -c . | podman import - box >/dev/null 2>&1
web=$(podman create --name web --label role=db --label com.docker.compose.project=shop --label 'odd key=a b/c' box true)
other=$(podman create --name other box true)
podman pod create --name mypod --infra-image localhost/box --infra-command true >/dev/null
infra=$(podman ps -a --no-trunc --filter name=infra --format '{{.ID}}')
for i in $(seq 40); do podman create --name "filler$i" --label "l=$(printf '%02000d' "$i")" box true >/dev/null; done
podman rename other renamed
"$PYTHON" -c "$READ" "$web" "$other" "$infra" "$(printf '%064d' 0)"
cp /var/lib/containers/storage/libpod/bolt_state.db "$COPY"; echo "$web" >"$COPY.id"
podman rm web >/dev/null
"$PYTHON" -c "$READ" "$web"
truncate -s 9000 /var/lib/containers/storage/libpod/bolt_state.db
"$PYTHON" -c "$READ" "$other"
rm /var/lib/containers/storage/libpod/bolt_state.db
"$PYTHON" -c "$READ" "$other"
"""


@pytest.fixture(scope="module")
def stored_by_podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Any], Path]]:
    """What was read, and a copy of the database."""
    copy = tmp_path_factory.mktemp("podman") / "bolt_state.db"
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": sys.executable, "READ": READ, "COPY": str(copy)}
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", MADE]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr + done.stdout
    yield [json.loads(line) for line in done.stdout.splitlines()], copy


def test_what_podman_knows(stored_by_podman: tuple[list[Any], Path]) -> None:
    (web, none), (other, _), (infra, _), *unknown = stored_by_podman[0][:4]
    assert none == [] and unknown == [[None, []]]
    assert web == {
        "name": "web",
        "image": "localhost/box:latest",
        "pod": "",
        "labels": {"role": "db", "com.docker.compose.project": "shop", "odd key": "a b/c"},
    }
    assert (other["name"], other["labels"]) == ("renamed", {})
    assert infra["pod"] == "mypod" and infra["name"].endswith("-infra")


def test_gone_damaged_and_absent(stored_by_podman: tuple[list[Any], Path]) -> None:
    gone, (damaged, why), absent = stored_by_podman[0][4:]
    assert gone == absent == [None, []]
    assert damaged is None and "bolt_state.db: cannot read the database" in why[0]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_damaged_database_gives_an_error_or_what_is_there(
    stored_by_podman: tuple[list[Any], Path], data: st.DataObject
) -> None:
    _, copy = stored_by_podman
    whole = copy.read_bytes()
    container = copy.with_suffix(".db.id").read_text().strip().encode()
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(
            st.integers(0, len(whole) - 8) | st.integers(0, 200) | st.sampled_from(range(8, len(whole), 4096))
        )
        spoilt[at : at + 4] = data.draw(st.binary(min_size=4, max_size=4))
    file = copy.with_name("spoilt")
    file.write_bytes(bytes(spoilt[: data.draw(st.just(len(whole)) | st.integers(0, len(whole)))]))
    with BoltFile(str(file)) as bolt:
        try:
            found = bolt.get(b"ctr", container, b"config")
            bolt.names(b"ctr")
        except CalicoError as e:
            assert str(e).startswith("cannot read the database: ")
        else:
            assert found is None or isinstance(found, bytes)


READ_5 = """
import json, os, sys
from dataclasses import asdict
from cni_calico.kernel.files import Files
from cni_calico.plugin.identity.stores import read_identity
root, *containers = sys.argv[1:]
files = Files(os.open(root, os.O_PATH))
for container in containers:
    found = read_identity(container, files, 1.0)
    print(json.dumps([found.identity and asdict(found.identity), found.troubles]))
"""
# podman in the root of its Debian, with what it writes in memory; ours beside it, on the host
MADE_5 = r"""
set -eu
mount --make-rprivate /
mount --bind "$ROOT" "$ROOT"
mount -t proc proc "$ROOT/proc"; mount -t sysfs sysfs "$ROOT/sys"; mount -t cgroup2 cgroup2 "$ROOT/sys/fs/cgroup"
mount --rbind /dev "$ROOT/dev"
for d in var/lib/containers run tmp; do mkdir -p "$ROOT/$d"; mount -t tmpfs none "$ROOT/$d"; done
mkdir -p "$ROOT/run/lock" "$ROOT/run/image/bin"
cp /bin/busybox "$ROOT/run/image/bin/"
made=$(chroot "$ROOT" sh -eu -c '
podman --version >&2
tar -C /run/image -c . | podman import - box >/dev/null 2>&1
web=$(podman create --name web --label role=db --label "odd key=a b/c" box true)
other=$(podman create --name other box true)
podman pod create --name mypod --infra-image localhost/box --infra-command true >/dev/null
till=$(podman create --pod mypod --name till box true)
podman rename other renamed
echo "$web $other $till"')
"$PYTHON" -c "$READ_5" "$ROOT" $made "$(printf '%064d' 0)"
chroot "$ROOT" podman rm web >/dev/null
"$PYTHON" -c "$READ_5" "$ROOT" ${made%% *}
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_podman_5_knows() -> None:
    subprocess.run([ROOT / "tests/setup/fresh-roots.sh", "trixie-podman"], check=True)
    root = str(LAB_CACHE / "fresh-trixie-podman")
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHON": sys.executable, "READ_5": READ_5, "ROOT": root}
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", MADE_5]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "podman version 5" in done.stderr, done.stderr + done.stdout
    (web, none), (other, _), (till, _), unknown, gone = (json.loads(line) for line in done.stdout.splitlines())
    assert none == [] and unknown == gone == [None, []]
    image, labels = "localhost/box:latest", {"role": "db", "odd key": "a b/c"}
    assert web == {"name": "web", "image": image, "pod": "", "labels": labels}
    assert (other["name"], till["name"], till["pod"]) == ("renamed", "till", "mypod")
