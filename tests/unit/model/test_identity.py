"""Labels of containers: what a hostile or clumsy container may be called, and what it can never be taken for."""

from __future__ import annotations

import string
from hashlib import sha1
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.identity import (
    CONTAINER,
    IMAGE,
    LABELS_BYTES,
    LABELS_MAX,
    NETWORK,
    OURS,
    OWN,
    POD,
    PROJECT,
    SERVICE,
    ContainerIdentity,
    legal_key,
    legal_value,
    merge_labels,
    plan_labels,
    shown_name,
)
from cni_calico.model.validation.report import Report

ROOT = Path(__file__).parents[3]
COMPOSE = {"com.docker.compose.project": "shop", "com.docker.compose.service": "db", "role": "db"}
TEXTS = st.text(max_size=80) | st.text(string.ascii_letters + "/-_. :", max_size=300)


def problems(labels: dict[str, str]) -> list[object]:
    report = Report("WorkloadEndpoint")
    for key, value in labels.items():
        report.label("labels", key, value)
    return list(report.problems)


def test_a_container_of_compose() -> None:
    found = plan_labels(ContainerIdentity("shop-db-1", "docker.io/library/postgres:16", "", COMPOSE), "backend")
    assert found.left_out == ()
    assert found.labels == {
        CONTAINER: "shop-db-1",
        IMAGE: "docker.io_library_postgres_16-f9c6c1d2",
        NETWORK: "backend",
        PROJECT: "shop",
        SERVICE: "db",
        **{f"{OWN}{key}": value for key, value in COMPOSE.items()},
    }


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("role", f"{OWN}role"),
        (f"{OWN}role", f"{OWN}role"),
        ("app.kubernetes.io/name", f"{OWN}app.kubernetes.io/name"),
        ("a/b/c", f"{OWN}a_b_c-{sha1(b'a/b/c').hexdigest()[:8]}"),
        ("Not A Key", f"{OWN}Not_A_Key-{sha1(b'Not A Key').hexdigest()[:8]}"),
    ],
)
def test_keys(key: str, expected: str) -> None:
    assert legal_key(key) == expected and problems({expected: ""}) == []


@pytest.mark.parametrize(
    "forged", [CONTAINER, NETWORK, "projectcalico.org/namespace", f"{OWN}{CONTAINER}", f"{OWN}/x", "/", OWN, "pcns.a"]
)
def test_a_label_of_ours_cannot_be_forged(forged: str) -> None:
    found = plan_labels(ContainerIdentity("web", labels={forged: "evil"}), "pods")
    assert {key: value for key, value in found.labels.items() if not key.startswith(OWN)} == {
        CONTAINER: "web",
        NETWORK: "pods",
    }


def test_only_compose_is_taken_from_labels_and_the_page_says_so() -> None:
    """An image's labels are among the container's own."""
    image = {"com.docker.compose.project": "shop", "io.podman.compose.service": "db"}
    claimed = plan_labels(ContainerIdentity("evil", labels=image), "pods").labels
    assert (claimed[PROJECT], claimed[SERVICE]) == ("shop", "db")
    page = (ROOT / "docs" / "hosts.md").read_text().partition("## Who a container is")[2].partition("\n## ")[0]
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{PROJECT}`, `{SERVICE}` |"))
    assert "| a claim: " in row and "claims of whoever makes the container, or its image" in page


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_no_policy_in_the_docs_goes_by_what_a_container_claims_of_compose(page: Path) -> None:
    selectors = [line for line in page.read_text().splitlines() if "elector:" in line]
    assert not [line for line in selectors if PROJECT in line or SERVICE in line]


@given(st.dictionaries(st.sampled_from(sorted(COMPOSE)) | TEXTS, TEXTS, max_size=8))
def test_nothing_else_of_ours_depends_on_labels(own: dict[str, str]) -> None:
    found, bare = (plan_labels(ContainerIdentity("web", "box", "", labels), "pods").labels for labels in (own, {}))
    assert {key: found[key] for key in found if not key.startswith(OWN) and key not in (PROJECT, SERVICE)} == bare


def test_what_is_too_much_is_left_out_and_named() -> None:
    many = {f"l{number:03}": "x" for number in range(LABELS_MAX + 5)}
    found = plan_labels(ContainerIdentity("web", labels=many), "pods")
    assert len(found.labels) == LABELS_MAX + 2 and len(found.left_out) == 5 and "l064'" in found.left_out[0]
    large = {f"l{number:02}{'x' * 30}": "y" * 60 for number in range(40)}
    found = plan_labels(ContainerIdentity("web", labels=large), "pods")
    assert sum(map(len, (*found.labels, *found.labels.values()))) < LABELS_BYTES + 200 and found.left_out
    found = plan_labels(ContainerIdentity("a\nb", labels={"ok": "1", "bad": "\x1b[2J", "long": "z" * 4096}), "pods")
    assert found.labels == {NETWORK: "pods", f"{OWN}ok": "1"}
    assert found.left_out == (
        "the label cni-calico.io/container is missing: the container's name has a control character",
        "the container's label 'bad' is left out: has a control character",
        "the container's label 'long' is left out: has more than 1024 characters",
    )


@given(st.builds(ContainerIdentity, TEXTS, TEXTS, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=80)), TEXTS)
def test_labels_are_always_legal_and_apart(identity: ContainerIdentity, network: str) -> None:
    found = plan_labels(identity, network)
    assert problems(dict(found.labels)) == []
    assert {key for key in found.labels if not key.startswith(OWN)} <= {
        CONTAINER,
        IMAGE,
        NETWORK,
        POD,
        PROJECT,
        SERVICE,
    }
    assert all(line.isprintable() for line in found.left_out)


@given(st.sets(TEXTS.filter(str.isprintable), max_size=20))
def test_two_texts_never_become_one(texts: set[str]) -> None:
    """Neither keys nor values: a policy for one would be a policy for the other."""
    assert len({legal_value(text) for text in texts}) == len(texts)
    bare = {text for text in texts if not text.startswith(OWN)}
    assert len({legal_key(text) for text in bare}) == len(bare)


def test_labels_of_other_origin_stay() -> None:
    before = {
        "role": "by hand",
        f"{OWN}old": "1",
        CONTAINER: "old",
        f"{OURS}pod": "gone",
        "projectcalico.org/namespace": "default",
    }
    assert merge_labels(before, {CONTAINER: "new"}) == {
        "role": "by hand",
        "projectcalico.org/namespace": "default",
        CONTAINER: "new",
    }


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, ""),
        ({CONTAINER: "web"}, "web"),
        ({CONTAINER: "3c0329647cc5-infra", POD: "mypod"}, "mypod"),
        ({CONTAINER: "web", POD: "mypod"}, "web"),
    ],
)
def test_what_people_call_it(labels: dict[str, str], expected: str) -> None:
    assert shown_name(labels) == expected
