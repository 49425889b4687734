"""The command line: help, exit statuses, lazy commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import click
import pytest
from click.testing import CliRunner

from sidecar import __version__, cli
from sidecar.errors import BrokerUnavailable, CommandFailed, InvariantViolated, SettingsInvalid, TopicsInvalid

COMMANDS = cli.main.list_commands(click.Context(cli.main))


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Add a command `fail` that raises what the test says."""

    def install(error: BaseException) -> None:
        @click.command()
        def fail() -> None:
            raise error

        module = ModuleType("failing_command")
        module.__dict__.update(fail=fail, __spec__=cli.__spec__)
        monkeypatch.setitem(sys.modules, "failing_command", module)
        monkeypatch.setitem(cli.COMMANDS, "fail", cli.Entry("failing_command:fail", "Fails."))

    return install


def test_help_names_every_command_with_its_summary() -> None:
    result = CliRunner().invoke(cli.main, ["--help"])
    assert result.exit_code == 0
    assert {"run", "broker", "version"} <= set(COMMANDS)
    for name in COMMANDS:
        assert f"  {name} " in result.output
        assert cli.COMMANDS[name].summary[:30] in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0
    assert f"retry-sidecar {name}" in result.output


def test_help_imports_no_command_and_no_kafka_library() -> None:
    code = (
        "import sys, sidecar.cli\n"
        "try: sidecar.cli.main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'confluent_kafka', 'rocksdict', 'fastapi', 'yaml', 'rich', 'sidecar.cli.run'} & set(sys.modules)\n"
        "sys.exit(str(heavy) if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sidecar", "version", "--json"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retry-sidecar"] == __version__


def test_an_unknown_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli.main, ["nonsense"])
    assert result.exit_code == 2
    assert "No such command 'nonsense'" in result.stderr


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (SettingsInvalid(["A: one", "B: two"]), 2, "A: one\nB: two\n"),
        (CommandFailed("mend it so"), 1, "mend it so\n"),
        (BrokerUnavailable("no broker"), 1, "no broker\n"),
        (TopicsInvalid("create it"), 1, "create it\n"),
        (click.ClickException("not so"), 1, "Error: not so\n"),
        (click.exceptions.Exit(7), 7, ""),
    ],
)
def test_an_error_becomes_its_text_and_its_status(
    failing: Callable[[BaseException], None], error: BaseException, status: int, text: str
) -> None:
    failing(error)
    result = CliRunner().invoke(cli.main, ["fail"])
    assert (result.exit_code, result.stderr, result.stdout) == (status, text, "")


@pytest.mark.parametrize("error", [InvariantViolated("counts differ"), ZeroDivisionError("counts differ")])
def test_a_bug_exits_70_and_asks_to_report(failing: Callable[[BaseException], None], error: Exception) -> None:
    failing(error)
    result = CliRunner().invoke(cli.main, ["fail"])
    assert result.exit_code == 70
    assert result.stderr.startswith("Traceback")
    last = result.stderr.splitlines()[-1]
    assert "counts differ" in last
    assert "please report it" in last


def test_version_shows_what_the_program_stands_on() -> None:
    result = CliRunner().invoke(cli.main, ["version", "--json"])
    versions = json.loads(result.stdout)
    assert list(versions) == ["retry-sidecar", "python", "confluent-kafka", "librdkafka", "rocksdict", "hot-path"]
    assert versions["rocksdict"][0].isdigit()
    lines = CliRunner().invoke(cli.main, ["version"]).stdout.splitlines()
    assert [line.split() for line in lines] == [[name, text] for name, text in versions.items()]
