"""Files beside BIRD's configuration: read where they can be, named where not."""

from __future__ import annotations

import os
from pathlib import Path

from cni_calico.nodeagent.bgp.custom import MOST_BYTES, read_custom, read_marks


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


def test_a_changed_file_has_other_marks(tmp_path: Path) -> None:
    """Written again, replaced by rename, or a ConfigMap's link that points elsewhere; a broken link is no failure."""
    assert read_marks(str(tmp_path)) == ()
    for part in ("custom", "templates"):
        (tmp_path / part).mkdir()
    (tmp_path / "elsewhere").write_text("y")
    file, template = tmp_path / "custom" / "peers.conf", tmp_path / "templates" / "bird.cfg.template"
    seen = [read_marks(str(tmp_path))]

    def changed() -> bool:
        seen.append(read_marks(str(tmp_path)))
        return seen[-1] != seen[-2]

    file.write_text("x")
    assert changed() and not changed()
    file.write_text("xy")
    assert changed() and not changed()
    (tmp_path / "new").write_text("zz")
    (tmp_path / "new").rename(file)
    assert changed() and not changed()
    template.symlink_to("../elsewhere")
    assert changed()
    (tmp_path / "elsewhere").unlink()
    assert changed() and not changed()
    template.unlink()
    assert changed()
