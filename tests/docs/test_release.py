"""What a release rests on: reproducible archives that work where they are installed, versions, workflows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from tests.docs.distribution import CLIENT, build_reproducibly, check_client, check_contents, try_out
from tests.docs.pages import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_two_builds_give_the_same_bytes_and_the_wheel_works_without_the_repository(tmp_path: Path) -> None:
    """`make dist` does the same in an environment of its own, with dependencies that it installs."""
    wheel = next(path for path in build_reproducibly(tmp_path) if path.suffix == ".whl")
    check_contents(wheel)
    installed, home = tmp_path / "installed", tmp_path / "home"
    home.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(installed)
    environment = {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(installed)}
    code = "import sidecar; print(sidecar.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, check=True
    )
    assert where.stdout.startswith(str(installed)), where.stdout
    try_out([sys.executable, "-m", "sidecar"], environment, home)


def test_the_client_is_built_reproducibly_too_and_needs_nothing(tmp_path: Path) -> None:
    wheel = next(path for path in build_reproducibly(tmp_path, ROOT / CLIENT) if path.suffix == ".whl")
    check_client(wheel, tmp_path / "installed")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_everybody_can_run(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    for command in commands:
        program, *words = command.split()
        assert (program == "make" and words and set(words) <= TARGETS) or command == "bash .ci/run", command


def test_ci_makes_all_that_a_release_makes() -> None:
    ci, release = (
        (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8") for name in ("ci.yml", "release.yml")
    )
    for target in re.findall(r"run: make (.+)", release)[0].split():
        assert f"run: make {target}\n" in ci, target


def test_the_version_is_the_same_everywhere() -> None:
    for chart in (ROOT / "deploy" / "helm").glob("retry-sidecar*/Chart.yaml"):
        said = yaml.safe_load(chart.read_text(encoding="utf-8"))
        assert said["version"] == VERSION, chart
        assert said.get("appVersion", VERSION) == VERSION, chart
    client = tomllib.loads((ROOT / CLIENT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert client["version"] == VERSION
    assert client["requires-python"] == project["requires-python"]
    assert (ROOT / CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert VERSION in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_changelog_has_the_form_that_it_says_it_has() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *others = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert first == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", each) for each in others), others
    kinds = set(re.findall(r"^### (.+)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
