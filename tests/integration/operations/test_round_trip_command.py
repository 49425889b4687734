"""`retry-sidecar round-trip` and the topic that it needs, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from sidecar.cli.round_trip import MARK
from tests.broker import read_committed
from tests.integration.sidecars import Sidecars, Stage

pytestmark = pytest.mark.broker


def call(stage: Stage, *arguments: str) -> Result:
    """Run `retry-sidecar round-trip` to its end."""
    return CliRunner().invoke(cli.main, ["round-trip", *stage.flags, *arguments])


def test_a_message_comes_back_to_a_topic_of_its_own(stage: Stage, sidecars: Sidecars) -> None:
    origin = f"{stage.app_id}-test"
    create = ["topics", "create", *stage.flags, "--partitions", "3", "--origin", origin]
    created = CliRunner().invoke(cli.main, create)
    assert created.exit_code == 0, created.output
    assert f"topic {origin} created with 3 partitions" in created.output.splitlines()
    assert CliRunner().invoke(cli.main, create).output == "nothing to do: all four topics exist and are correct\n"

    sidecars.start("one", stage)
    answers = [call(stage, "--origin", origin, "--delay", "100ms", "--timeout", "120", "--json") for _ in range(2)]
    assert [answer.exit_code for answer in answers] == [0, 0], [answer.output for answer in answers]
    delivered = {
        (record.partition, record.offset)
        for record in read_committed(stage.bootstrap, [origin])
        if MARK in dict(record.headers)
    }
    said = [json.loads(answer.stdout) for answer in answers]
    assert {(each["delivered"]["partition"], each["delivered"]["offset"]) for each in said} == delivered
    assert {each["sent"]["topic"] for each in said} == {stage.input_topic}
    assert all(each["seconds"] >= 0.09 for each in said)

    shown = CliRunner().invoke(cli.main, ["tail", *stage.flags, origin, "--last", "10", "--count", "2", "--json"])
    assert shown.exit_code == 0, shown.output
    lines = [json.loads(line) for line in shown.stdout.splitlines()]
    assert {(each["partition"], each["offset"]) for each in lines} == delivered
    assert all(each["late_ms"] >= 0 and dict(each["headers"])["retry-attempt"] == "1" for each in lines)

    plain = call(stage, "--origin", origin, "--timeout", "120")
    assert plain.stdout.startswith(f"sent to {stage.input_topic}, partition ")
    assert f"; delivered to {origin}, partition " in plain.stdout


def test_a_message_that_does_not_come_back_fails_the_command_in_time(stage: Stage) -> None:
    done = call(stage, "--origin", stage.origin, "--delay", "0s", "--timeout", "8")
    assert done.exit_code == 1
    assert f"was not delivered to {stage.origin} within 8 s" in done.stderr
    assert "retry-sidecar health --ready" in done.stderr


def test_missing_topics_are_named_with_the_command_that_creates_them(
    bootstrap: str, unique: Callable[[str], str]
) -> None:
    stage = Stage(bootstrap, unique("app"))
    done = call(stage, "--origin", "nowhere")
    assert done.exit_code == 1
    create = f"retry-sidecar topics create --bootstrap-servers {bootstrap} "
    assert f"topic {stage.input_topic}: does not exist; create it with: {create}" in done.stderr
    assert "topic nowhere: does not exist; create it with: " in done.stderr
    assert "--origin nowhere" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--origin", "a", "--delay", "1m", "--timeout", "60"],
            "--delay: 60000 ms: must be shorter than --timeout, 60 s",
        ),
        (["--origin", "a", "--delay", "soon"], "'soon': must be a duration such as 250ms"),
        (["--origin", "retry"], "--origin: retry: must be none of the sidecar's own topics"),
        (["--origin", "a", "--timeout", "0"], "0.0 is not in the range x>=1"),
        ([], "Missing option '--origin'"),
    ],
    ids=["delay", "duration", "origin", "timeout", "nothing"],
)
def test_wrong_usage_is_refused_with_what_is_allowed(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(cli.main, ["round-trip", *arguments])
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_name_of_an_origin_to_create_is_checked() -> None:
    done = CliRunner().invoke(cli.main, ["topics", "create", "--origin", "a/b"])
    assert done.exit_code == 2
    assert "'a/b': must be a topic's name: 1 to 249 characters" in done.stderr
