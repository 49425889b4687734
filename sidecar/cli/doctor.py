"""`retry-sidecar doctor`: is everything there that a sidecar needs?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from sidecar import __version__
from sidecar.cli.options import KAFKA, TOPICS, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import print_json, say
from sidecar.clock import SystemClock
from sidecar.contract.status import CLOCK_KEY
from sidecar.engine import hot
from sidecar.errors import CommandFailed, KafkaFailed, TopicsInvalid, printable
from sidecar.kafka.admin.cluster import Admin, Cluster, Deadline, Topic, describe_cluster, describe_topics
from sidecar.kafka.admin.first_start import open_question
from sidecar.kafka.admin.topics import check_topics, configure_command, look, notes
from sidecar.kafka.config import TRANSACTION_TIMEOUT_MS, library_versions, validate_client_properties
from sidecar.kafka.old_timestamps import look_for_old, retention_ms
from sidecar.kafka.probes import describe_group, measure_clock, try_transactions
from sidecar.policy.globs import Globs
from sidecar.settings import GROUPS, Settings
from sidecar.settings.kinds import show_duration

OK, NOTE, PROBLEM = "ok", "note", "problem"

_GIB = 1024**3
_FREE_NOTE_BYTES = _GIB
_FREE_PROBLEM_BYTES = 128 * 1024**2
_STYLES: Mapping[str, Mapping[str, Any]] = {
    OK: {"fg": "green"},
    NOTE: {"fg": "yellow"},
    PROBLEM: {"fg": "red", "bold": True},
}

_PERMISSIONS = {
    "input": ("READ",),
    "dlq": ("WRITE",),
    "changelog": ("READ", "WRITE"),
    "status": ("READ", "WRITE"),
}


class Check(NamedTuple):
    """One line of the report."""

    name: str
    state: str
    """`ok`, `note` (works, but should be known) or `problem`."""
    text: str
    do: str = ""
    """The action that fixes the problem."""


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar doctor --bootstrap-servers kafka:9092")
@click.option(
    "--timeout",
    "timeout_s",
    default=20.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds for each request to the cluster.",
)
@json_option
@settings_options((*KAFKA, *TOPICS, *GROUPS["Topics and group"], "state_dir", "max_clock_skew_ms"))
def doctor(settings: Settings, *, timeout_s: float, as_json: bool) -> None:
    """Check everything that a sidecar needs, and print a fix for each problem; exit status 1 if there is one.

    Writes only four tombstones with the key `d/doctor` to the status topic, to read the broker's time, and an empty
    aborted transaction with the id `STREAMS_APP_ID-doctor`. Creates no topic.
    """
    validate_client_properties(settings)
    checks = []
    for check in examine(settings, timeout_s):
        checks.append(check)
        if not as_json:
            _print(check)
    failed = any(check.state == PROBLEM for check in checks)
    if as_json:
        print_json({"ok": not failed, "checks": [check._asdict() for check in checks]})
    if failed:
        raise click.exceptions.Exit(1)


def examine(settings: Settings, timeout_s: float) -> Iterator[Check]:
    """Yield each check as it is done; without a broker those that need one are left out."""
    libraries = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    yield Check("versions", OK, f"retry-sidecar {__version__}, {libraries}")
    yield _hot_path()
    yield from _state_dir(settings.state_dir)
    admin = Admin(settings)
    try:
        cluster = describe_cluster(admin, Deadline(timeout_s))
    except CommandFailed as error:
        yield Check("broker", PROBLEM, str(error), "start a broker (`retry-sidecar broker`), or set BOOTSTRAP_SERVERS")
        return
    yield _broker(settings, cluster)
    for part in (_topics, _origins, _group, _start, _timestamps, _transactions, _clock):
        name = part.__name__.removeprefix("_")
        try:
            yield from part(admin, settings, timeout_s)
        except (CommandFailed, TopicsInvalid) as error:
            yield Check(name, PROBLEM, str(error), "try again; if it persists, check the broker's log")
        except KafkaFailed as error:
            yield _refused(settings, name, error)


def _hot_path() -> Check:
    if hot.COMPILED:
        return Check("hot-path", OK, "compiled")
    return Check(
        "hot-path", NOTE, "python: a message costs about twice the processor time", "install with a C compiler"
    )


def _broker(settings: Settings, cluster: Cluster) -> Check:
    return Check(
        "broker",
        OK,
        f"{settings.bootstrap_servers} answers: cluster {cluster.cluster_id}, "
        f"{_count(len(cluster.brokers), 'broker')}, controller {cluster.controller}",
    )


def _topics(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    found, wrong = check_topics(admin, settings, timeout_s)
    bad = {problem.topic for problem in wrong}
    brokers = len(describe_cluster(admin, Deadline(timeout_s)).brokers)
    for role, _, topic in found.by_role(settings):
        if isinstance(topic, Topic) and topic.name not in bad:
            text = f"{topic.name}: {_count(topic.partitions, 'partition')}, {_count(topic.replication, 'replica')}"
            yield Check(f"topic {role}", OK, text)
            yield from _permissions(settings, role, topic)
            if topic.replication < min(3, brokers):
                text = f"{topic.name}: {topic.replication} of {brokers} brokers hold it: what they lose is lost"
                yield Check(f"topic {role}", NOTE, text, "give it 3 replicas, and min.insync.replicas=2")
    roles = {name: role for role, name, _ in found.by_role(settings)}
    for problem in wrong:
        yield Check(f"topic {roles[problem.topic]}", PROBLEM, f"{problem.topic}: {problem.wrong}", problem.fix)
    for note in notes(settings, found):
        text, _, fix = note.partition("; fix it with: ")
        yield Check("topics", NOTE, text, fix)


def _permissions(settings: Settings, role: str, topic: Topic) -> Iterator[Check]:
    missing = [permission for permission in _PERMISSIONS[role] if permission not in topic.operations]
    if missing:
        names = " and ".join(permission.capitalize() for permission in missing)
        operations = " ".join(f"--operation {permission.capitalize()}" for permission in missing)
        fix = _acl(settings, f"{operations} --topic {topic.name}")
        yield Check(f"topic {role}", PROBLEM, f"{topic.name}: the permission {names} is missing", fix)


def _origins(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    """Show which origins cannot be searched for what a transaction delivered that was lost in the changelog."""
    if not (names := sorted(Globs(settings.origin_topics).plain)):
        return
    for name, topic in describe_topics(admin, names, Deadline(timeout_s)).items():
        if isinstance(topic, Topic) and "READ" not in topic.operations:
            text = f"{name}: no permission Read, which is optional: messages that a broker half rolled back come twice"
            yield Check("topic origin", NOTE, text, _acl(settings, f"--operation Read --topic {name}"))


def _group(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    group = describe_group(admin, settings, Deadline(timeout_s))
    if group is None:
        yield Check("group", OK, f"{settings.group_id}: does not exist yet")
        return
    # Older brokers call a group that does not exist dead.
    state = f"{_count(group.members, 'member')}, {group.state.lower().replace('_', ' ')}"
    text = f"{settings.group_id}: {'does not exist yet' if group.state == 'DEAD' else state}"
    if "READ" in group.operations:
        yield Check("group", OK, text)
    else:
        fix = _acl(settings, f"--operation Read --group {settings.group_id}")
        yield Check("group", PROBLEM, f"{settings.group_id}: the permission Read is missing", fix)


def _start(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    """Show the decision without which the first start ends."""
    found = look(admin, settings, Deadline(timeout_s))
    if not isinstance(found.input, Topic):
        return
    changelog_partitions = found.changelog.partitions if isinstance(found.changelog, Topic) else 0
    if question := open_question(admin, settings, found.input.partitions, changelog_partitions, timeout_s):
        text, _, do = question.partition(": set it to ")
        yield Check("start", PROBLEM, text, f"set START_AT to {do}")


def _timestamps(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    """Show that producers stamp with old times, by which retention may delete records before they are read."""
    deadline = Deadline(timeout_s)
    topic = look(admin, settings, deadline).input
    if not isinstance(topic, Topic) or "READ" not in topic.operations or (kept_ms := retention_ms(topic)) is None:
        return
    seen = look_for_old(admin, settings, topic, kept_ms, SystemClock(), deadline)
    if (old := seen.oldest) is not None:
        text = (
            f"{topic.name}, partition {old.partition}, offset {old.offset}: its timestamp is {old.behind_ms // 1_000} "
            f"s behind, more than half of retention.ms ({show_duration(kept_ms)}), by which brokers delete it: it may "
            "be deleted before it is read"
        )
        refuse = configure_command(settings, topic.name, f"message.timestamp.before.max.ms={kept_ms // 2}")
        do = f"send without a timestamp of your own, and let brokers refuse old ones: {refuse}"
        yield Check("timestamps", NOTE, text, do)
    if seen.partitions < topic.partitions:
        text = f"{topic.name}: only {seen.partitions} of {topic.partitions} partitions were read within {timeout_s:g} s"
        yield Check("timestamps", NOTE, text, "give a longer --timeout")


def _transactions(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    transactional_id = f"{settings.transactional_id_prefix}doctor"
    try:
        try_transactions(admin, settings, transactional_id, Deadline(timeout_s))
    except KafkaFailed as error:
        if error.code == "INVALID_TRANSACTION_TIMEOUT":
            text = f"the broker allows no transaction of {TRANSACTION_TIMEOUT_MS} ms"
            yield Check("transactions", PROBLEM, text, f"set transaction.max.timeout.ms={TRANSACTION_TIMEOUT_MS} there")
            return
        if not error.denied:
            raise
        fix = _acl(
            settings,
            f"--operation Write --operation Describe --resource-pattern-type prefixed "
            f"--transactional-id {settings.transactional_id_prefix}",
        )
        yield Check("transactions", PROBLEM, f"{transactional_id}: {error}", fix)
        return
    yield Check("transactions", OK, f"possible (an empty one was begun and aborted as {transactional_id})")


def _clock(admin: Admin, settings: Settings, timeout_s: float) -> Iterator[Check]:
    found = look(admin, settings, Deadline(timeout_s))
    if not isinstance(found.status, Topic):
        why = "is missing" if found.status is None else "may not be described"
        yield Check("clock", NOTE, f"not measured: topic {settings.status_topic}, where the broker stamps, {why}")
        return
    skew = measure_clock(settings, SystemClock(), Deadline(timeout_s))
    word = "ahead of" if skew.ahead_ms >= 0 else "behind"
    text = (
        f"{abs(skew.ahead_ms):.0f} ms {word} the broker's, give or take {skew.error_ms:.0f} ms "
        f"(tombstones {CLOCK_KEY.decode()} on {settings.status_topic})"
    )
    limit_ms = settings.max_clock_skew_ms
    if abs(skew.ahead_ms) - skew.error_ms > limit_ms:
        text = f"{text}: above MAX_CLOCK_SKEW {show_duration(limit_ms)}, nothing would fire"
        yield Check("clock", PROBLEM, text, "set both clocks by NTP")
    elif abs(skew.ahead_ms) - skew.error_ms > 1_000:
        yield Check("clock", NOTE, f"{text}: messages fire early or late by that much", "set both clocks by NTP")
    else:
        yield Check("clock", OK, text)


def _state_dir(folder: Path) -> Iterator[Check]:
    """Check that the folder, or the one it will be made in, can be written and has room."""
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    shown = f"{folder}" if place == folder else f"{folder} (will be made in {place})"
    try:
        if not place.is_dir():
            raise NotADirectoryError(20, os.strerror(20), str(place))
        with tempfile.TemporaryFile(dir=place) as trial:
            trial.write(b"trial")
            trial.flush()
        free_bytes = shutil.disk_usage(place).free
    except OSError as error:
        do = "make it writable for this user, or set STATE_DIR to a folder that is"
        yield Check("state folder", PROBLEM, f"{shown}: {error.strerror or error}", do)
        return
    room = f"{shown}: writable, {free_bytes / _GIB:.1f} GiB free"
    if free_bytes < _FREE_PROBLEM_BYTES:
        yield Check("state folder", PROBLEM, room, "make room, or set STATE_DIR to a larger disk")
    elif free_bytes < _FREE_NOTE_BYTES:
        yield Check("state folder", NOTE, room, "it contains all pending messages: free space before it fills")
    else:
        yield Check("state folder", OK, room)


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _refused(settings: Settings, name: str, error: KafkaFailed) -> Check:
    if error.code == "GROUP_AUTHORIZATION_FAILED":
        fix = _acl(settings, f"--operation Read --operation Describe --group {settings.group_id}")
        return Check(name, PROBLEM, f"{settings.group_id}: {error}", fix)
    if error.code == "TOPIC_AUTHORIZATION_FAILED":
        return Check(name, PROBLEM, str(error), _acl(settings, f"--operation Write --topic {settings.status_topic}"))
    return Check(name, PROBLEM, f"{error.code}: {error}", "look into the broker's log")


def _acl(settings: Settings, what: str) -> str:
    return (
        f"kafka-acls.sh --bootstrap-server {settings.bootstrap_servers} --add --allow-principal User:<this user> {what}"
    )


def _print(check: Check) -> None:
    """Print a check on one line, never folded: what it says to do is there to be copied."""
    state = click.style(f"{check.state:<9}", **_STYLES[check.state])
    click.echo(f"{state}{printable(f'{check.name:<17}{check.text}')}")
    if check.do:
        say(f"{'':<26}-> {check.do}")
