"""`spark jars` prints the jars that spark-submit needs for a checkpoint in an S3-compatible store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.devbroker.jars import Jar
from sidecar.spark import s3


@pytest.fixture
def cached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jars as if each one was in the cache, by the names of the lock file."""
    found: list[str] = []

    def files(locked: tuple[Jar, ...], progress: object, cache: Path) -> tuple[Path, ...]:
        paths = tuple(cache / each.path.name for each in locked)
        found.extend(map(str, paths))
        return paths

    monkeypatch.setattr(s3, "jar_files", files)
    return found


def test_the_jars_are_printed_as_spark_submit_takes_them(cached: list[str]) -> None:
    printed = CliRunner().invoke(main, ["spark", "jars"])
    assert printed.exit_code == 0, printed.output
    assert printed.stdout.strip().split(",") == cached
    assert any("hadoop-aws" in each for each in cached)


def test_the_jars_are_one_object_of_json(cached: list[str]) -> None:
    printed = CliRunner().invoke(main, ["spark", "jars", "--json"])
    assert printed.exit_code == 0, printed.output
    assert json.loads(printed.stdout) == {"jars": cached}
