"""Files beside BIRD's configuration: read where they can be, named where not."""

from __future__ import annotations

import os
from pathlib import Path

from cni_calico.nodeagent.bgp.custom import MOST_BYTES, read_custom


def test_there_may_be_none(tmp_path: Path) -> None:
    assert read_custom(str(tmp_path / "none"))[0].texts == {}
    assert read_custom(str(tmp_path))[1] == ()


def test_a_mounted_config_map(tmp_path: Path) -> None:
    data = tmp_path / "custom" / "..data"
    data.mkdir(parents=True)
    (data / "global.conf").write_text("protocol bfd {}\n")
    (tmp_path / "custom" / "global.conf").symlink_to("..data/global.conf")
    fragments, problems = read_custom(str(tmp_path))
    assert fragments.texts == {"global.conf": "protocol bfd {}\n"} and problems == ()


def test_what_is_no_file_of_text_is_named(tmp_path: Path) -> None:
    custom = tmp_path / "custom"
    custom.mkdir()
    os.mkfifo(custom / "peers.conf")
    (custom / "kernel4.conf").write_bytes(b"x" * (MOST_BYTES + 1))
    (custom / "kernel6.conf").write_bytes(b"\xff")
    (custom / "kernel.conf").write_text("x")
    (custom / "README").write_text("x")
    (custom / "import4.conf").write_text("")
    fragments, problems = read_custom(str(tmp_path))
    assert fragments.texts == {"import4.conf": ""}
    assert sorted(problem.about for problem in problems) == [
        f"custom/{name}.conf" for name in ("kernel", "kernel4", "kernel6", "peers")
    ]


def test_a_template_is_an_error_and_no_reason_to_stop(tmp_path: Path) -> None:
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "bird.cfg.template").write_text("{{range}}")
    (tmp_path / "templates" / "notes.txt").write_text("")
    _, (problem,) = read_custom(str(tmp_path))
    assert problem.about == "templates/bird.cfg.template" and "NOT USED" in str(problem)
