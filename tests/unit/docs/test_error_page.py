"""docs/errors.md says what the code says."""

import importlib.util
from pathlib import Path

from cni_calico import errors

ROOT = Path(__file__).parents[3]


def load():
    spec = importlib.util.spec_from_file_location("error_page", ROOT / "build" / "error_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "errors.md").read_text() == load().render()


def test_one_code_per_condition():
    """Ours (100 and up) name one condition each."""
    ours = [c for c in load().classes(errors.CalicoError) if c.code >= 100 and c.__module__ == errors.__name__]
    by_code = {}
    for item in ours:
        by_code.setdefault(item.code, set()).add(item.__name__)
    shared = {code: names for code, names in by_code.items() if len(names) > 1}
    assert all(
        any(issubclass(getattr(errors, a), getattr(errors, b)) for a in n for b in n - {a}) for n in shared.values()
    )
