"""`list`, `get`, and what acts over a filter, from processes that own nothing, against a running sidecar."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sidecar import cli
from tests.broker import create_topic, read_committed
from tests.integration.messages import Given, Pairs, World, now_ms, one_sidecar
from tests.integration.sidecars import LOG_APPEND_TIME, Stage
from tests.waiting import eventually

HOUR_MS = 3_600_000
PARTITIONS = 4
TOKEN = "a-token-of-the-tests"
ORIGINS = ("listed", "named", "cancelled", "flowing", "moved", "soon", "http")

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    def origins(stage: Stage) -> None:
        for name in ORIGINS:
            create_topic(bootstrap, topic(stage, name), 1, LOG_APPEND_TIME)

    with one_sidecar(
        bootstrap, tmp_path_factory.mktemp("bulk"), partitions=PARTITIONS, origins=origins, API_TOKEN=TOKEN
    ) as made:
        yield made


def topic(stage: Stage, name: str) -> str:
    return f"{stage.app_id}-{name}"


def arguments(world: World, *given: str) -> list[str]:
    """Return a command's arguments with the cluster's settings."""
    return [*given, *world.stage.flags, "--api-token", TOKEN]


def run(world: World, *given: str) -> Result:
    return CliRunner().invoke(cli.main, arguments(world, *given))


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def put(world: World, name: str, dues_ms: Sequence[int], *more: tuple[str, bytes]) -> list[str]:
    """Send messages over all partitions and return their timer ids, in due order, once all of them wait."""
    origin = topic(world.stage, name)
    given = [
        Given(
            b"value %d" % number,
            b"key",
            [("retry-origin-topic", origin.encode()), ("retry-due-ms", b"%d" % due_ms), *more],
            number % PARTITIONS,
        )
        for number, due_ms in enumerate(dues_ms)
    ]
    sent = world.send(*given)
    if min(dues_ms) > now_ms() + HOUR_MS / 2:
        waits(world, name, len(given))
    places = sorted(
        (due_ms, each.partition, each.offset, f"{each.partition}-{each.offset}-{due_ms}")
        for due_ms, each in zip(dues_ms, sent, strict=True)
    )
    return [timer for *_, timer in places]


def waits(world: World, name: str, count: int) -> None:
    """Wait until so many messages wait for an origin."""
    origin = topic(world.stage, name)

    def pending() -> bool:
        group = world.sidecar.group()
        return group is not None and group["by_origin"].get(origin, 0) == count

    eventually(pending, 30, f"{count} wait for {name}")


def fired(world: World, name: str, count: int) -> list[bytes]:
    """Return the values in an origin topic, once there are so many."""
    origin = topic(world.stage, name)
    records = read_committed(world.stage.bootstrap, [origin], 60, until=lambda seen: len(seen) >= count)
    return [record.value or b"" for record in records]


# Looking


def test_what_is_listed_is_what_was_sent_by_cluster_and_by_url_whole_and_in_parts(world: World) -> None:
    start_ms = now_ms() + HOUR_MS
    timers = put(world, "listed", [start_ms + 1_000 * (number // 3) for number in range(1_200)])
    origin = topic(world.stage, "listed")
    url = ("--url", f"http://127.0.0.1:{world.sidecar.port}")

    listed = rows(run(world, "list", "--origin", origin, "--all", "--json"))
    assert [each["id"] for each in listed] == timers, "two pages"
    assert {each["origin"] for each in listed} == {origin}
    assert rows(run(world, "list", "--origin", origin, "--all", "--json", *url)) == listed
    assert rows(run(world, "list", "--origin", origin, "--limit", "7", "--json", *url)) == listed[:7]
    in_one = rows(run(world, "list", "--origin", origin, "--partition", "1", "--all", "--json", *url))
    assert in_one == [each for each in listed if each["partition"] == 1]
    window = ("--due-from", str(start_ms + 10_000), "--due-to", str(start_ms + 20_000))
    assert len(rows(run(world, "list", "--origin", origin, *window, "--json", *url))) == 30
    assert rows(run(world, "list", "--origin", origin, "--due-to", "10m", "--json", *url)) == []

    table = run(world, "list", "--origin", origin, "--limit", "2", *url)
    assert table.stdout.splitlines()[1].startswith(timers[0])
    assert "there may be more" in table.stderr


def test_get_shows_what_was_sent_and_writes_its_value(world: World, tmp_path: Path) -> None:
    (timer,) = put(world, "named", [now_ms() + HOUR_MS], ("retry-id", b"order/4711"), ("colour", b"\x1b[31mred"))
    shown = rows(run(world, "get", timer, "--payload", "--json"))[0]
    assert (shown["id"], shown["key"], shown["value"]) == (timer, "a2V5", "dmFsdWUgMA==")
    assert {"name": "colour", "value": "\x1b[31mred"} in shown["headers"]
    written = tmp_path / "value"
    named = run(world, "get", "id:order/4711", "--payload-to", str(written))
    assert named.exit_code == 0, named.output
    assert timer in named.stdout
    assert "\x1b" not in named.stdout
    assert written.read_bytes() == b"value 0"
    gone = run(world, "get", "0-999999-1", "--url", f"http://127.0.0.1:{world.sidecar.port}")
    assert gone.exit_code == 1
    assert gone.stderr == "0-999999-1 is not pending: it has fired, was cancelled, or never existed.\n"


# Acting


def test_a_cancel_by_filter_goes_on_without_its_command_and_takes_what_it_means_and_nothing_else(world: World) -> None:
    start_ms = now_ms()
    put(world, "cancelled", [start_ms + HOUR_MS + number for number in range(2_000)])
    put(world, "flowing", [now_ms() + 500 + 2 * number for number in range(3_000)])
    choice = ("--origin", topic(world.stage, "cancelled"), "--due-to", "2h")

    would = json.loads(run(world, "cancel", *choice, "--dry-run", "--json").stdout)
    assert (would["total"], len(would["first"])) == (2_000, 10)
    waits(world, "cancelled", 2_000)

    sent = json.loads(run(world, "cancel", *choice, "--yes", "--no-wait", "--json").stdout)
    waits(world, "cancelled", 0)
    found: dict[str, Any] = {}

    def answered() -> bool:
        result = run(world, "outcome", sent["control_id"], "--json")
        found.update(json.loads(result.stdout) if result.exit_code == 0 else {})
        return bool(found)

    eventually(answered, 60, "every partition has answered")
    assert (found["outcome"], found["count"], found["missing"]) == ("cancelled", 2_000, [])
    again = run(world, "cancel", *choice, "--yes")
    assert (again.exit_code, "nothing to do" in again.stdout) == (0, True), again.output
    assert sorted(fired(world, "flowing", 3_000)) == sorted(b"value %d" % number for number in range(3_000))
    waits(world, "flowing", 0)
    assert fired(world, "cancelled", 0) == []


def test_what_is_rescheduled_within_its_own_filter_is_rescheduled_once(world: World) -> None:
    put(world, "moved", [now_ms() + HOUR_MS + 10 * number for number in range(1_500)])
    choice = ("--origin", topic(world.stage, "moved"), "--due-to", "3h", "--yes", "--json")
    at_ms = now_ms() + 2 * HOUR_MS
    moved = json.loads(run(world, "reschedule", *choice, "--due-ms", str(at_ms)).stdout)
    assert (moved["outcome"], moved["count"]) == ("rescheduled", 1_500)

    def dues() -> set[int]:
        listed = rows(run(world, "list", "--origin", topic(world.stage, "moved"), "--all", "--json"))
        return {each["due_ms"] for each in listed}

    # An outcome can be read a moment before the list knows of it.
    eventually(lambda: dues() == {at_ms}, 30, "all have the new time")
    soon = json.loads(run(world, "reschedule", *choice, "--delay", "1s").stdout)
    assert (soon["outcome"], soon["count"]) == ("rescheduled", 1_500)
    assert sorted(fired(world, "moved", 1_500)) == sorted(b"value %d" % number for number in range(1_500))


def test_a_filter_reads_headers_and_one_partition(world: World) -> None:
    put(world, "soon", [now_ms() + HOUR_MS + number for number in range(8)], ("tenant", b"acme"))
    others: Pairs = [("retry-origin-topic", topic(world.stage, "soon").encode()), ("retry-delay-ms", b"%d" % HOUR_MS)]
    world.send(*(Given(b"other", b"key", others, number % PARTITIONS) for number in range(8)))
    waits(world, "soon", 16)
    choice = ("--origin", topic(world.stage, "soon"), "--header", "tenant:acme", "--yes", "--json")
    one = json.loads(run(world, "fire", *choice, "--partition", "1").stdout)
    assert (one["outcome"], one["count"], one["missing"]) == ("fired", 2, [])
    rest = json.loads(run(world, "fire", *choice).stdout)
    assert (rest["outcome"], rest["count"]) == ("fired", 6)
    assert len(fired(world, "soon", 8)) == 8


def test_by_url_a_filter_needs_no_cluster(world: World) -> None:
    put(world, "http", [now_ms() + HOUR_MS + number for number in range(40)])
    url = ("--url", f"http://127.0.0.1:{world.sidecar.port}")
    fire = CliRunner().invoke(
        cli.main, ["fire", "--origin", topic(world.stage, "http"), "--yes", "--token", TOKEN, *url]
    )
    assert fire.exit_code == 0, fire.output
    assert fire.stdout.endswith(": fired, 40 messages\n")
    assert len(fired(world, "http", 40)) == 40
