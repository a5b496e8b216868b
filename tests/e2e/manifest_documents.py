"""Manifests as documents by kind and name, whatever their order."""

from __future__ import annotations

from typing import Any

import yaml

from tests.conftest import ROOT

MANIFESTS = ROOT / "manifests"
Documents = dict[tuple[str, str], Any]


def documents(text: str) -> Documents:
    found = [document for document in yaml.safe_load_all(text) if document]
    named = {(document["kind"], document["metadata"]["name"]): document for document in found}
    assert len(named) == len(found)
    return named
