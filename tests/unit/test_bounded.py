"""Texts and files of any size and shape: read and parsed within bounds, and never waited for without a limit."""

import os
import subprocess
import sys
import threading

import pytest
import yaml

from cni_calico import bounded

LAUGHS = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(9)
)


@pytest.mark.parametrize("text", ["[" * 100_000, "- " * 100_000, "{a: " * 100_000, LAUGHS, "a: &a [*a]"])
def test_yaml_beyond_bounds_is_refused_in_words(text):
    with pytest.raises(bounded.OutOfBounds, match="cannot read it: "):
        bounded.parse_yaml(text, "it")


def test_yaml_within_bounds_is_what_yaml_says():
    deepest = "[" * bounded.MAX_DEPTH + "]" * bounded.MAX_DEPTH
    for text in ("a: &x {b: 1}\nc: *x\n---\n- 1", deepest, "", "just text"):
        assert bounded.parse_yaml(text, "it") == list(yaml.safe_load_all(text))


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 101 + "]" * 101, '{"a":' * 200 + "1" + "}" * 200])
def test_json_beyond_bounds(text):
    with pytest.raises(bounded.OutOfBounds, match="nested more than 100 levels"):
        bounded.parse_json(text, "it")


def test_json_within_bounds():
    assert bounded.parse_json('{"a": [1]}', "it") == {"a": [1]}
    with pytest.raises(ValueError, match="Expecting"):
        bounded.parse_json("{", "it")


class TestReading:
    def test_a_device_without_an_end(self):
        with pytest.raises(bounded.OutOfBounds, match="cannot read /dev/zero: it is larger than 1 MiB"):
            bounded.read_bytes("/dev/zero", limit=1 << 20)
        assert bounded.read_bytes("/dev/null", limit=1) == b""

    def test_a_file_of_just_the_limit(self, tmp_path):
        path = tmp_path / "file"
        path.write_bytes(b"x" * (1 << 20))
        assert len(bounded.read_bytes(str(path), limit=1 << 20)) == 1 << 20
        path.write_bytes(b"x" * ((1 << 20) + 1))
        with pytest.raises(bounded.OutOfBounds):
            bounded.read_bytes(str(path), limit=1 << 20)

    def test_a_pipe_that_nobody_writes_to(self, tmp_path):
        path = str(tmp_path / "fifo")
        os.mkfifo(path)
        with pytest.raises(TimeoutError):
            bounded.read_bytes(path, limit=10, timeout_s=0.05)

    def test_a_pipe_with_a_writer(self, tmp_path):
        path = str(tmp_path / "fifo")
        os.mkfifo(path)

        def write():
            with open(path, "wb") as file:
                file.write(b"abc")

        writer = threading.Thread(target=write)
        writer.start()
        assert bounded.read_text(path, limit=10) == "abc"
        writer.join()


@pytest.mark.parametrize(
    "argv", [["apply", "-f", "{deep}"], ["patch", "node", "n", "-p", "@"], ["get", "-f", "{deep}"]]
)
def test_calicoctl_survives_deep_nesting(argv, tmp_path):
    deep = tmp_path / "deep.yaml"
    deep.write_text("a: " + "[" * 100_000)
    words = [word.format(deep=deep) if word != "@" else "a: " + "[" * 50_000 for word in argv]
    program = "import sys; from cni_calico.ctl.main import main; sys.exit(main())"
    environment = {**os.environ, "DATASTORE_PATH": str(tmp_path / "d.db")}
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1, done
    assert "nested more than 100 levels deep" in done.stderr or "does not exist yet" in done.stderr


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("deep", "nested more than 100 levels deep"),
        ("zero", "it is larger than 256 MiB"),
        ("fifo", "nothing to read within 10 s"),
    ],
)
def test_a_report_is_read_within_bounds(tmp_path, what, said):
    named = tmp_path / "report.json"
    if what == "deep":
        named.write_text("[" * 200_000)
    elif what == "zero":
        named.symlink_to("/dev/zero")
    else:
        os.mkfifo(named)
    program = "import sys; from cni_calico.ctl.main import main; sys.exit(main())"
    argv = [sys.executable, "-c", program, "ipam", "release", f"--from-report={named}"]
    environment = {**os.environ, "DATASTORE_PATH": str(tmp_path / "d.db")}
    made = subprocess.run(
        [sys.executable, "-c", program, "ipam", "configure", "--strictaffinity=false"],
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert made.returncode == 0, made
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert f"cannot read report {named}: " in done.stderr or f"cannot read {named}: " in done.stderr
    assert said in done.stderr
