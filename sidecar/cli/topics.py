"""`retry-sidecar topics`: create or check the four topics."""

from __future__ import annotations

import dataclasses
import sys

import click
from rich.table import Table

from sidecar.cli.options import KAFKA, TOPICS, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.kafka.admin.cluster import Admin, Deadline, MissingPermission, Topic
from sidecar.kafka.admin.topics import (
    BROKER_DEFAULT,
    Found,
    Problem,
    check_topics,
    create_origins,
    ensure_topics,
    notes,
)
from sidecar.kafka.config import validate_client_properties
from sidecar.settings import Settings
from sidecar.settings.kinds import TOPIC, is_topic_name

_TIMEOUT = click.FloatRange(min=0, min_open=True)


def _names(_ctx: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [name for name in names if not is_topic_name(name)]:
        raise click.BadParameter(f"{wrong[0]!r}: must be a topic's name: {TOPIC.allowed}")
    return names


@click.group(epilog="Example: retry-sidecar topics create --bootstrap-servers kafka:9092 --partitions 8")
def topics() -> None:
    """Create or check the retry topic, the DLQ and the internal topics."""


@topics.command(
    cls=SettingsCommand, epilog="Example: retry-sidecar topics create --bootstrap-servers kafka:9092 --partitions 8"
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="Partitions of a new retry topic and DLQ.  [default: the broker's]",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    callback=_names,
    metavar="TOPIC",
    help="An origin to create too, if it is missing; repeatable.",
)
@click.option(
    "--timeout", "timeout_s", default=30.0, show_default=True, type=_TIMEOUT, help="Seconds for the whole command."
)
@json_option
@settings_options((*KAFKA, *TOPICS, "create_topics", "replication_factor"))
def create(
    settings: Settings, *, partitions: int | None, origins: tuple[str, ...], timeout_s: float, as_json: bool
) -> None:
    """Create missing topics, add missing partitions to the internal topics, and check all four topics."""
    validate_client_properties(settings)
    admin, deadline = Admin(settings), Deadline(timeout_s)
    count = BROKER_DEFAULT if partitions is None else partitions
    facts = ensure_topics(
        admin, dataclasses.replace(settings, create_topics=True), deadline.left_s, count, new_changelog=True
    )
    if origins:
        created = create_origins(admin, settings, origins, deadline.left_s, count)
        facts = dataclasses.replace(facts, changes=(*facts.changes, *created))
    if as_json:
        print_json(dataclasses.asdict(facts))
        return
    for line in facts.changes or ("nothing to do: all four topics exist and are correct",):
        say(line)
    for note in facts.notes:
        say(f"note: {note}", err=True)


@topics.command(cls=SettingsCommand, epilog="Example: retry-sidecar topics check --bootstrap-servers kafka:9092")
@click.option(
    "--timeout", "timeout_s", default=15.0, show_default=True, type=_TIMEOUT, help="Seconds for the whole command."
)
@json_option
@settings_options((*KAFKA, *TOPICS, "create_topics", "replication_factor"))
def check(settings: Settings, *, timeout_s: float, as_json: bool) -> None:
    """Check the topics without changing anything; exit status 1 if something is wrong."""
    validate_client_properties(settings)
    found, wrong = check_topics(Admin(settings), settings, timeout_s)
    if as_json:
        print_json(_as_json(settings, found, wrong))
    else:
        _show(settings, found)
        for note in notes(settings, found):
            say(f"note: {note}", err=True)
        for problem in wrong:
            say(str(problem), err=True)
    if wrong:
        raise click.exceptions.Exit(1)


def _show(settings: Settings, found: Found) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("role", "topic", "partitions", "replicas", "max.message.bytes", "cleanup.policy"):
        table.add_column(heading, overflow="fold", no_wrap=not sys.stdout.isatty())
    for role, name, topic in found.by_role(settings):
        if isinstance(topic, Topic):
            counts = (topic.partitions, topic.replication, topic.max_message_bytes)
            table.add_row(role, name, *map(str, counts), topic.config["cleanup.policy"])
        else:
            table.add_row(role, name, "no permission" if isinstance(topic, MissingPermission) else "missing")
    console().print(table)


def _as_json(settings: Settings, found: Found, wrong: tuple[Problem, ...]) -> dict[str, object]:
    rows = [
        {
            "role": role,
            "topic": name,
            "partitions": topic.partitions if isinstance(topic, Topic) else None,
            "replicas": topic.replication if isinstance(topic, Topic) else None,
            "topic_id": topic.topic_id if isinstance(topic, Topic) else None,
            "config": dict(sorted(topic.config.items())) if isinstance(topic, Topic) else None,
        }
        for role, name, topic in found.by_role(settings)
    ]
    return {
        "ok": not wrong,
        "topics": rows,
        "problems": [{"topic": each.topic, "wrong": each.wrong, "mend": each.fix} for each in wrong],
        "notes": list(notes(settings, found)),
    }
