"""Runs a GitHub workflow's jobs here: its ``run`` lines as they are, each job in a directory of its own.

Rule: what is not understood is an error, never left out: an expression, a key of a step, an action. Actions are
replaced by functions (``ACTIONS``), other machines by this one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]
_EXPRESSION = re.compile(r"\$\{\{ *([\w.]+) *\}\}")
_OF_A_JOB = {"needs", "strategy", "runs-on", "timeout-minutes", "permissions", "env", "steps", "environment"}
_OF_A_STEP = {"uses", "with", "run", "env"}


class NotUnderstood(ValueError):
    """Something in a workflow that this runner does not know."""


class StepFailed(AssertionError):
    """A line that ended with a status."""


@dataclass
class Runner:
    """``context``: the values of expressions, without those of the matrix. ``instead``: a part of a line -> what is
    done in its place, with the job's directory, the line and its environment. ``ran``: (job, line) of everything that
    was done.
    """

    workflow: Document
    repository: Path
    scratch: Path
    context: Mapping[str, str]
    environment: Mapping[str, str]
    instead: Mapping[str, Callable[[Path, str, Mapping[str, str]], None]] = field(default_factory=dict)
    ran: list[tuple[str, str]] = field(default_factory=list)

    @property
    def artifacts(self) -> Path:
        return self.scratch / "artifacts"

    def run(self, last: str) -> None:
        """The jobs that ``last`` needs, in their order, and itself. Raises StepFailed, NotUnderstood."""
        for name in ordered(self.workflow["jobs"], last):
            job = self.workflow["jobs"][name]
            if unknown := job.keys() - _OF_A_JOB:
                raise NotUnderstood(f"job {name}: {', '.join(sorted(unknown))}")
            for number, matrix in enumerate(combinations(job.get("strategy", {}).get("matrix", {}))):
                self._run_job(name, job, {f"matrix.{key}": str(value) for key, value in matrix.items()}, number)

    def _run_job(self, name: str, job: Document, matrix: Mapping[str, str], number: int) -> None:
        values = {**self.context, **matrix}
        directory = self.scratch / "jobs" / f"{name}-{number}"
        directory.mkdir(parents=True)
        environment = {**self.environment, **filled(job.get("env", {}), values), "GITHUB_WORKSPACE": str(directory)}
        for step in job["steps"]:
            if unknown := step.keys() - _OF_A_STEP:
                raise NotUnderstood(f"job {name}, a step: {', '.join(sorted(unknown))}")
            if "uses" in step:
                action = ACTIONS.get(step["uses"].partition("@")[0])
                if action is None:
                    raise NotUnderstood(f"job {name}: no action {step['uses']} here")
                action(self, directory, filled(step.get("with", {}), values))
            else:
                self._run_line(name, directory, step["run"], {**environment, **filled(step.get("env", {}), values)})

    def _run_line(self, job: str, directory: Path, line: str, environment: Mapping[str, str]) -> None:
        if _EXPRESSION.search(line):
            raise NotUnderstood(f"job {job}: an expression in a line: {line}")
        self.ran.append((job, line))
        for part, do in self.instead.items():
            if part in line:
                do(directory, line, environment)
                return
        log = self.scratch / f"{job}.log"
        with log.open("ab") as output:
            output.write(f"$ {line}\n".encode())
            output.flush()
            # as GitHub's shell
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", line]
            done = subprocess.run(command, cwd=directory, env=environment, stdout=output, stderr=output, timeout=3600)
        if done.returncode != 0:
            raise StepFailed(f"job {job}: {line}: status {done.returncode}\n{log.read_text()[-4000:]}")


def ordered(jobs: Mapping[str, Document], last: str) -> list[str]:
    """The job and all that it needs, those first."""
    found: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise NotUnderstood(f"jobs that need one another: {', '.join(above)}")
        needs = jobs[name].get("needs", [])
        for each in [needs] if isinstance(needs, str) else needs:
            visit(each, (*above, name))
        if name not in found:
            found.append(name)

    visit(last, ())
    return found


def combinations(matrix: Mapping[str, Any]) -> Iterator[Document]:
    """The combinations of a matrix; one without values where there is none."""
    lists = {key: values for key, values in matrix.items() if key != "include"}
    if "include" in matrix:
        if lists:
            raise NotUnderstood("a matrix with lists and include")
        yield from matrix["include"]
    else:
        for chosen in product(*lists.values()):
            yield dict(zip(lists, chosen, strict=True))


def filled(texts: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, str]:
    """The texts with the values of their expressions. Raises NotUnderstood."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise NotUnderstood(f"the expression {match[1]}")
        return values[match[1]]

    return {key: _EXPRESSION.sub(value, str(text)) for key, text in texts.items()}


def _check_out(runner: Runner, directory: Path, given: Mapping[str, str]) -> None:
    target = directory / given.get("path", ".")
    target.mkdir(parents=True, exist_ok=True)
    fetch: Sequence[Sequence[str | Path]] = (
        ("init", "--quiet"),
        ("fetch", "--quiet", "--tags", runner.repository, runner.context["github.sha"]),
        ("checkout", "--quiet", "FETCH_HEAD"),
    )
    for words in fetch:
        subprocess.run(["git", "-C", target, *words], check=True, env={**os.environ, **runner.environment})


def _keep(runner: Runner, directory: Path, given: Mapping[str, str]) -> None:
    # an artifact is kept once
    shutil.copytree(directory / given["path"], runner.artifacts / given["name"])


def _fetch(runner: Runner, directory: Path, given: Mapping[str, str]) -> None:
    shutil.copytree(runner.artifacts / given["name"], directory / given["path"], dirs_exist_ok=True)


ACTIONS: dict[str, Callable[[Runner, Path, Mapping[str, str]], None]] = {
    "actions/checkout": _check_out,
    "actions/upload-artifact": _keep,
    "actions/download-artifact": _fetch,
}


def read_workflow(path: Path) -> Document:
    """YAML 1.1 reads its key "on" as true; it is "on" again here."""
    found: dict[object, Any] = yaml.safe_load(path.read_text())
    return {"on" if key is True else str(key): value for key, value in found.items()}
