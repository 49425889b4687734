"""`--json` prints objects, one per line, and nothing else; help shows every setting that a command reads."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar import cli
from sidecar.cli import options
from sidecar.cli.options import SettingOption
from sidecar.settings import SETTINGS, Settings
from tests.broker import create_topic
from tests.integration.messages import Given, World, now_ms, one_sidecar
from tests.integration.sidecars import Stage
from tests.unit.cli.test_cli_help import LEAVES
from tests.waiting import eventually

pytestmark = pytest.mark.broker

HOUR_MS = 3_600_000
MESSAGES = 12
ELSEWHERE = {
    ("broker",): "tests/integration/operations/test_local_broker.py",
    ("demo",): "tests/integration/operations/test_demo.py",
    ("spark", "audit"): "tests/spark/jobs/test_audit.py",
    ("spark", "export"): "tests/spark/handover",
    ("spark", "jars"): "tests/unit/cli/test_spark_jars.py",
    ("spark", "redrive"): "tests/spark/jobs/test_redrive.py",
    ("spark", "report"): "tests/spark/jobs/test_report.py",
    ("tail",): "tests/integration/operations/test_round_trip_command.py",
    ("state", "give-up"): "tests/unit/cli/test_cli_state.py",
    ("state", "rebuild-changelog"): "tests/unit/cli/test_cli_state.py",
}
"""Commands that need more than a broker and a sidecar, and the tests that read their JSON."""
COMMANDS = {
    "version": (0, 1),
    "run --show-settings": (0, 1),
    "doctor": (0, 1),
    "topics check": (0, 1),
    "topics create": (0, 1),
    "health --url {url}": (0, 1),
    "health --ready --url {url}": (0, 1),
    "health --url http://127.0.0.1:1": (1, 0),
    "pending --url {url}": (0, 1),
    "list --origin {origin}": (0, MESSAGES),
    "list --origin {origin} --url {url}": (0, MESSAGES),
    "list --origin nothing": (0, 0),
    "get {0} --payload": (0, 1),
    "get 0-999999-1": (1, 0),
    "cancel {1} {2} --timeout 60": (0, 2),
    "cancel {3} --url {url} --timeout 60": (0, 1),
    "cancel 0-999999-1 --timeout 60": (1, 1),
    "reschedule {4} --delay 2h --timeout 60": (0, 1),
    "fire {5} --timeout 60": (0, 1),
    "pause {origin} --timeout 60": (0, 1),
    "resume {origin} --timeout 60": (0, 1),
    "cancel {6} --no-wait --timeout 60": (0, 1),
    "outcome {control}": (0, 1),
    "cancel --origin {origin} --dry-run": (0, 1),
    "cancel --origin {origin} --yes": (0, 1),
    "send --origin {origin} --delay 1h": (0, 1),
    "round-trip --origin {origin} --timeout 120": (0, 1),
    "dlq report": (0, 1),
    "dlq report --examples 2": (0, 1),
    "dlq redrive --dry-run": (0, 1),
    "policy check": (0, 1),
    "policy explain --origin {origin} --exception com.acme.Busy": (0, 1),
    "migrate ibm --dry-run --from-app-id {ibm} --exception com.acme.Busy": (0, 1),
    "state inspect": (0, 1),
    "state inspect --changelog --entries 3": (0, 1),
}
"""Each command with its exit status and its number of objects, in an order in which one leaves what the next needs."""


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    def ibm(stage: Stage) -> None:
        create_topic(bootstrap, f"{stage.app_id}-ibm-retry-queue-changelog", 1, {"cleanup.policy": "compact"})

    with one_sidecar(bootstrap, tmp_path_factory.mktemp("json"), origins=ibm) as made:
        yield made


@pytest.fixture(scope="module")
def words(world: World) -> dict[str, Any]:
    """Return what the commands name: timers that are pending, the address, topics."""
    due_ms = now_ms() + HOUR_MS
    headers = [("retry-origin-topic", world.stage.origin.encode()), ("retry-due-ms", b"%d" % due_ms)]
    sent = world.send(*(Given(headers=list(headers)) for _ in range(MESSAGES)), Given(headers=[]))

    def there() -> bool:
        group = world.sidecar.group()
        return group is not None and group["total"] == MESSAGES

    eventually(there, 60, "all messages wait")
    return {
        "timers": [f"{each.partition}-{each.offset}-{due_ms}" for each in sent],
        "url": f"http://127.0.0.1:{world.sidecar.port}",
        "origin": world.stage.origin,
        "ibm": f"{world.stage.app_id}-ibm",
        "control": "",
    }


class Reading:
    """Records which settings a command reads from when it has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: set[str] = set()
        ours = {setting.attribute for setting in SETTINGS} | {"client"}

        def traced(settings: Settings, name: str) -> Any:
            # A copy reads all fields, and so does the list of secrets to mask.
            if name in ours and not _copies_or_masks(sys._getframe(1)):
                self.read.add(name)
            return object.__getattribute__(settings, name)

        load = options._load

        def loaded(*arguments: Any) -> Settings:
            settings = load(*arguments)
            monkeypatch.setattr(Settings, "__getattribute__", traced)
            return settings

        monkeypatch.setattr(options, "_load", loaded)


def _copies_or_masks(frame: FrameType) -> bool:
    return frame.f_globals["__name__"] == "dataclasses" or frame.f_code.co_name == "secrets"


def command_of(given: list[str]) -> tuple[str, ...]:
    return tuple(given[:2]) if tuple(given[:2]) in LEAVES else tuple(given[:1])


@pytest.mark.parametrize("command", COMMANDS)
def test_stdout_has_one_object_per_line_and_nothing_else(
    command: str, world: World, words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [word.format(*words["timers"], **words) for word in command.split()]
    flags = [] if given[0] == "version" else world.stage.flags
    if given[0] == "outcome":
        # The command before it did not wait for the sidecar.
        eventually(lambda: CliRunner().invoke(cli.main, [*given, *flags]).exit_code == 0, 60, "the outcome is known")
    reading = Reading(monkeypatch)
    if given[:2] == ["state", "inspect"]:
        flags = [*flags, "--state-dir", str(world.sidecar.state_dir)]
    result = CliRunner().invoke(cli.main, [*given, "--json", *flags])
    monkeypatch.undo()

    status, count = COMMANDS[command]
    assert (result.exit_code, result.stdout.count("\n")) == (status, count), result.output
    answers = [json.loads(line) for line in result.stdout.splitlines()]
    assert all(isinstance(each, dict) for each in answers)
    if "--no-wait" in given:
        words["control"] = answers[0]["control_id"]
    if given[0] != "run":
        parameters = [each for each in LEAVES[command_of(given)].params if isinstance(each, SettingOption)]
        shown = {str(each.name).removeprefix("setting_") for each in parameters if not each.hidden}
        assert reading.read <= shown, "its help hides settings that it reads"


def test_every_command_that_can_print_json_is_tried_here_or_named_with_its_test() -> None:
    able = {words for words, command in LEAVES.items() if any("--json" in each.opts for each in command.params)}
    tried = {command_of(command.split()) for command in COMMANDS}
    assert able == tried | ELSEWHERE.keys()
