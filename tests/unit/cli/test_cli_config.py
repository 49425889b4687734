"""KAFKA_RETRY_CONFIG: the file of settings for every command, as a container has it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from tests.unit.cli.test_cli_help import LEAVES

WITHOUT_SETTINGS = {("broker",), ("demo",), ("spark", "jars"), ("version",)}
"""They start a Kafka of their own, or read nothing of the settings."""
ARGUMENTS = {("get",): "id:x", ("dlq", "get"): "0-0"}
"""Where a word of one letter is none that they take."""
WITH_SETTINGS = [words for words in LEAVES if words not in WITHOUT_SETTINGS]


def called(*words: str, config: str) -> Result:
    return CliRunner(env={"KAFKA_RETRY_CONFIG": config}).invoke(cli.main, list(words))


def required(words: tuple[str, ...]) -> list[str]:
    """Return what a command cannot be called without."""
    given = []
    for parameter in LEAVES[words].params:
        if parameter.required and isinstance(parameter, click.Option):
            given += [parameter.opts[0], "x"]
        elif parameter.required:
            given.append(ARGUMENTS.get(words, "x"))
    return given


@pytest.mark.parametrize("words", WITH_SETTINGS, ids=" ".join)
def test_every_command_reads_the_file_that_the_environment_names(words: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("http_port: 65536\n", encoding="utf-8")
    result = called(*words, *required(words), config=str(path))
    assert (result.exit_code, result.stderr.splitlines()[0]) == (
        2,
        f"HTTP_PORT: '65536' is not allowed: it must be a whole number from 0 to 65535 (from {path}:1)",
    )


def test_the_file_of_the_command_line_counts_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("http_port: 8090\n", encoding="utf-8")
    result = called("run", "--config", str(path), "--show-settings", "--json", config="/nowhere/config.yaml")
    (row,) = [each for each in json.loads(result.stdout)["settings"] if each["name"] == "HTTP_PORT"]
    assert (row["value"], row["origin"]) == ("8090", f"{path}:1")


def test_a_command_without_settings_needs_no_file() -> None:
    assert called("version", config="/nowhere/config.yaml").exit_code == 0
