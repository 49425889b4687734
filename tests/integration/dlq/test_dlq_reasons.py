"""Every reason of the contract, end to end: the message as it came, why, and Connect's headers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from sidecar.model import Reason
from tests.broker import Read, create_topic, read_committed, unique
from tests.integration.messages import EMBEDDED, Given, Launch, Pairs, World, native, now_ms, one_sidecar, scrape
from tests.integration.raw_producer import produce_raw
from tests.integration.sidecars import Stage
from tests.waiting import eventually

pytestmark = pytest.mark.broker

SMALL_BYTES = 20_000
DAY_MS = 86_400_000


class Case(NamedTuple):
    """A message that goes to the DLQ."""

    reason: str
    says: str
    headers: Pairs
    value: bytes | None = b"v"
    class_name: str | None = None


def _cases(stage: Stage) -> dict[str, Case]:
    origin = ("retry-origin-topic", stage.origin.encode())
    strict = ("retry-origin-topic", f"{stage.app_id}-strict".encode())
    retriable = ("retry-exception", b"com.acme.Late")
    return {
        "no-headers": Case("missing-header", "retry-origin-topic", []),
        "no-origin": Case("missing-header", "retry-origin-topic", [("retry-delay-ms", b"1")]),
        "origin-null": Case("bad-header", "retry-origin-topic", [("retry-origin-topic", None)]),
        "origin-no-name": Case("bad-header", "retry-origin-topic", [("retry-origin-topic", b"a b")]),
        "delay-no-number": Case("bad-header", "retry-delay-ms", [origin, ("retry-delay-ms", b"1_000")]),
        "delay-other-digits": Case("bad-header", "retry-delay-ms", [origin, ("retry-delay-ms", "٣".encode())]),
        "due-signed": Case("bad-header", "retry-due-ms", [origin, ("retry-due-ms", b"+1")]),
        "due-and-delay": Case("bad-header", "contradict", [origin, ("retry-due-ms", b"1"), ("retry-delay-ms", b"1")]),
        "equal-twice": Case("bad-header", "retry-origin-topic", [origin, origin]),
        "no-utf-8": Case("bad-header", "retry-exception", [origin, ("retry-exception", b"\xff")]),
        "beyond-partitions": Case("bad-header", "2 partitions", [origin, ("retry-origin-partition", b"2")]),
        "replace-without-id": Case("bad-header", "retry-id", [origin, ("retry-replace", b"true")]),
        "id-too-long": Case("bad-header", "256", [origin, ("retry-id", b"i" * 257)]),
        "control": Case("bad-header", "retry-control", [origin, ("retry-control", b"cancel")]),
        "not-allowed": Case("origin-not-allowed", "ORIGIN_TOPICS", [("retry-origin-topic", b"elsewhere")]),
        "input": Case("origin-not-allowed", stage.input_topic, [("retry-origin-topic", stage.input_topic.encode())]),
        "dlq": Case("origin-not-allowed", stage.dlq_topic, [("retry-origin-topic", stage.dlq_topic.encode())]),
        "internal": Case(
            "origin-not-allowed", stage.changelog_topic, [("retry-origin-topic", stage.changelog_topic.encode())]
        ),
        "unknown": Case(
            "origin-unknown", "does not exist", [("retry-origin-topic", f"{stage.app_id}-nowhere".encode())]
        ),
        "too-large": Case(
            "too-large",
            str(SMALL_BYTES),
            [("retry-origin-topic", f"{stage.app_id}-small".encode()), retriable],
            bytes(SMALL_BYTES),
        ),
        "large-headers": Case(
            "too-large",
            str(SMALL_BYTES),
            [("retry-origin-topic", f"{stage.app_id}-small".encode()), retriable, ("big", bytes(SMALL_BYTES))],
        ),
        "too-late": Case("delay-out-of-range", "MAX_DELAY", [origin, ("retry-delay-ms", b"%d" % (2 * DAY_MS))]),
        "fatal": Case(
            "fatal", "FATAL_EXCEPTION", [origin, ("retry-exception", b"org.fatal.X")], class_name="org.fatal.X"
        ),
        "fatal-and-retriable": Case(
            "fatal", "FATAL_EXCEPTION", [origin, ("retry-exception", b"com.acme.Fatal")], class_name="com.acme.Fatal"
        ),
        "used-up": Case("attempts-exhausted", "MAX_ATTEMPTS", [origin, retriable, ("retry-attempt", b"3")]),
        "fatal-there": Case("fatal", "(policy of *-strict)", [strict, retriable]),
        "used-up-there": Case(
            "attempts-exhausted",
            "(policy of *-strict)",
            [strict, ("retry-exception", b"com.acme.Other"), ("retry-attempt", b"1")],
            class_name="com.acme.Other",
        ),
        "too-old": Case("too-old", "policy of aged", [origin, ("retry-policy", b"aged"), ("retry-first-ms", b"1")]),
        "no-policy": Case("bad-header", "allowed are aged", [origin, ("retry-policy", b"young")]),
        "none-remain": Case("attempts-exhausted", "headers", [origin, retriable, ("retry-remaining", b"0")]),
        "unknown-exception": Case(
            "unknown-exception", "RETRIABLE_EXCEPTION", [origin, ("retry-exception", b"x.Y")], class_name="x.Y"
        ),
        "tombstone": Case("missing-header", "retry-origin-topic", [], None),
    }


_NAMES = tuple(_cases(Stage("", "app")))


class TestReasons:
    """The same for each engine: see tests/spark/test_reasons.py."""

    @pytest.fixture(scope="class")
    @classmethod
    def launch(cls) -> Launch:
        return EMBEDDED

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, bootstrap: str, tmp_path_factory: pytest.TempPathFactory, launch: Launch) -> Iterator[World]:
        def more(stage: Stage) -> None:
            create_topic(stage.bootstrap, f"{stage.app_id}-small", config={"max.message.bytes": str(SMALL_BYTES)})
            create_topic(stage.bootstrap, f"{stage.app_id}-strict")
            create_topic(stage.bootstrap, f"{stage.app_id}-compacted", config={"cleanup.policy": "compact"})

        with one_sidecar(
            bootstrap,
            tmp_path_factory.mktemp("dlq"),
            origins=more,
            launch=launch,
            RETRIABLE_EXCEPTION="com.acme.*",
            FATAL_EXCEPTION="com.acme.Fatal,org.fatal.*",
            DROPPABLE_EXCEPTION="com.acme.Drop*",
            MAX_ATTEMPTS="3",
            MAX_DELAY="1d",
            CLIENT_COMPRESSION_TYPE="none",  # so that what is too large is known at intake, on both engines
            ORIGIN_POLICIES="{'*-strict': {fatal_exception: com.acme.Late, max_attempts: 1}}",
            POLICIES="{aged: {max_age: 1m}}",
        ) as world:
            yield world

    @pytest.fixture(scope="class")
    @classmethod
    def records(cls, world: World) -> dict[str, tuple[Case, Given, int, Read]]:
        """All cases, sent at once with a good message behind them, and the dead letter of each."""
        cases = _cases(world.stage)
        given = {
            name: Given(
                case.value,
                b"key of " + name.encode(),
                [("first", None), *case.headers, ("first", b"2"), ("test", name.encode())],
            )
            for name, case in cases.items()
        }
        sent = world.send(*given.values())
        dead = read_committed(
            world.stage.bootstrap, [world.stage.dlq_topic], 60, until=lambda seen: len(seen) >= len(cases)
        )
        found = {(record.header("test") or b"").decode(): record for record in dead}
        return {
            name: (case, given[name], place.offset, found[name])
            for (name, case), place in zip(cases.items(), sent, strict=True)
        }

    @pytest.mark.parametrize("name", _NAMES)
    def test_a_dead_letter_is_the_message_as_it_came_with_the_reason_and_connects_headers(
        self, world: World, records: dict[str, tuple[Case, Given, int, Read]], name: str
    ) -> None:
        case, given, offset, dead = records[name]
        came = given.headers or []
        detail = (dead.header("retry-dlq-detail") or b"").decode()
        camel = "".join(word.capitalize() for word in case.reason.split("-"))
        expected_class = case.class_name or ("com.acme.Late" if "com.acme.Late" in str(came) else f"sidecar.{camel}")
        if name == "no-utf-8":
            expected_class = f"sidecar.{camel}"
        assert (dead.key, dead.value) == (given.key, given.value)
        assert list(dead.headers[: len(came)]) == came
        assert case.says in detail
        assert [*dead.headers[len(came) + 1 :]] == [
            ("retry-dlq-reason", case.reason.encode()),
            ("retry-dlq-detail", detail.encode()),
            ("__connect.errors.topic", world.stage.input_topic.encode()),
            ("__connect.errors.partition", b"0"),
            ("__connect.errors.offset", b"%d" % offset),
            ("__connect.errors.connector.name", world.stage.app_id.encode()),
            ("__connect.errors.stage", b"intake"),
            ("__connect.errors.exception.class.name", expected_class.encode()),
            ("__connect.errors.exception.message", detail.encode()),
        ]
        assert dead.headers[len(came)][0] == "retry-timestamp-ms"
        assert abs(int(dead.headers[len(came)][1] or 0) - now_ms()) < 3_600_000

    def test_the_cases_cover_every_reason_that_ingest_gives(self) -> None:
        reasons = {case.reason for case in _cases(Stage("", "app")).values()}
        assert {*reasons, "unfireable"} == {reason.value for reason in Reason}

    def test_what_its_origin_refuses_is_a_dead_letter_as_it_came_and_the_others_of_its_batch_fire(
        self, world: World
    ) -> None:
        """A compacted topic refuses a message without a key, which only the attempt shows."""
        marker, due_ms = unique("m").encode(), now_ms() + 2_000
        topic = f"{world.stage.app_id}-compacted"
        pairs: Pairs = [
            ("first", None),
            ("retry-origin-topic", topic.encode()),
            ("retry-due-ms", b"%d" % due_ms),
            ("retry-exception", b"com.acme.Late"),
            ("first", b"2"),
            ("test", marker),
        ]
        guilty = {7, 16}
        sent = world.send(*(Given(b"%d" % n, None if n in guilty else b"%d" % n, pairs) for n in range(20)))
        for dead in world.dead(marker, len(guilty)):
            number = int(dead.value or b"")
            detail = dead.header("retry-dlq-detail") or b""
            assert number in guilty
            assert dead.key is None
            assert detail
            assert list(dead.headers) == [
                *pairs,
                ("retry-timestamp-ms", b"%d" % sent[number].timestamp_ms),
                ("retry-dlq-reason", b"unfireable"),
                ("retry-dlq-detail", detail),
                ("__connect.errors.topic", world.stage.input_topic.encode()),
                ("__connect.errors.partition", b"0"),
                ("__connect.errors.offset", b"%d" % sent[number].offset),
                ("__connect.errors.connector.name", world.stage.app_id.encode()),
                ("__connect.errors.stage", b"fire"),
                ("__connect.errors.exception.class.name", b"com.acme.Late"),
                ("__connect.errors.exception.message", detail),
            ]
        fired = world.fired(marker, 20 - len(guilty), topic)
        assert sorted(int(record.value or b"") for record in fired) == [n for n in range(20) if n not in guilty]

    def test_a_message_with_header_names_that_are_no_utf_8_is_a_dead_letter_and_the_others_go_on(
        self, world: World
    ) -> None:
        marker = unique("m").encode()
        good = Given(b"good", headers=native(world.stage, marker, 1, ("retry-exception", b"com.acme.Late")))
        world.send(good)
        produce_raw(
            world.stage.bootstrap,
            world.stage.input_topic,
            0,
            marker,
            [(b"retry-origin-topic", world.stage.origin.encode()), (b"\xff\xfe", b"x")],
        )
        world.send(good)
        assert [record.value for record in world.fired(marker, 2)] == [b"good", b"good"]
        dead = read_committed(
            world.stage.bootstrap,
            [world.stage.dlq_topic],
            30,
            until=lambda seen: any(each.value == marker for each in seen),
        )
        (record,) = [each for each in dead if each.value == marker]
        assert record.header("retry-dlq-reason") == b"bad-header"
        assert b"UTF-8" in (record.header("retry-dlq-detail") or b"")

    def test_a_droppable_message_is_no_dead_letter_and_never_fires(self, world: World) -> None:
        marker = unique("m").encode()
        dropped = native(world.stage, marker, 1, ("retry-exception", b"com.acme.DropMe"))
        kept = native(world.stage, marker, 1, ("retry-exception", b"com.acme.Late"))
        world.send(Given(b"dropped", headers=dropped), Given(b"kept", headers=kept))
        assert [record.value for record in world.fired(marker)] == [b"kept"]
        eventually(lambda: 'received_total{verdict="dropped"} 1.0' in scrape(world.sidecar), 60, "it is counted")

    def test_an_unknown_origin_does_not_delay_the_others(self, world: World) -> None:
        marker = unique("m").encode()
        nowhere: Pairs = [("retry-origin-topic", f"{world.stage.app_id}-nowhere-{marker.decode()}".encode())]
        good = Given(b"good", headers=native(world.stage, marker, 1, ("retry-exception", b"com.acme.Late")))
        began_ms = now_ms()
        world.send(*(each for _ in range(50) for each in (Given(headers=[*nowhere, ("test", marker)]), good)))
        assert len(world.fired(marker, 50)) == 50
        assert len(world.dead(marker, 50)) == 50
        assert now_ms() - began_ms < 45_000, "they are not waited for one after the other"

    def test_each_dead_letter_is_counted_once_by_its_reason(
        self, world: World, records: dict[str, tuple[Case, Given, int, Read]]
    ) -> None:
        there = Counter(
            (dead.header("retry-dlq-reason") or b"").decode()
            for dead in read_committed(world.stage.bootstrap, [world.stage.dlq_topic])
            if dead.header("__connect.errors.stage") == b"intake"
        )
        assert there.keys() >= {case.reason for case, *_ in records.values()}
        lines = {f'retry_sidecar_dead_lettered_total{{reason="{reason}"}} {n}.0' for reason, n in there.items()}
        eventually(lambda: lines <= set(scrape(world.sidecar).splitlines()), 60, f"the metrics say {lines}")
