"""What a release rests on: reproducible archives that work where they are installed, versions, workflows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.distribution import CLIENT, build_reproducibly, check_client, check_contents, check_metadata, try_out
from tests.docs.pages import DOCS, README, ROOT
from tests.docs.release import PROJECTS, problems, project

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def test_two_builds_give_the_same_bytes_and_the_wheel_works_without_the_repository(tmp_path: Path) -> None:
    """`make dist` does the same in an environment of its own, with dependencies that it installs."""
    built = build_reproducibly(tmp_path)
    for path in built:
        check_metadata(path)
    wheel = next(path for path in built if path.suffix == ".whl")
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
    built = build_reproducibly(tmp_path, ROOT / CLIENT)
    for path in built:
        check_metadata(path)
    wheel = next(path for path in built if path.suffix == ".whl")
    check_client(wheel, tmp_path / "installed")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_everybody_can_run(path: Path) -> None:
    jobs = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    for command in commands:
        program, *words = command.split()
        assert (program == "make" and words and set(words) <= TARGETS) or command == "bash .ci/run", command


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))
    return found


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in workflow(name)["jobs"].values() for step in job["steps"]]


def made(name: str) -> set[str]:
    """Return the targets of `make` in a workflow."""
    return {word for step in steps(name) for word in step.get("run", "").removeprefix("make ").split()}


def test_every_pull_request_makes_all_that_a_release_makes_and_pushes_nothing() -> None:
    pushing = {"check-release", "push-charts", "push-docs", "sign"}
    assert made("release.yml") - pushing <= made("ci.yml") | made("audit.yml") | {"charts"}
    assert "charts" in made("ci.yml")
    assert not pushing & made("ci.yml")
    assert workflow("ci.yml")["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in workflow("ci.yml")["jobs"].values())


def test_the_image_of_a_pull_request_is_built_as_the_one_that_is_published() -> None:
    """It differs in its name, and in that it goes nowhere."""
    tried, published = (
        next(step["with"] for step in steps(name) if step.get("uses", "").startswith("docker/build-push-action@"))
        for name in ("ci.yml", "release.yml")
    )
    names = {"tags", "labels"}
    assert {**published, "push": False} == {**tried, **{name: published[name] for name in names}}
    assert published["push"] is True
    assert published["platforms"] == "linux/amd64,linux/arm64"
    assert published["sbom"] is True
    targets = {each["target"] for each in workflow("release.yml")["jobs"]["image"]["strategy"]["matrix"]["include"]}
    assert targets == set(workflow("ci.yml")["jobs"]["image"]["strategy"]["matrix"]["target"])


def test_only_a_job_of_the_environment_release_may_write_packages() -> None:
    for name in ("ci.yml", "audit.yml", "release.yml"):
        for job in workflow(name)["jobs"].values():
            if "write" in job.get("permissions", {}).values():
                assert job["environment"] in {"release", "github-pages"}


RELEASE = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "retry-sidecar/retry-sidecar",
    "GITHUB_REF_NAME": f"v{VERSION}",
}


def test_a_tag_of_another_version_or_repository_is_not_published() -> None:
    told = list(problems({**RELEASE, "GITHUB_REPOSITORY": "someone/fork", "GITHUB_REF_NAME": "v9.9.9"}))
    assert sum("someone/fork: set the URLs to this repository" in each for each in told) == len(PROJECTS)
    assert sum("and this is v9.9.9" in each for each in told) == len(PROJECTS)
    assert all("CHANGELOG.md" in each for each in problems(RELEASE)), "but for the heading, this tree could be released"


def test_both_distributions_name_the_same_addresses() -> None:
    first, second = (project(path)["urls"] for path in PROJECTS)
    assert first == second
    assert {"Source", "Documentation", "Changelog", "Issues"} == first.keys()


def test_no_page_installs_what_no_index_has() -> None:
    """Until there is a release, everything is installed from the source."""
    pages = [README, *DOCS.rglob("*.md"), ROOT / CLIENT / "README.md", *(ROOT / "deploy").rglob("*.md")]
    told = re.compile(
        r"pip install (?:'|\")?retry-sidecar|docker (?:pull|run) \S*retry-sidecar|helm repo add|oci://ghcr"
    )
    unreleased = [page for page in pages if "adr" not in page.parts and page.name != "releasing.md"]
    assert [str(page) for page in unreleased if told.search(page.read_text(encoding="utf-8"))] == []


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
