"""What is fetched when this is built or tried is named by its content: a tag can be moved."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy.test_compose import OURS, SERVICES
from tests.deploy.test_image import DOCKERFILE, INSTRUCTIONS, STAGES
from tests.deploy.tools import REPOSITORY

WORKFLOWS: Final = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))
_ACTION: Final = re.compile(r"uses: [\w-]+/[\w./-]+@[0-9a-f]{40}  # v\d+(\.\d+){2}")
_IMAGE: Final = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_an_action_is_named_by_its_commit_with_the_version_beside_it(path: Path) -> None:
    used = [
        line.strip().removeprefix("- ") for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line
    ]
    assert used
    assert [line for line in used if not _ACTION.fullmatch(line)] == []


def test_one_action_has_one_commit() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    commits = set(re.findall(r"uses: (\S+)@(\S+)", text))
    assert len(commits) == len({name for name, _ in commits})


def test_an_image_that_others_made_is_named_by_its_digest() -> None:
    images = [each["image"] for name, each in SERVICES.items() if name not in OURS]
    stages = {rest.split(" AS ")[0] for word, rest in INSTRUCTIONS if word == "FROM"} - {*STAGES, "scratch", "${BASE}"}
    bases = [rest.removeprefix("BASE=") for word, rest in INSTRUCTIONS if word == "ARG" and rest.startswith("BASE=")]
    syntax = re.findall(r"(?m)^# *syntax=(.*)$", DOCKERFILE)
    assert len(images) >= 3
    assert len(bases) == 1
    assert [each for each in [*images, *bases, *stages, *syntax] if not _IMAGE.fullmatch(each)] == []


def test_somebody_proposes_newer_ones() -> None:
    watched: dict[str, Any] = yaml.safe_load((REPOSITORY / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    found = {(each["package-ecosystem"], each["directory"]) for each in watched["updates"]}
    assert found == {("github-actions", "/"), ("docker", "/"), ("docker-compose", "/deploy")}
