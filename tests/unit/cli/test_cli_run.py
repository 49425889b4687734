"""`retry-sidecar run`: settings in, exit status out."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import click
import pytest
import structlog
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.cli.options import settings_options
from sidecar.errors import CommandFailed, InvariantViolated
from sidecar.settings import SETTINGS, Settings


def invoke(*args: str, **env: str) -> Result:
    variables: dict[str, str | None] = {f"KAFKA_RETRY_{name}": text for name, text in env.items()}
    return CliRunner(env=variables).invoke(cli.main, ["run", *args])


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., int]], None]:
    """Put a function in the place of the runtime's `run`."""

    def install(function: Callable[..., int]) -> None:
        main = ModuleType("sidecar.runtime.main")
        main.__dict__["run"] = function
        monkeypatch.setitem(sys.modules, "sidecar.runtime.main", main)
        package = sys.modules.setdefault("sidecar.runtime", ModuleType("sidecar.runtime"))
        monkeypatch.setattr(package, "main", main, raising=False)

    return install


def test_run_hands_the_effective_settings_to_the_runtime_and_exits_with_its_status(
    runtime: Callable[[Callable[..., int]], None],
) -> None:
    seen: list[Settings] = []

    def run(settings: Settings, *, reread: Callable[[], Settings]) -> int:
        assert reread() == settings
        seen.append(settings)
        return 1

    runtime(run)
    result = invoke("--http-port", "0", "--startup-timeout", "5s", "--create-topics", INPUT_TOPIC="in")
    assert result.exit_code == 1
    (settings,) = seen
    assert (settings.http_port, settings.startup_timeout_ms, settings.create_topics) == (0, 5_000, True)
    assert settings.input_topic == "in"


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [(CommandFailed("no broker at a:1"), 1, "no broker at a:1"), (InvariantViolated("x=1"), 70, "x=1. This is a bug")],
)
def test_what_the_runtime_raises_becomes_an_exit_status(
    runtime: Callable[[Callable[..., int]], None], error: Exception, status: int, line: str
) -> None:
    def run(settings: Settings, **_: object) -> int:
        raise error

    runtime(run)
    result = invoke()
    assert result.exit_code == status
    assert result.stderr.splitlines()[-1].startswith(line)


def test_wrong_settings_exit_2_with_one_line_each_and_nothing_on_stdout() -> None:
    result = invoke("--http-port", "http", "--client", "acks=0", DELAYS="soon")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert [line.split(":")[0] for line in result.stderr.splitlines()] == [
        "client property acks",
        "DELAYS",
        "HTTP_PORT",
    ]


def test_show_settings_prints_every_value_with_its_origin(tmp_path: Path) -> None:
    config = tmp_path / "sidecar.yaml"
    config.write_text("dlq_topic: dead\nclient: {sasl.password: hunter2}\n", encoding="utf-8")
    result = invoke(
        "--config", str(config), "--no-enable-health", "--show-settings", "--json", API_TOKEN="hunter3-and-more"
    )
    assert result.exit_code == 0
    shown = {row["name"]: (row["value"], row["origin"]) for row in json.loads(result.stdout)["settings"]}
    assert shown["DLQ_TOPIC"] == ("dead", f"{config}:1")
    assert shown["ENABLE_HEALTH"] == ("false", "command line --no-enable-health")
    assert shown["API_TOKEN"] == ("***", "environment KAFKA_RETRY_API_TOKEN")
    assert shown["client.sasl.password"] == ("***", f"{config}:2")
    assert shown["HTTP_PORT"] == ("8080", "default")
    assert "hunter" not in result.output


def test_show_settings_as_a_table_names_all_settings() -> None:
    result = invoke("--show-settings", HTP_PORT="1", JAAS_PASSWORD="hunter2")
    assert result.exit_code == 0
    assert {line.split()[0] for line in result.stdout.splitlines() if not line.startswith(" ")} >= {
        setting.name for setting in SETTINGS
    }
    assert "hunter2" not in result.output
    assert "warning: KAFKA_RETRY_HTP_PORT: there is no such setting, it is ignored; did you mean" in result.stderr


def test_show_settings_tells_of_every_empty_variable_and_shows_what_counts_instead() -> None:
    result = invoke(
        "--show-settings", "--json", STREAMS_APP_ID="", DELAYS=" ", LOG_LEVEL_IBM="", CLIENT_SECURITY_PROTOCOL=""
    )
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if "is empty" in line]
    assert told == [
        f"warning: KAFKA_RETRY_{name}: is empty: it counts as not set"
        for name in ("CLIENT_SECURITY_PROTOCOL", "DELAYS", "LOG_LEVEL_IBM", "STREAMS_APP_ID")
    ]
    shown = {row["name"]: row["origin"] for row in json.loads(result.stdout)["settings"]}
    assert set(shown.values()) == {"default"}
    assert "client.security.protocol" not in shown


@pytest.mark.parametrize("given", [["--streams-app-id", ""], ["--delays", " "], ["--client", "client.id="]])
def test_an_empty_value_on_the_command_line_is_a_usage_error(given: list[str]) -> None:
    result = invoke(*given, "--show-settings")
    assert result.exit_code == 2
    assert result.stdout == ""


def test_a_short_token_is_refused_and_not_shown() -> None:
    result = invoke("--show-settings", API_TOKEN="15-characters..")
    assert result.exit_code == 2
    assert "API_TOKEN: *** is not allowed: it must be one or more" in result.stderr
    assert "16 or more printable ASCII characters" in result.stderr
    assert "15-char" not in result.output


def test_json_without_show_settings_is_a_usage_error() -> None:
    result = invoke("--json")
    assert result.exit_code == 2
    assert "--log-format json" in result.stderr


def test_run_logs_its_warnings_in_the_form_that_was_chosen(
    runtime: Callable[[Callable[..., int]], None],
) -> None:
    runtime(lambda settings, **_: 0)
    result = invoke("--log-format", "json", "--api-token", "hunter2-and-more", XYZ="1")
    assert result.exit_code == 0
    events = [json.loads(line) for line in result.stderr.splitlines()]
    assert [event["event"] for event in events] == ["setting_doubted", "setting_doubted"]
    assert events[0]["text"].startswith("KAFKA_RETRY_XYZ")
    assert events[1]["text"].startswith("ORIGIN_TOPICS")


def test_another_command_takes_all_settings_beside_its_own_options() -> None:
    @click.command()
    @click.argument("word")
    @settings_options(defaults={"CREATE_TOPICS": "true"})
    def show(settings: Settings, *, word: str) -> None:
        click.echo(f"{word} {settings.create_topics} {settings.commit_max_messages}")

    result = CliRunner(env={"KAFKA_RETRY_XYZ": "1"}).invoke(show, ["w", "--commit-max-messages", "7"])
    assert result.stdout == "w True 7\n"
    assert result.stderr == "warning: KAFKA_RETRY_XYZ: there is no such setting, it is ignored\n"
    assert CliRunner().invoke(show, ["w", "--no-create-topics"]).stdout == "w False 10000\n"
