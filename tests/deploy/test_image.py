"""The Dockerfile: linted, and in agreement with the program and the repository."""

from __future__ import annotations

import fnmatch
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from sidecar import __version__
from sidecar.settings import SETTINGS
from sidecar.settings.show import reference_page
from tests.deploy.charts import APPLICATION, CASES, Helm
from tests.deploy.program import parse
from tests.deploy.tools import REPOSITORY, run

DOCKERFILE: Final = (REPOSITORY / "Dockerfile").read_text(encoding="utf-8")
# Comments inside an instruction are none of it; a backslash joins lines.
_LINES: Final = "\n".join(line for line in DOCKERFILE.splitlines() if not line.lstrip().startswith("#"))
INSTRUCTIONS: Final = [
    (word, rest)
    for word, _, rest in (line.partition(" ") for line in re.sub(r"\\\n\s*", "", _LINES).splitlines())
    if word
]
STAGES: Final = [rest.split(" AS ")[1] for word, rest in INSTRUCTIONS if word == "FROM"]


def stage(name: str) -> list[tuple[str, str]]:
    """Return the instructions of a stage, those of the stages that it is made from first."""
    begin = next(at for at, (word, rest) in enumerate(INSTRUCTIONS) if word == "FROM" and rest.endswith(f" AS {name}"))
    own = []
    for word, rest in INSTRUCTIONS[begin + 1 :]:
        if word == "FROM":
            break
        own.append((word, rest))
    source = INSTRUCTIONS[begin][1].split(" AS ")[0]
    return [*(stage(source) if source in STAGES else []), *own]


def words(text: str) -> list[str]:
    """Return the words of an instruction in exec form."""
    return re.findall(r'"([^"]*)"', text)


def last(name: str, instruction: str) -> str:
    """Return what counts of an instruction that a stage may have several times."""
    return [rest for word, rest in stage(name) if word == instruction][-1]


def test_hadolint_has_nothing_to_say() -> None:
    done = run(
        Path(sys.executable).parent / "hadolint", ["--failure-threshold", "style", str(REPOSITORY / "Dockerfile")]
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_the_sidecar_is_what_is_built_unless_a_target_is_named() -> None:
    assert STAGES[-1] == "sidecar"
    assert {"sbom", "spark"} <= set(STAGES)


@pytest.mark.parametrize("target", ["sidecar", "spark"])
def test_the_last_user_is_not_root(target: str) -> None:
    assert last(target, "USER") == "10001:10001"


@pytest.mark.parametrize(("target", "command"), [("sidecar", "run"), ("spark", "spark run")])
def test_the_container_starts_the_program(target: str, command: str) -> None:
    entry, start = words(last(target, "ENTRYPOINT")), words(last(target, "CMD"))
    # The one of Spark passes on what is not for Spark itself: see test_spark_image.py.
    program = {"sidecar": "retry-sidecar", "spark": "/opt/retry-sidecar/spark-entrypoint.sh"}[target]
    assert entry == ["tini", "-s", "--", program]
    assert parse(start) == command


def test_the_container_asks_the_program_how_it_is() -> None:
    probe = words(last("sidecar", "HEALTHCHECK").partition("CMD")[2])
    assert probe[0] == "retry-sidecar"
    assert parse(probe[1:]) == "health"


def test_the_defaults_of_the_image_are_settings_and_the_ones_that_the_reference_names() -> None:
    given = dict(re.findall(r"(KAFKA_RETRY_\w+)=(\S+)", last("sidecar", "ENV")))
    known = {setting.env: setting for setting in SETTINGS}
    file = given.pop("KAFKA_RETRY_CONFIG")
    assert any(f"> {file}" in rest for word, rest in stage("sidecar") if word == "RUN"), "the file is there"
    assert f"`{file}`" in reference_page()
    assert given.keys() == {"KAFKA_RETRY_HTTP_HOST", "KAFKA_RETRY_STATE_DIR"}
    for name, value in given.items():
        assert f"{value} in the image" in known[name].default_text
    assert words(last("sidecar", "VOLUME")) == [given["KAFKA_RETRY_STATE_DIR"]]


def test_version_and_licence_are_those_of_the_program() -> None:
    said = " ".join(rest for word, rest in stage("sidecar") if word in ("LABEL", "ARG"))
    assert f"VERSION={__version__}" in said
    assert 'org.opencontainers.image.licenses="Apache-2.0"' in said


def test_every_dependency_comes_from_a_lock_file_with_hashes() -> None:
    for name in STAGES:
        for word, rest in stage(name):
            for command in rest.split("&&") if word == "RUN" else []:
                if re.search(r"pip\S* (?:\S+ \S+ )?(?:install|wheel)\b", command):
                    assert any(
                        safe in command for safe in ("--require-hashes", "--no-index", "--no-deps --no-build-isolation")
                    ), command


def test_what_is_copied_is_there_and_not_ignored() -> None:
    ignored = [
        line
        for line in (REPOSITORY / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and line[0] != "#"
    ]
    assert ignored[0] == "*"
    let_through = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    for word, rest in INSTRUCTIONS:
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (REPOSITORY / source).exists()
                assert any(fnmatch.fnmatch(source, p) or source.startswith(f"{p}/") for p in let_through), source


def test_the_chart_runs_the_image_as_its_user_and_mounts_its_volume(helm: Helm) -> None:
    rendered = helm.render(APPLICATION, CASES[0])
    context = rendered.sidecar["securityContext"]
    assert f"{context['runAsUser']}:{context['runAsGroup']}" == last("sidecar", "USER")
    assert words(last("sidecar", "VOLUME"))[0] in [each["mountPath"] for each in rendered.sidecar["volumeMounts"]]
    # The chart gives arguments and no command: the entry point of the image stays.
    assert "command" not in rendered.sidecar
