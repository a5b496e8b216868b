"""provenance.json: from what and how a release was made, as an in-toto statement with SLSA's predicate (v1).

Rule: it says what BUILDINFO says, of every processor, in the form that policy engines read; nothing is in it that a
rebuild does not repeat: no time of day, no machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from indexes import Images
from made import Made
from published import LOCAL, Published

_STATEMENT = "https://in-toto.io/Statement/v1"
_PREDICATE = "https://slsa.dev/provenance/v1"


def render_provenance(made: Sequence[Made], sums: Mapping[str, str], images: Images, published: Published) -> str:
    """``sums``: file name -> SHA-256."""
    fields = made[0].fields
    home = published.releases or "urn:cni-calico"
    subjects = [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(sums.items())]
    subjects += [{"name": name, "digest": _plain(digest)} for name, digest in sorted(images.digests.items())]
    for name, found in sorted(images.platforms.items()):
        subjects += [{"name": f"{name} ({each})", "digest": _plain(digest)} for each, digest in sorted(found.items())]
    external = {
        "version": fields["Version"],
        "sourceDateEpoch": fields["Source-Date-Epoch"],
        "registry": published.registry,
    }
    predicate = {
        "buildDefinition": {
            "buildType": f"{home}/build/release.sh/v1" if published.registry != LOCAL else "urn:cni-calico:release:v1",
            "externalParameters": external,
            "internalParameters": {each.architecture: _parameters(each) for each in made},
            "resolvedDependencies": _dependencies(made),
        },
        "runDetails": {"builder": {"id": published.identity or f"{home}{'/' if published.releases else ':'}release"}},
    }
    statement = {"_type": _STATEMENT, "subject": subjects, "predicateType": _PREDICATE, "predicate": predicate}
    return json.dumps(statement, indent=2, sort_keys=True) + "\n"


def _plain(digest: str) -> dict[str, str]:
    algorithm, _, text = digest.partition(":")
    return {algorithm: text}


def _parameters(made: Made) -> dict[str, str]:
    return {key: made.fields[key] for key in ("Build", "Python", "Compiler", "Go") if key in made.fields}


def _dependencies(made: Sequence[Made]) -> list[dict[str, Any]]:
    fields = made[0].fields
    commit = {"uri": "git+cni-calico", "digest": {"gitCommit": fields["Commit"].partition(" ")[0]}}
    locks = (entry.split() for entry in fields["Locks"].split(", "))
    found: list[dict[str, Any]] = [commit]
    found += [{"uri": f"file:{name}", "digest": {"sha256": digest}} for name, digest in locks]
    for each in made:
        for name, version in each.packages:
            where = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={each.architecture}&distro=bookworm"
            found.append({"uri": where})
    return found
