"""The four topics on a real broker: created, checked, grown, and each mistake with the command that fixes it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from sidecar import cli
from sidecar.errors import BrokerUnavailable, TopicsInvalid
from sidecar.kafka.admin import cluster
from sidecar.kafka.admin.cluster import Admin, Deadline, MissingPermission, NewTopic, Topic
from sidecar.kafka.admin.topics import Found, check_topics, ensure_topics, grow_internal, look, notes, problems
from sidecar.settings import Settings
from tests.broker import create_topic, partitions_of
from tests.waiting import eventually

pytestmark = pytest.mark.broker

MIB = 1024 * 1024


@pytest.fixture
def settings(bootstrap: str, unique: Callable[[str], str]) -> Settings:
    """Settings with topics of this test's own, none of which exists."""
    return Settings(
        bootstrap_servers=bootstrap,
        streams_app_id=unique("app"),
        input_topic=unique("retry"),
        dlq_topic=unique("dlq"),
    )


@pytest.fixture
def admin(settings: Settings) -> Admin:
    return Admin(settings)


def _create_outer(settings: Settings, partitions: int = 3, config: Mapping[str, str] | None = None) -> None:
    create_topic(settings.bootstrap_servers, settings.input_topic, partitions, config)
    create_topic(settings.bootstrap_servers, settings.dlq_topic, 1)
    # The controller answers before the brokers know.
    for name, count in ((settings.input_topic, partitions), (settings.dlq_topic, 1)):
        eventually(lambda n=name, c=count: partitions_of(settings.bootstrap_servers, n) == c, 30, f"{name} is known")  # type: ignore[misc]


def _refusal(admin: Admin, settings: Settings) -> str:
    with pytest.raises(TopicsInvalid) as caught:
        ensure_topics(admin, settings)
    return str(caught.value)


def test_the_internal_topics_are_created_in_their_shape(admin: Admin, settings: Settings) -> None:
    _create_outer(settings, config={"max.message.bytes": str(2 * MIB)})
    facts = ensure_topics(admin, settings)
    found = look(admin, settings, Deadline(10))
    assert isinstance(found.changelog, Topic)
    assert isinstance(found.status, Topic)
    assert isinstance(found.input, Topic)
    expected = {
        "cleanup.policy": "compact",
        "segment.bytes": str(64 * MIB),
        "segment.ms": "600000",
        "min.cleanable.dirty.ratio": "0.1",
        "max.compaction.lag.ms": "3600000",
        "delete.retention.ms": "86400000",
        "max.message.bytes": str(2 * MIB + 64 * 1024),
    }
    assert expected.items() <= found.changelog.config.items()
    assert found.status.cleanup == {"compact", "delete"}
    assert found.status.config["retention.ms"] == "86400000"
    assert found.status.config["message.timestamp.type"] == "LogAppendTime"
    assert (found.changelog.partitions, found.status.partitions) == (3, 3)
    assert (facts.partitions, facts.usable_partitions) == (3, 3)
    assert (facts.input_bytes_max, facts.changelog_bytes_max) == (2 * MIB, 2 * MIB + 64 * 1024)
    assert (facts.input_topic_id, facts.changelog_topic_id) == (found.input.topic_id, found.changelog.topic_id)
    assert facts.input_topic_id != facts.changelog_topic_id
    assert facts.cluster_id == AdminClient({"bootstrap.servers": settings.bootstrap_servers}).cluster_id()
    assert len(facts.changes) == 2


def test_a_second_start_changes_nothing(admin: Admin, settings: Settings) -> None:
    _create_outer(settings)
    first = ensure_topics(admin, settings)
    assert ensure_topics(admin, settings) == dataclasses.replace(first, changes=())


def test_a_missing_input_is_named_with_the_command_that_creates_it(admin: Admin, settings: Settings) -> None:
    text = _refusal(admin, settings)
    command = (
        f"retry-sidecar topics create --bootstrap-servers {settings.bootstrap_servers} "
        f"--streams-app-id {settings.streams_app_id} --input-topic {settings.input_topic} "
        f"--dlq-topic {settings.dlq_topic}"
    )
    assert text.splitlines() == [
        f"topic {settings.input_topic}: does not exist; fix it with: {command} --partitions 4",
        f"topic {settings.dlq_topic}: does not exist; fix it with: {command}",
    ]
    assert partitions_of(settings.bootstrap_servers, settings.changelog_topic) == 0


def test_input_and_dlq_are_created_when_the_settings_say_so(admin: Admin, settings: Settings) -> None:
    facts = ensure_topics(admin, dataclasses.replace(settings, create_topics=True), partitions=2)
    assert facts.partitions == 2
    assert [line.split()[1] for line in facts.changes] == [
        settings.input_topic,
        settings.dlq_topic,
        settings.changelog_topic,
        settings.status_topic,
    ]


def test_topics_that_another_instance_is_quicker_to_create_are_no_reason_to_leave_out_the_others(
    admin: Admin, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(admin: Admin, topic: NewTopic, deadline: Deadline) -> bool:
        create_topic(settings.bootstrap_servers, topic.name, 3, dict(topic.config))
        return cluster.create_topic(admin, topic, deadline)

    monkeypatch.setattr("sidecar.kafka.admin.topics.create_topic", lose)
    facts = ensure_topics(admin, dataclasses.replace(settings, create_topics=True))
    assert (facts.partitions, facts.usable_partitions, facts.changes) == (3, 3, ())


def test_a_topic_that_exists_after_all_keeps_its_number_of_partitions(
    admin: Admin, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that has not heard of a new topic yet says that there is none."""
    counts = {settings.input_topic: 2, settings.dlq_topic: 1}

    def exists(admin: Admin, topic: NewTopic, deadline: Deadline) -> bool:
        create_topic(settings.bootstrap_servers, topic.name, counts.get(topic.name, 2), dict(topic.config))
        return cluster.create_topic(admin, topic, deadline)

    monkeypatch.setattr("sidecar.kafka.admin.topics.create_topic", exists)
    facts = ensure_topics(admin, dataclasses.replace(settings, create_topics=True), partitions=4)
    assert (facts.partitions, facts.changes) == (2, ())
    assert partitions_of(settings.bootstrap_servers, settings.dlq_topic) == 1


def test_a_replication_factor_that_the_cluster_cannot_give_is_named(admin: Admin, settings: Settings) -> None:
    wanted = dataclasses.replace(settings, create_topics=True, replication_factor=9)
    text = _refusal(admin, wanted)
    assert text.startswith(f"topic {settings.input_topic}: cannot be created: ")
    assert "REPLICATION_FACTOR (now 9)" in text


@pytest.mark.parametrize(
    ("role", "config", "wrong", "fix"),
    [
        ("changelog", {"cleanup.policy": "delete"}, "cleanup.policy is 'delete'", "cleanup.policy=compact"),
        ("changelog", {"max.message.bytes": "1000000"}, "max.message.bytes is 1000000", "max.message.bytes=1114124"),
        ("status", {"cleanup.policy": "compact"}, "cleanup.policy is 'compact'", "'cleanup.policy=[compact,delete]'"),
        (
            "status",
            {"message.timestamp.type": "CreateTime"},
            "message.timestamp.type is CreateTime",
            "message.timestamp.type=LogAppendTime",
        ),
    ],
)
def test_a_wrong_configuration_is_named_with_the_command_that_fixes_it(
    admin: Admin, settings: Settings, role: str, config: dict[str, str], wrong: str, fix: str
) -> None:
    good = {
        "changelog": {"cleanup.policy": "compact", "max.message.bytes": str(2 * MIB)},
        "status": {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
    }
    _create_outer(settings)
    name = {"changelog": settings.changelog_topic, "status": settings.status_topic}[role]
    create_topic(settings.bootstrap_servers, name, 3, {**good[role], **config})
    text = _refusal(admin, settings)
    assert text.startswith(f"topic {name}: {wrong}")
    assert text.endswith(
        f"; fix it with: kafka-configs.sh --bootstrap-server {settings.bootstrap_servers} --alter "
        f"--entity-type topics --entity-name {name} --add-config {fix}"
    )


def test_a_changelog_with_more_partitions_than_the_input_is_refused(admin: Admin, settings: Settings) -> None:
    _create_outer(settings, partitions=2)
    create_topic(
        settings.bootstrap_servers,
        settings.changelog_topic,
        5,
        {"cleanup.policy": "compact", "max.message.bytes": str(2 * MIB)},
    )
    text = _refusal(admin, settings)
    assert f"has 5 partitions, the input topic {settings.input_topic} has 2" in text
    assert text.endswith(f"--alter --topic {settings.input_topic} --partitions 5")


def test_changelog_and_status_grow_with_the_input(admin: Admin, settings: Settings) -> None:
    _create_outer(settings, partitions=2)
    before = ensure_topics(admin, settings)
    _grow_input(settings, 4)
    after = grow_internal(admin, settings)
    assert (after.partitions, after.usable_partitions) == (4, 4)
    assert after.changes == (
        f"topic {settings.changelog_topic} grown from 2 to 4 partitions",
        f"topic {settings.status_topic} grown from 2 to 4 partitions",
    )
    assert after.changelog_topic_id == before.changelog_topic_id
    assert partitions_of(settings.bootstrap_servers, settings.status_topic) == 4


def test_without_the_right_to_grow_the_new_partitions_are_a_note_and_no_problem(
    admin: Admin, settings: Settings
) -> None:
    _create_outer(settings, partitions=2)
    ensure_topics(admin, settings)
    found = look(admin, settings, Deadline(10))
    assert isinstance(found.input, Topic)
    assert isinstance(found.changelog, Topic)
    smaller = found._replace(input=found.input._replace(partitions=3))
    assert [problem.topic for problem in problems(settings, smaller)] == [
        settings.changelog_topic,
        settings.status_topic,
    ]
    bare = Found(
        smaller.input,
        smaller.dlq,
        found.changelog._replace(operations=frozenset({"READ", "WRITE"})),
        MissingPermission(settings.status_topic, "DESCRIBE_CONFIGS"),
    )
    (missing,) = problems(settings, bare)
    assert "the permission DescribeConfigs is missing; fix it with: kafka-acls.sh" in str(missing)
    (note,) = notes(settings, bare)
    assert "partitions from 2 on stay unready" in note


def test_a_compacted_input_and_a_small_dlq_are_notes(admin: Admin, settings: Settings) -> None:
    create_topic(settings.bootstrap_servers, settings.input_topic, 1, {"cleanup.policy": "compact"})
    create_topic(settings.bootstrap_servers, settings.dlq_topic, 1, {"max.message.bytes": "2000"})
    facts = ensure_topics(admin, settings)
    assert len(facts.notes) == 2
    assert "is compacted" in facts.notes[0]
    assert "larger dead letters lose their value" in facts.notes[1]
    assert facts.dlq_bytes_max == 2000


def test_checking_changes_nothing(admin: Admin, settings: Settings) -> None:
    _create_outer(settings)
    _, wrong = check_topics(admin, settings)
    assert {problem.topic for problem in wrong} == {settings.changelog_topic, settings.status_topic}
    assert partitions_of(settings.bootstrap_servers, settings.changelog_topic) == 0


def test_a_broker_that_does_not_answer_is_named_with_the_reason() -> None:
    nobody = Settings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1:1 \(BOOTSTRAP_SERVERS\): .*Connection refused"):
        ensure_topics(Admin(nobody), nobody, deadline_s=4)


def _flags(settings: Settings) -> list[str]:
    return [
        *("--bootstrap-servers", settings.bootstrap_servers),
        *("--streams-app-id", settings.streams_app_id),
        *("--input-topic", settings.input_topic),
        *("--dlq-topic", settings.dlq_topic),
    ]


def _grow_input(settings: Settings, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers})
    admin.create_partitions([NewPartitions(settings.input_topic, partitions)])[settings.input_topic].result(10)


def test_the_command_creates_all_four_and_then_finds_nothing_wrong(settings: Settings) -> None:
    created = CliRunner().invoke(cli.main, ["topics", "create", "--partitions", "3", *_flags(settings)])
    assert (created.exit_code, created.stderr) == (0, "")
    for name in settings.own_topics:
        assert f"topic {name} created" in created.stdout
    again = CliRunner().invoke(cli.main, ["topics", "create", *_flags(settings)])
    assert (again.exit_code, again.stdout) == (0, "nothing to do: all four topics exist and are correct\n")
    checked = CliRunner().invoke(cli.main, ["topics", "check", "--json", *_flags(settings)])
    assert checked.exit_code == 0
    answer = json.loads(checked.stdout)
    assert answer["ok"] is True
    assert [(topic["role"], topic["partitions"]) for topic in answer["topics"]] == [
        ("input", 3),
        ("dlq", 3),
        ("changelog", 3),
        ("status", 3),
    ]


def test_the_command_that_checks_fails_and_names_the_fix(settings: Settings) -> None:
    result = CliRunner().invoke(cli.main, ["topics", "check", *_flags(settings)])
    assert result.exit_code == 1
    assert f"topic {settings.input_topic}: does not exist; fix it with: retry-sidecar topics create" in result.stderr
    in_json = CliRunner().invoke(cli.main, ["topics", "check", "--json", *_flags(settings)])
    assert in_json.exit_code == 1
    answer = json.loads(in_json.stdout)
    assert answer["ok"] is False
    assert answer["problems"][0]["mend"].endswith("--partitions 4")
