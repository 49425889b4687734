"""`retry-sidecar send` and the client behind it, on a real broker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, Message, Producer
from retry_sidecar import Delivery, RetryTopic, is_for_group

from sidecar import cli
from sidecar.clock import SystemClock
from sidecar.model import TimerId
from tests.broker import create_topic, read_committed

pytestmark = pytest.mark.broker


class Topics:
    """A retry topic and an origin of this test's own."""

    def __init__(self, bootstrap: str, unique: Callable[[str], str]) -> None:
        self.bootstrap = bootstrap
        self.input, self.origin = unique("retry"), unique("orders")
        create_topic(bootstrap, self.input, 2)
        create_topic(bootstrap, self.origin, 1)

    def send(self, *arguments: str) -> Result:
        flags = ["--bootstrap-servers", self.bootstrap, "--input-topic", self.input]
        return CliRunner().invoke(cli.main, ["send", *flags, "--origin", self.origin, *arguments])


@pytest.fixture
def topics(bootstrap: str, unique: Callable[[str], str]) -> Topics:
    return Topics(bootstrap, unique)


def test_a_message_has_what_the_options_say(topics: Topics) -> None:
    result = topics.send(
        *("--delay", "5s", "--key", "k-{n}", "--value", "v-{n}", "--header", "a:1", "--header", "a:2:3"),
        *("--exception", "com.acme.Down", "--attempt", "2", "--retry-id", "mine"),
    )
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"1 message sent to {topics.input}\n"
    (record,) = read_committed(topics.bootstrap, [topics.input])
    assert (record.key, record.value) == (b"k-1", b"v-1")
    assert record.headers == (
        ("a", b"1"),
        ("a", b"2:3"),
        ("retry-origin-topic", topics.origin.encode()),
        ("retry-delay-ms", b"5000"),
        ("retry-attempt", b"2"),
        ("retry-exception", b"com.acme.Down"),
        ("retry-id", b"mine"),
    )


def test_with_a_due_time_the_timer_ids_are_printed(topics: Topics) -> None:
    result = topics.send("--due-ms", "1700000000000", "--count", "5", "--key", "{n}")
    assert result.exit_code == 0
    records = read_committed(topics.bootstrap, [topics.input])
    expected = {str(TimerId(record.partition, record.offset, 1_700_000_000_000)) for record in records}
    assert set(result.stdout.splitlines()) == expected
    assert len(expected) == 5


def test_many_messages_arrive_all_and_json_says_where(topics: Topics) -> None:
    result = topics.send("--count", "3000", "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert (answer["topic"], answer["sent"], len(answer["messages"])) == (topics.input, 3000, 1000)
    assert answer["messages"][0]["timer_id"] is None
    values = {record.value for record in read_committed(topics.bootstrap, [topics.input])}
    assert values == {b"message %d" % number for number in range(1, 3001)}


def test_a_rate_is_not_exceeded(topics: Topics) -> None:
    start_s = SystemClock().monotonic_s()
    assert topics.send("--count", "11", "--per-second", "10").exit_code == 0
    assert SystemClock().monotonic_s() - start_s >= 1.0


def test_a_file_is_sent_byte_for_byte(topics: Topics, tmp_path: Path) -> None:
    content = bytes(range(256)) + b"{n}"
    (tmp_path / "value").write_bytes(content)
    assert topics.send("--file", str(tmp_path / "value")).exit_code == 0
    (record,) = read_committed(topics.bootstrap, [topics.input])
    assert record.value == content
    assert record.key is None


def test_a_missing_retry_topic_is_an_error_with_the_command_that_creates_it(bootstrap: str, topic_name: str) -> None:
    flags = ["--bootstrap-servers", bootstrap, "--input-topic", topic_name, "--origin", "orders"]
    result = CliRunner().invoke(cli.main, ["send", *flags])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"topic {topic_name}: does not exist; create it with: retry-sidecar topics create ")


def test_a_missing_origin_is_only_a_note(topics: Topics) -> None:
    topics.origin = "no-such-origin"
    result = topics.send()
    assert result.exit_code == 0
    assert "note: topic no-such-origin does not exist" in result.stderr


def test_a_message_that_is_too_large_fails_and_says_so(bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    (tmp_path / "value").write_bytes(bytes(1_100_000))
    result = topics.send("--file", str(tmp_path / "value"))
    assert result.exit_code == 1
    assert "1 of 1 messages were not delivered: Broker: Message size too large" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--delay", "5s", "--due-ms", "1"), "--delay and --due-ms"),
        (("--delay", "soon"), "must be a duration"),
        (("--header", "novalue"), "must be NAME:VALUE"),
        (("--client", "no.such.property=1"), "No such configuration property"),
    ],
)
def test_a_wrong_option_is_a_usage_error(arguments: tuple[str, ...], text: str) -> None:
    result = CliRunner().invoke(cli.main, ["send", "--origin", "orders", *arguments])
    assert result.exit_code == 2
    assert text in result.stderr


def _consume_one(bootstrap: str, topic: str, group: str) -> Message:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        return message
    finally:
        consumer.close()


def test_a_consumed_message_is_sent_back_with_its_attempts_and_what_went_wrong(
    topics: Topics, unique: Callable[[str], str]
) -> None:
    producer = Producer({"bootstrap.servers": topics.bootstrap})
    producer.produce(
        topics.origin,
        b"value",
        b"key",
        headers=[
            ("other", b"1"),
            ("retry-origin-topic", topics.origin.encode()),
            ("retry-attempt", b"3"),
            ("retry-exception", b"Old"),
        ],
    )
    assert producer.flush(30) == 0
    message = _consume_one(topics.bootstrap, topics.origin, unique("group"))
    delivered: list[Delivery] = []
    back = RetryTopic(producer, topics.input)
    back.send_back(message, TimeoutError("late"), delay_ms=700, group="billing", on_delivery=delivered.append)
    assert producer.flush(30) == 0
    (record,) = read_committed(topics.bootstrap, [topics.input])
    assert (record.key, record.value) == (b"key", b"value")
    assert record.headers == (
        ("other", b"1"),
        ("retry-attempt", b"3"),
        ("retry-origin-topic", topics.origin.encode()),
        ("retry-delay-ms", b"700"),
        ("retry-exception", b"TimeoutError"),
        ("retry-group", b"billing"),
    )
    assert delivered == [Delivery(None, record.partition, record.offset, None)]
    assert is_for_group(message, "shipping")
