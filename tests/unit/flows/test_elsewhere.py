"""Other nodes' names from the agent's file: for any changes, as if it had been written as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.elsewhere import ELSEWHERE, EndElsewhere, EndsElsewhere, render_end
from cni_calico.flows.names import EndName

ADDRESSES = [bytes((10, 0, 0, i)) for i in range(4)]


def end(name: str, *addresses: bytes, **labels: str) -> EndElsewhere:
    return EndElsewhere(EndName("pod", "shop", name), f"{name}-*", labels, addresses)


changes = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.sets(st.sampled_from(ADDRESSES)), st.booleans()), max_size=12
)


@given(changes)
@settings(max_examples=60, deadline=None)
def test_it_is_what_the_last_lines_say(
    tmp_path_factory: pytest.TempPathFactory, chosen: list[tuple[str, set[bytes] | None, bool]]
) -> None:
    directory = tmp_path_factory.mktemp("run")
    ends, path = EndsElsewhere(str(directory)), directory / ELSEWHERE
    now: dict[str, EndElsewhere] = {}
    for place, (key, addresses, anew) in enumerate(chosen):
        now.pop(key, None)
        if addresses is not None:
            now[key] = end(f"{key}{place}", *sorted(addresses), app=key)
        if anew or not path.exists():
            lines = [b'["%d"]\n' % place, *(render_end(name, one) for name, one in now.items())]
            (directory / "new").write_bytes(b"".join(lines))
            (directory / "new").rename(path)
        else:
            with path.open("ab") as file:
                file.write(b"nonsense\n" + render_end(key, now.get(key)))
        ends.look()
        for address in ADDRESSES:
            having = [one.name for one in now.values() if address in one.addresses]
            assert ends.get(address) == (having[-1] if having else None)
        assert len(ends) == len(now)
        for one in now.values():
            found = ends.find((one.name.namespace, one.name.name))
            assert found is not None and (found.name, found.labels) == (one.shared, one.labels)


def test_without_the_file_nobody_has_a_name(tmp_path: Path) -> None:
    ends, path = EndsElsewhere(str(tmp_path)), tmp_path / ELSEWHERE
    assert not ends.look()
    path.write_bytes(render_end("a", end("web", ADDRESSES[0])))
    assert ends.look() and not ends.look()
    assert ends.get(ADDRESSES[0]) == EndName("pod", "shop", "web")
    path.unlink()
    assert ends.look()
    assert ends.get(ADDRESSES[0]) is None and ends.find(("shop", "web")) is None
    path.write_bytes(render_end("a", end("web", ADDRESSES[0])))  # word for word what was there before
    assert ends.look() and ends.get(ADDRESSES[0]) == EndName("pod", "shop", "web")


def test_who_has_the_address_by_now(tmp_path: Path) -> None:
    path, ends = tmp_path / ELSEWHERE, EndsElsewhere(str(tmp_path))
    path.write_bytes(render_end("a", end("old", ADDRESSES[0])) + render_end("b", end("new", ADDRESSES[0])))
    with path.open("ab") as file:
        file.write(render_end("a", None))
    ends.look()
    found = ends.get(ADDRESSES[0])
    assert found is not None and found.name == "new"
