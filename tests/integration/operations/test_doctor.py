"""`retry-sidecar doctor` on real brokers: in order, with missing topics, with missing permissions, without a broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from sidecar import cli
from sidecar.clock import SystemClock
from sidecar.contract.status import CLOCK_KEY
from sidecar.engine import hot
from sidecar.errors import SettingsInvalid, TopicsInvalid
from sidecar.kafka.admin.cluster import Admin, Deadline
from sidecar.kafka.admin.first_start import place_new_group
from sidecar.kafka.admin.topics import ensure_topics
from sidecar.kafka.probes import describe_group, measure_clock
from sidecar.settings import Settings
from tests.broker import create_topic, local_broker, partitions_of, read_committed
from tests.integration.messages import Given, send
from tests.waiting import eventually

pytestmark = pytest.mark.broker

Report = dict[str, dict[str, str]]


def _settings(bootstrap: str, unique: Callable[[str], str], *, create_topics: bool = True) -> Settings:
    return Settings(
        bootstrap_servers=bootstrap,
        streams_app_id=unique("app"),
        input_topic=unique("retry"),
        dlq_topic=unique("dlq"),
        create_topics=create_topics,
    )


def _run(settings: Settings, state_dir: Path, *more: str) -> Result:
    flags = [
        *("--bootstrap-servers", settings.bootstrap_servers),
        *("--streams-app-id", settings.streams_app_id),
        *("--input-topic", settings.input_topic),
        *("--dlq-topic", settings.dlq_topic),
        *("--state-dir", str(state_dir)),
    ]
    return CliRunner().invoke(cli.main, ["doctor", *flags, *more])


def _report(result: Result) -> Report:
    """Return the checks by name; of one name the last, which is the worst."""
    answer: dict[str, Any] = json.loads(result.stdout)
    assert answer["ok"] is (result.exit_code == 0)
    return {check["name"]: check for check in answer["checks"]}


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the hot path count as compiled, whatever this machine has."""
    monkeypatch.setattr(hot, "COMPILED", True)


def test_where_all_is_well_every_line_is_ok(bootstrap: str, unique: Callable[[str], str], tmp_path: Path) -> None:
    settings = _settings(bootstrap, unique)
    facts = ensure_topics(Admin(settings), settings, partitions=2)
    result = _run(settings, tmp_path)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ok"] * 11
    text = result.stdout
    assert f"cluster {facts.cluster_id}" in text
    assert f"{settings.changelog_topic}: 2 partitions, 1 replica" in text
    assert f"begun and aborted as {settings.streams_app_id}-doctor" in text
    records = read_committed(bootstrap, [settings.status_topic])
    assert {(record.key, record.value) for record in records} == {(CLOCK_KEY, None)}


def test_the_decision_that_a_first_start_needs_is_a_problem_until_it_is_made(
    bootstrap: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    settings = _settings(bootstrap, unique)
    create_topic(bootstrap, settings.input_topic, 2)
    create_topic(bootstrap, settings.dlq_topic, 1)
    send(bootstrap, settings.input_topic, Given(), Given())
    report = _report(_run(settings, tmp_path, "--json"))
    assert report["start"]["state"] == "problem"
    assert report["start"]["text"].startswith(f"START_AT: is not set, the group {settings.group_id} is new")
    assert report["start"]["text"].endswith("has 2 records")
    assert report["start"]["do"].startswith("set START_AT to latest (they stay unread; ")
    assert "start" not in _report(_run(settings, tmp_path, "--json", "--start-at", "latest"))
    # The same question as that of the start.
    admin = Admin(settings)
    facts = ensure_topics(admin, settings)
    with pytest.raises(SettingsInvalid, match="START_AT: is not set"):
        place_new_group(admin, settings, facts, 20)
    assert place_new_group(admin, replace(settings, start_at="latest"), facts, 20)
    assert "start" not in _report(_run(settings, tmp_path, "--json"))


def test_missing_topics_are_problems_with_the_command_that_creates_them(
    bootstrap: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    settings = _settings(bootstrap, unique)
    result = _run(settings, tmp_path, "--json")
    assert result.exit_code == 1
    report = _report(result)
    for name in ("topic input", "topic dlq"):
        assert report[name]["state"] == "problem"
        assert report[name]["do"].startswith("retry-sidecar topics create --bootstrap-servers")
    assert report["clock"]["state"] == "note"
    assert report["transactions"]["state"] == "ok"
    assert partitions_of(bootstrap, settings.changelog_topic) == 0


def test_an_unread_record_with_an_old_timestamp_is_a_note(
    bootstrap: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    settings = replace(_settings(bootstrap, unique), start_at="earliest")
    ensure_topics(Admin(settings), settings, partitions=2)
    old_ms = SystemClock().wall_ms() - 6 * 86_400_000
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(settings.input_topic, b"new", partition=1)
    producer.produce(settings.input_topic, b"old", partition=1, timestamp=old_ms)
    assert producer.flush(30) == 0
    found = _report(_run(settings, tmp_path, "--json"))["timestamps"]
    assert found["state"] == "note"
    assert found["text"].startswith(f"{settings.input_topic}, partition 1, offset 1: its timestamp is 5184")
    assert found["do"].endswith(f"message.timestamp.before.max.ms={7 * 86_400_000 // 2}")


def test_a_mistake_in_a_topic_is_a_problem_and_a_small_dlq_a_note(
    bootstrap: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    settings = _settings(bootstrap, unique)
    create_topic(bootstrap, settings.dlq_topic, 1, {"max.message.bytes": "5000"})
    create_topic(bootstrap, settings.status_topic, 1, {"cleanup.policy": "compact,delete"})
    with pytest.raises(TopicsInvalid):
        ensure_topics(Admin(settings), settings, partitions=1)
    report = _report(_run(settings, tmp_path, "--json"))
    assert "message.timestamp.type is CreateTime" in report["topic status"]["text"]
    assert report["topic status"]["do"].endswith("--add-config message.timestamp.type=LogAppendTime")
    assert report["topics"]["state"] == "note"
    assert report["topics"]["do"].endswith(f"max.message.bytes={1_048_588 + 64 * 1024}")
    assert "does not stamp with LogAppendTime" in report["clock"]["text"]


def test_without_a_broker_it_says_so_and_looks_at_the_rest(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    settings = Settings(bootstrap_servers="127.0.0.1:1")
    result = _run(settings, blocked / "state", "--timeout", "4", "--json")
    report = _report(result)
    assert list(report) == ["versions", "hot-path", "state folder", "broker"]
    assert "Not a directory" in report["state folder"]["text"]
    assert "STATE_DIR" in report["state folder"]["do"]
    assert "Connection refused" in report["broker"]["text"]
    assert "BOOTSTRAP_SERVERS" in report["broker"]["do"]


def test_a_clock_that_is_ahead_is_measured(bootstrap: str, unique: Callable[[str], str]) -> None:
    class Ahead(SystemClock):
        def wall_ms(self) -> int:
            return super().wall_ms() + 3_600_000

    settings = _settings(bootstrap, unique)
    ensure_topics(Admin(settings), settings, partitions=1)
    skew = measure_clock(settings, Ahead(), Deadline(20))
    assert skew.error_ms < 60_000
    # Broker and test share a machine and its clock.
    assert abs(skew.ahead_ms - 3_600_000) <= skew.error_ms


def test_a_group_without_members_is_no_problem(bootstrap: str, unique: Callable[[str], str]) -> None:
    settings = _settings(bootstrap, unique)
    group = describe_group(Admin(settings), settings, Deadline(20))
    assert group is None or group.members == 0


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """Address of a broker that asks its access list; everybody may do everything that no test denies."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with local_broker(properties=properties) as broker:
        kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID)
        everything = [(ResourceType.BROKER, "kafka-cluster"), *((kind, "*") for kind in kinds)]
        allowed = [_acl(kind, name, AclOperation.ALL, AclPermissionType.ALLOW) for kind, name in everything]
        _write_acls(broker.bootstrap_servers, allowed)
        yield broker.bootstrap_servers


def _acl(kind: ResourceType, name: str, operation: AclOperation, permission: AclPermissionType) -> AclBinding:
    return AclBinding(kind, name, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*", operation, permission)


def _write_acls(bootstrap: str, acls: list[AclBinding]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_acls(acls).values():
        future.result(15)
    # The list reaches the broker's own authorizer a moment after it was written.
    eventually(lambda: all(_in_force(admin, acl) for acl in acls), 15, "the access list is in force")


def _in_force(admin: AdminClient, acl: AclBinding) -> bool:
    wanted = AclBindingFilter(
        acl.restype,
        acl.name,
        acl.resource_pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )
    return bool(admin.describe_acls(wanted).result(15))


def _deny(bootstrap: str, *denied: tuple[ResourceType, str, AclOperation]) -> None:
    _write_acls(bootstrap, [_acl(*resource, AclPermissionType.DENY) for resource in denied])


def test_each_missing_right_is_a_problem_with_the_command_that_grants_it(
    guarded: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    settings = _settings(guarded, unique)
    ensure_topics(Admin(settings), settings, partitions=2)
    _deny(
        guarded,
        (ResourceType.TOPIC, settings.input_topic, AclOperation.DESCRIBE_CONFIGS),
        (ResourceType.TOPIC, settings.dlq_topic, AclOperation.WRITE),
        (ResourceType.TOPIC, settings.status_topic, AclOperation.WRITE),
        (ResourceType.GROUP, settings.group_id, AclOperation.READ),
        (ResourceType.TRANSACTIONAL_ID, f"{settings.streams_app_id}-doctor", AclOperation.WRITE),
    )
    expected = {
        "topic input": f"--operation DescribeConfigs --topic {settings.input_topic}",
        "topic dlq": f"--operation Write --topic {settings.dlq_topic}",
        "topic status": f"--operation Write --topic {settings.status_topic}",
        "clock": f"--operation Write --topic {settings.status_topic}",
        "group": f"--operation Read --group {settings.group_id}",
        "transactions": f"prefixed --transactional-id {settings.streams_app_id}-",
    }

    report = _report(_run(settings, tmp_path, "--json"))
    assert {name for name, check in report.items() if check["state"] == "problem"} == set(expected)
    for name, granted in expected.items():
        assert report[name]["do"].startswith(f"kafka-acls.sh --bootstrap-server {guarded} --add "), report[name]
        assert report[name]["do"].endswith(granted)
    assert report["topic changelog"]["state"] == "ok"


def test_an_origin_that_cannot_be_read_is_a_note_with_the_command_that_grants_it(
    guarded: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    settings, read, unread = _settings(guarded, unique), unique("read"), unique("unread")
    ensure_topics(Admin(settings), settings, partitions=1)
    for name in (read, unread):
        create_topic(guarded, name, 1)
    _deny(guarded, (ResourceType.TOPIC, unread, AclOperation.READ))
    found = _run(settings, tmp_path, "--json", "--origin-topics", f"{read},{unread},other-*")
    assert found.exit_code == 0
    (note,) = [each for each in json.loads(found.stdout)["checks"] if each["name"] == "topic origin"]
    assert note["state"] == "note"
    assert note["do"].endswith(f"--operation Read --topic {unread}")


def test_without_the_right_to_create_the_command_for_somebody_else_is_named(
    guarded: str, unique: Callable[[str], str]
) -> None:
    settings = _settings(guarded, unique, create_topics=False)
    create_topic(guarded, settings.input_topic, 1)
    create_topic(guarded, settings.dlq_topic, 1)
    _deny(
        guarded,
        (ResourceType.BROKER, "kafka-cluster", AclOperation.CREATE),
        (ResourceType.TOPIC, settings.changelog_topic, AclOperation.CREATE),
    )
    with pytest.raises(TopicsInvalid) as caught:
        ensure_topics(Admin(settings), settings)
    assert str(caught.value).startswith(
        f"topic {settings.changelog_topic}: does not exist, and the permission to create it is missing"
    )
    assert "a user with it must run: retry-sidecar topics create --bootstrap-servers" in str(caught.value)


def test_without_the_right_to_grow_the_new_partitions_are_left_out_and_noted(
    guarded: str, unique: Callable[[str], str]
) -> None:
    settings = _settings(guarded, unique, create_topics=False)
    create_topic(guarded, settings.input_topic, 3)
    create_topic(guarded, settings.dlq_topic, 1)
    config = {"cleanup.policy": "compact", "max.message.bytes": "2000000"}
    create_topic(guarded, settings.changelog_topic, 2, config)
    create_topic(
        guarded,
        settings.status_topic,
        3,
        {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
    )
    _deny(guarded, (ResourceType.TOPIC, settings.changelog_topic, AclOperation.ALTER))
    facts = ensure_topics(Admin(settings), settings)
    assert (facts.partitions, facts.usable_partitions, facts.changes) == (3, 2, ())
    (note,) = facts.notes
    assert f"topic {settings.changelog_topic}: has 2 partitions" in note
    assert "the permission Alter is missing: partitions from 2 on stay unready until" in note
