"""Turns of one partition, without Spark: what is sent, what waits, and that a turn which is run again says the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import pytest

from sidecar.changelog.codec import Engine
from sidecar.contract import DIALECTS
from sidecar.model import Headers, Record
from sidecar.policy import PolicyConfig
from sidecar.spark.marks import ALL, Again, Digest
from sidecar.spark.state.entries import META, STOPPED, decode_meta, encode, held_cell
from sidecar.spark.stream import step as turn
from sidecar.spark.stream.step import Rules, Turned, Turns
from sidecar.spark.stream.topic_metadata import Fact
from sidecar.spark.stream.wire import Chunk, Closing, Delivery, encode_chunk
from tests.spark.dict_state import DictCells

NOW = 1_700_000_000_000
RULES = Rules(
    policy=PolicyConfig(origin_topics=("orders", "gone")),
    profiles=("native",),
    app_id="app",
    status_topic="app-status",
    owner="spark",
)


FORBIDDEN = Fact(2**31 - 1, 1_048_588, "unauthorised")
"""What is said of a topic that may not be looked at."""


class World:
    """A partition, and a broker that knows some topics."""

    def __init__(self, **topics: Fact) -> None:
        self.cells = DictCells()
        self.topics = topics or {"orders": Fact(2, 1_000_000)}
        self.asked: list[str] = []
        self.offset = 0
        self.now_ms = NOW
        self.rules = RULES
        self.again = Again()

    @property
    def turns(self) -> Turns:
        return Turns(self.rules, [DIALECTS["native"]], self._lookup, self.again)

    def _lookup(self, names: Iterable[str]) -> Mapping[str, Fact]:
        found = {}
        for name in names:
            self.asked.append(name)
            fact = self.topics.get(name, Fact(0, 0))
            doubted_ms = self.now_ms if fact is FORBIDDEN else 0
            found[name] = msgspec.structs.replace(fact, asked_ms=self.now_ms, doubted_ms=doubted_ms)
        return found

    def record(self, *headers: tuple[str, bytes | None], value: bytes | None = b"v") -> Record:
        came: Headers = list(headers)
        self.offset += 1
        return Record(0, self.offset - 1, self.now_ms, b"k", value, came)

    def turn(self, *records: Record, wait_ms: int = 1000) -> Turned | None:
        self.now_ms += wait_ms
        return self.turn_again(*records)

    def turn_again(self, *records: Record) -> Turned | None:
        """Give another turn at the same instant, as Spark does when it runs a micro-batch again."""
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


def refused(world: World, *closings: Closing, wait_ms: int = 1000) -> tuple[Turned, Turned]:
    """Give a turn twice: as it was decided first, and as it is decided when topics have refused what it sent."""
    before = dict(world.cells.cells)
    first = world.turn(wait_ms=wait_ms)
    assert first is not None
    world.cells.cells = before
    world.again = Again(world.now_ms, (), closings)
    second = world.turn_again()
    world.again = Again()
    assert second is not None
    return first, second


SILENT = Closing("orders", "unreachable", -1)


def test_what_an_origin_refuses_is_deferred_and_fires_when_the_origin_takes_it() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    first, second = refused(world, SILENT, wait_ms=3000)
    assert outgoing(first.deliveries) == [("orders", None)]
    assert outgoing(second.deliveries) == []
    assert second.tally.deferred == {"orders": 1}
    assert view(second.deliveries)["closed_origins"] == {"orders": ["unreachable", world.now_ms]}
    assert view(second.deliveries)["pending"] == 1
    assert second.deliveries[-1].closings == [SILENT]
    sent: list[Delivery] = []
    for _ in range(4):
        sent += world.settle()
        world.now_ms += 5_000
    assert outgoing(sent) == [("orders", None)]
    assert not decode_meta(world.cells.cells[META]).facts["orders"].refused


def test_an_origin_that_refuses_again_stays_closed_for_longer_and_since_the_first_time() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    refused(world, SILENT, wait_ms=3000)
    since_ms = world.now_ms
    world.turn(wait_ms=5_000)
    closed = []
    for _ in range(3):
        while True:
            world.now_ms += 1_000
            before = dict(world.cells.cells)
            turned = world.turn_again()
            if turned is not None and outgoing(turned.deliveries):
                break
        world.cells.cells = before
        world.again = Again(world.now_ms, (), [SILENT])
        assert world.turn_again() is not None
        world.again = Again()
        fact = decode_meta(world.cells.cells[META]).facts["orders"]
        closed.append(fact.closed_ms)
        assert fact.since_ms == since_ms
    assert closed == [20_000, 40_000, 80_000]


def test_a_closure_ends_when_its_origin_is_seen_open_though_nothing_is_due() -> None:
    world = World()
    world.settle(world.record(*order(3_600_000)))
    there = world.topics
    world.topics = {}
    for _ in range(4):
        world.turn(world.record(("no", b"header")), wait_ms=16_000)
    assert decode_meta(world.cells.cells[META]).checkpoint.closed.keys() == {"orders"}
    world.topics = there
    for _ in range(4):
        world.turn(wait_ms=16_000)
    assert not decode_meta(world.cells.cells[META]).checkpoint.closed


def test_an_origin_that_refuses_for_longer_than_origin_timeout_is_given_up() -> None:
    world = World()
    world.rules = replace(RULES, origin_timeout_ms=60_000)
    world.settle(world.record(*order(2000)))
    refused(world, SILENT, wait_ms=3000)
    sent: list[Delivery] = []
    for _ in range(40):
        world.now_ms += 3_000
        before = dict(world.cells.cells)
        turned = world.turn_again()
        if turned is not None and ("orders", None) in outgoing(turned.deliveries):
            world.cells.cells = before
            world.again = Again(world.now_ms, (), [SILENT])
            turned = world.turn_again()
            world.again = Again()
        sent += turned.deliveries if turned is not None else []
    assert outgoing(sent) == [("dlq", b"unfireable")]


def test_a_dlq_that_can_not_be_written_holds_intake_and_what_is_due_fires() -> None:
    world = World(orders=Fact(2, 1_000_000), dlq=Fact(1, 1_000_000))
    world.settle(world.record(*order(9000)))
    bad, good = world.record(("no", b"header")), world.record(*order(0))
    world.now_ms += 1000
    before = dict(world.cells.cells)
    first = world.turn_again(bad, good)
    assert first is not None
    assert outgoing(first.deliveries) == [("dlq", b"missing-header"), ("orders", None)]
    world.cells.cells = before
    world.again = Again(world.now_ms, (), [Closing("dlq", "unreachable", -1)])
    second = world.turn_again(bad, good)
    world.again = Again()
    assert second is not None
    assert outgoing(second.deliveries) == []
    assert second.wakes_ms > world.now_ms + 1
    due = world.turn(wait_ms=8500)
    assert due is not None
    assert outgoing(due.deliveries) == [("orders", None)]
    assert view(due.deliveries)["reason"] == "the DLQ dlq cannot be written"
    world.now_ms += 5_000
    assert outgoing(world.settle()) == [("dlq", b"missing-header"), ("orders", None)]


def test_what_a_turn_has_committed_stands_when_a_later_step_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FIRES_MAX", 2)
    world = World()
    world.settle(*(world.record(*order(2000), value=b"%d" % at) for at in range(5)))
    before = decode_meta(world.cells.cells[META]).checkpoint.sequence
    first, second = refused(world, Closing("orders", "unreachable", before + 1), wait_ms=3000)
    assert [len(part.records) for part in first.deliveries] == [2, 2, 1]
    assert [len(part.records) for part in second.deliveries][:2] == [2, 0]
    assert first.deliveries[0] == second.deliveries[0]
    assert second.tally.deferred == {"orders": 3}
    assert [digest(first.deliveries[:at]) == digest(second.deliveries[:at]) for at in (1, 2)] == [True, False]


def test_more_topics_than_a_mark_has_room_for_close_them_all_for_that_turn() -> None:
    world = World(orders=Fact(2, 1_000_000), gone=Fact(2, 1_000_000))
    world.settle(world.record(*order(2000)), world.record(("retry-origin-topic", b"gone"), ("retry-delay-ms", b"2000")))
    _, second = refused(world, Closing(ALL, "unreachable", -1), wait_ms=3000)
    assert second.tally.deferred == {"orders": 1, "gone": 1}


def digest(deliveries: Iterable[Delivery]) -> str:
    found = Digest()
    for part in deliveries:
        found.add(part.records, part.notes)
    return str(found)


def test_a_partition_whose_state_can_not_be_read_stops_and_keeps_what_comes() -> None:
    world = World()
    world.settle(world.record(*order(4000)))
    good = world.cells.cells[META]
    world.cells.cells[META] = good[:-3]
    stopped = world.turn(world.record(*order(0)))
    assert stopped is not None
    assert view(stopped.deliveries)["state"] == "stopped"
    assert "does not decode" in stopped.tally.stopped[0]
    assert [each.before == each.after for each in stopped.deliveries] == [True]
    for _ in range(3):
        assert outgoing(world.turn(world.record(*order(0)), wait_ms=20_000).deliveries) == []  # type: ignore[union-attr]  # each instant has a turn
    world.cells.cells[META] = good
    assert outgoing(world.turn(wait_ms=30_000).deliveries) == []  # type: ignore[union-attr]  # as above
    world.now_ms += 60_000
    assert outgoing(world.settle()) == [("orders", None)] * 5
    assert STOPPED not in world.cells.cells


def test_a_turn_that_fails_half_way_has_written_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.settle(world.record(*order(4000)), world.record(*order(8000)))
    slots = sorted(each for each in world.cells.cells if each[:1] == b"b" and each[1] == 0)
    cell, good = slots[-1], world.cells.cells[slots[-1]]
    world.cells.cells[cell] = good[:-1] + bytes([good[-1] ^ 1])
    before = dict(world.cells.cells)
    monkeypatch.setattr(turn, "FIRES_MAX", 1)
    assert world.turn(world.record(*order(500_000)), wait_ms=9000).tally.stopped  # type: ignore[union-attr]  # as above
    changed = {each for each in {*world.cells.cells, *before} if world.cells.cells.get(each) != before.get(each)}
    assert {each[:1] for each in changed} == {b"x", b"w", b"i"}
    world.cells.cells[cell] = good
    world.now_ms += 60_000
    assert outgoing(world.settle()) == [("orders", None)] * 2


def test_what_is_due_for_a_dlq_that_can_not_be_written_is_deferred() -> None:
    world = World(orders=Fact(2, 1_000_000), dlq=Fact(1, 1_000_000))
    world.settle(world.record(*order(30_000)))
    world.topics["orders"] = Fact(2, 100)
    world.turn(wait_ms=20_000)
    first, second = refused(world, Closing("dlq", "unreachable", -1), wait_ms=15_000)
    assert outgoing(first.deliveries) == [("dlq", b"too-large")]
    assert outgoing(second.deliveries) == []
    assert second.tally.deferred == {"orders": 1}
    sent: list[Delivery] = []
    for _ in range(5):
        world.now_ms += 5_000
        sent += world.settle()
    assert outgoing(sent) == [("dlq", b"too-large")]


def test_what_is_more_than_a_turn_takes_in_waits_for_the_next_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "INTAKE_BYTES_MAX", 1_000)
    world = World()
    world.settle(world.record(*order(0), value=b"first"))
    records = [world.record(*order(0), value=b"%d" % at + b"x" * 300) for at in range(20)]
    sizes = []
    turned = world.turn(*records)
    while turned is not None:
        sizes.append([int((each.value or b"").rstrip(b"x")) for part in turned.deliveries for each in part.records])
        if turned.wakes_ms > world.now_ms + 1:
            break
        turned = world.turn(wait_ms=1)
    assert [value for part in sizes for value in part] == list(range(20))
    assert max(map(len, sizes)) <= 3
    assert not [each for each in world.cells.cells if each[:1] == b"i"]


def test_the_bounds_hold_for_a_state_partition_however_many_inputs_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn, "FIRES_MAX", 10)
    world = World()
    world.settle(*(world.record(*order(2000)) for _ in range(60)))
    world.rules = replace(RULES, input_partitions=64, state_partitions=2)
    turned = world.turn(wait_ms=3000)
    assert turned is not None
    fires = len(outgoing(turned.deliveries))
    assert 0 < fires * 32 <= turn.SHARING * turn.STEPS_MAX * turn.FIRES_MAX
    assert turned.wakes_ms == world.now_ms + 1


def test_records_that_a_former_version_held_are_taken_in() -> None:
    world = World()
    world.turn()
    meta = decode_meta(world.cells.cells[META])
    meta.held = (3, 4)
    chunk = encode_chunk(Chunk([], [world.record(*order(0))]))
    world.cells.cells[held_cell(3)] = chunk[8:]
    world.cells.cells[META] = encode(meta)
    assert outgoing(world.settle()) == [("orders", None)]
    assert held_cell(3) not in world.cells.cells
