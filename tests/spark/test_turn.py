"""Turns of one partition, without Spark: what is sent, what waits, and that a turn which is run again says the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from sidecar.changelog.codec import Engine
from sidecar.contract import DIALECTS
from sidecar.model import Headers, Record
from sidecar.policy import PolicyConfig
from sidecar.spark.cells import META, decode_meta
from sidecar.spark.facts import Fact
from sidecar.spark.turn import Rules, Turned, Turns
from sidecar.spark.wire import Chunk, Delivery, encode_chunk
from tests.spark.dict_cells import DictCells

NOW = 1_700_000_000_000
RULES = Rules(
    policy=PolicyConfig(origin_topics=("orders", "gone")),
    profiles=("native",),
    app_id="app",
    status_topic="app-status",
    owner="spark",
)


class World:
    """A partition, and a broker that knows some topics."""

    def __init__(self, **topics: Fact) -> None:
        self.cells = DictCells()
        self.topics = topics or {"orders": Fact(2, 1_000_000)}
        self.asked: list[str] = []
        self.offset = 0
        self.turns = Turns(RULES, [DIALECTS["native"]], self._lookup)
        self.now_ms = NOW

    def _lookup(self, names: Iterable[str]) -> Mapping[str, Fact]:
        found = {}
        for name in names:
            self.asked.append(name)
            fact = self.topics.get(name, Fact(0, 0))
            found[name] = Fact(fact.partitions, fact.max_message_bytes, fact.closure, asked_ms=self.now_ms)
        return found

    def record(self, *headers: tuple[str, bytes | None], value: bytes | None = b"v") -> Record:
        came: Headers = list(headers)
        self.offset += 1
        return Record(0, self.offset - 1, self.now_ms, b"k", value, came)

    def turn(self, *records: Record, wait_ms: int = 1000) -> Turned | None:
        self.now_ms += wait_ms
        chunks = [encode_chunk(Chunk([], [each])) for each in reversed(records)]
        return self.turns.turn(0, self.cells, chunks, self.now_ms)

    def settle(self, *records: Record) -> list[Delivery]:
        """Give as many turns as it takes until nothing is wanted at once."""
        sent: list[Delivery] = []
        turned = self.turn(*records)
        while turned is not None:
            sent += turned.deliveries
            if turned.wakes_ms > self.now_ms + 1:
                return sent
            turned = self.turn(wait_ms=1)
        return sent


def order(delay_ms: int, *more: tuple[str, bytes | None]) -> tuple[tuple[str, bytes | None], ...]:
    return (("retry-origin-topic", b"orders"), ("retry-delay-ms", b"%d" % delay_ms), *more)


def outgoing(sent: Iterable[Delivery]) -> list[tuple[str, bytes | None]]:
    return [(each.topic, dict(each.headers).get("retry-dlq-reason")) for part in sent for each in part.records]


def view(sent: Iterable[Delivery]) -> dict[str, object]:
    notes = [note for part in sent for note in part.notes if note.key == b"p/0"]
    answer: dict[str, object] = json.loads(notes[-1].value)
    return answer


def test_a_message_waits_until_it_is_due_and_fires_to_its_origin() -> None:
    world = World()
    sent = world.settle(world.record(*order(5000)))
    assert outgoing(sent) == []
    assert view(sent)["pending"] == 1
    early = world.turn(wait_ms=3000)
    assert early is not None
    assert outgoing(early.deliveries) == []
    assert early.wakes_ms <= NOW + 5001
    late = world.turn(wait_ms=2000)
    assert late is not None
    (fired,) = late.deliveries[0].records
    assert (fired.topic, fired.key, fired.value) == ("orders", b"k", b"v")
    assert dict(fired.headers)["retry-timer-id"] == b"0-0-%d" % (NOW + 5000)
    assert late.deliveries[0].next_input_offset == 1
    assert view(late.deliveries)["pending"] == 0
    assert late.tally.fired == {"orders": 1}
    assert late.tally.late == {1025: 1}


def test_records_behind_an_origin_that_is_not_known_yet_wait_with_it_and_keep_their_order() -> None:
    world = World()
    first = world.turn(world.record(("no", b"header")), world.record(*order(0)), world.record(("none", b"x")))
    assert first is not None
    assert outgoing(first.deliveries) == [("dlq", b"missing-header")]
    assert first.deliveries[0].next_input_offset == 1
    assert first.wakes_ms == world.now_ms + 1
    second = world.turn(wait_ms=1)
    assert second is not None
    assert outgoing(second.deliveries) == [("dlq", b"missing-header"), ("orders", None)]
    assert second.deliveries[-1].next_input_offset == 3


def test_a_topic_that_does_not_exist_is_a_dead_letter_by_a_fresh_answer() -> None:
    world = World()
    sent = world.settle(world.record(("retry-origin-topic", b"gone")), world.record(("retry-origin-topic", b"other")))
    assert sorted(outgoing(sent)) == [("dlq", b"origin-not-allowed"), ("dlq", b"origin-unknown")]


def test_a_turn_that_is_run_again_says_the_same_though_the_topics_have_changed() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    before = dict(world.cells.cells)
    now_ms = world.now_ms + 3000
    once = world.turns.turn(0, world.cells, [], now_ms)
    world.cells.cells = before
    world.topics = {}
    again = world.turns.turn(0, world.cells, [], now_ms)
    assert once is not None
    assert again is not None
    assert once.deliveries == again.deliveries


def test_what_is_due_for_a_topic_that_vanished_is_deferred_and_fires_when_it_is_there_again() -> None:
    world = World()
    world.settle(world.record(*order(100_000)))
    there = world.topics
    world.topics = {}
    world.turn(wait_ms=50_000)
    turned = world.turn(wait_ms=60_000)
    assert turned is not None
    assert outgoing(turned.deliveries) == []
    assert turned.tally.deferred == {"orders": 1}
    assert view(turned.deliveries)["closed_origins"] == {"orders": ["vanished", NOW + 111_000 + 1]}
    world.topics = there
    world.turn(wait_ms=6_000)
    sent = world.settle()
    for _ in range(4):
        world.now_ms += 10_000
        sent += world.settle()
    assert outgoing(sent) == [("orders", None)]


def test_an_instant_has_one_turn() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    assert world.turn(wait_ms=0) is None


def test_counts_are_published_though_nothing_happens() -> None:
    world = World()
    first = world.turn()
    assert first is not None
    assert view(first.deliveries)["state"] == "running"
    quiet = world.turn(wait_ms=500)
    assert quiet is not None
    assert quiet.deliveries == []
    assert quiet.wakes_ms == first.wakes_ms
    assert world.turn(wait_ms=3000).deliveries  # type: ignore[union-attr]  # each instant has a turn


def test_the_state_says_which_engine_wrote_it() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    assert decode_meta(world.cells.cells[META]).checkpoint.engine is Engine.SPARK
