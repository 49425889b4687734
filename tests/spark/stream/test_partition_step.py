"""Steps of one partition, without Spark: what is sent, what waits, and that a repeated step sends the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import pytest

from sidecar.changelog.codec import Engine
from sidecar.contract import DIALECTS
from sidecar.contract.control import ControlKind, render_control
from sidecar.model import Headers, Record
from sidecar.policy import PolicyConfig
from sidecar.spark.marks import ALL, Digest, ReplayClosings
from sidecar.spark.state.entries import META, STOPPED, decode_meta
from sidecar.spark.stream import step
from sidecar.spark.stream.step import PartitionSteps, Rules, StepResult
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.spark.stream.wire import Chunk, Closing, OutputPart, encode_chunk, pack
from tests.spark.state.dict_state import DictState

NOW = 1_700_000_000_000
RULES = Rules(
    policy=PolicyConfig(origin_topics=("orders", "gone")),
    profiles=("native",),
    app_id="app",
    status_topic="app-status",
    owner="spark",
    query_began_ms=NOW - 1,
)


FORBIDDEN = TopicMetadata(2**31 - 1, 1_048_588, "unauthorised")
"""The metadata of a topic that may not be described."""


class World:
    """A partition, and a broker that knows some topics."""

    def __init__(self, **topics: TopicMetadata) -> None:
        self.state = DictState()
        self.topics = topics or {"orders": TopicMetadata(2, 1_000_000)}
        self.asked: list[str] = []
        self.offset = 0
        self.now_ms = NOW
        self.rules = RULES
        self.replay_closings = ReplayClosings()

    @property
    def steps(self) -> PartitionSteps:
        return PartitionSteps(self.rules, [DIALECTS["native"]], self._lookup, self.replay_closings)

    def _lookup(self, names: Iterable[str]) -> Mapping[str, TopicMetadata]:
        found = {}
        for name in names:
            self.asked.append(name)
            topic = self.topics.get(name, TopicMetadata(0, 0))
            forbidden_ms = self.now_ms if topic is FORBIDDEN else 0
            found[name] = msgspec.structs.replace(topic, asked_ms=self.now_ms, forbidden_ms=forbidden_ms)
        return found

    def record(self, *headers: tuple[str, bytes | None], value: bytes | None = b"v") -> Record:
        came: Headers = list(headers)
        self.offset += 1
        return Record(0, self.offset - 1, self.now_ms, b"k", value, came)

    def step(self, *records: Record, wait_ms: int = 1000) -> StepResult | None:
        self.now_ms += wait_ms
        return self.step_again(*records)

    def step_again(self, *records: Record) -> StepResult | None:
        """Run another step at the same instant, as Spark does when it runs a micro-batch again."""
        chunks = [encode_chunk(Chunk([], [each])) for each in reversed(records)]
        return self.steps.step(0, self.state, chunks, self.now_ms)

    def settle(self, *records: Record) -> list[OutputPart]:
        """Run steps until none is due at once."""
        sent: list[OutputPart] = []
        result = self.step(*records)
        while result is not None:
            sent += result.output_parts
            if result.wakes_ms > self.now_ms + 1:
                return sent
            result = self.step(wait_ms=1)
        return sent


def order(delay_ms: int, *more: tuple[str, bytes | None]) -> tuple[tuple[str, bytes | None], ...]:
    return (("retry-origin-topic", b"orders"), ("retry-delay-ms", b"%d" % delay_ms), *more)


def outgoing(sent: Iterable[OutputPart]) -> list[tuple[str, bytes | None]]:
    return [(each.topic, dict(each.headers).get("retry-dlq-reason")) for part in sent for each in part.records]


def view(sent: Iterable[OutputPart]) -> dict[str, object]:
    status_records = [
        status_record for part in sent for status_record in part.status_records if status_record.key == b"p/0"
    ]
    answer: dict[str, object] = json.loads(status_records[-1].value)
    return answer


def test_a_message_waits_until_it_is_due_and_fires_to_its_origin() -> None:
    world = World()
    sent = world.settle(world.record(*order(5000)))
    assert outgoing(sent) == []
    assert view(sent)["pending"] == 1
    early = world.step(wait_ms=3000)
    assert early is not None
    assert outgoing(early.output_parts) == []
    assert early.wakes_ms <= NOW + 5001
    late = world.step(wait_ms=2000)
    assert late is not None
    (fired,) = late.output_parts[0].records
    assert (fired.topic, fired.key, fired.value) == ("orders", b"k", b"v")
    assert dict(fired.headers)["retry-timer-id"] == b"0-0-%d" % (NOW + 5000)
    assert late.output_parts[0].next_input_offset == 1
    assert view(late.output_parts)["pending"] == 0
    assert late.tally.fired == {"orders": 1}
    assert late.tally.late == {1025: 1}


def test_records_behind_an_origin_that_is_not_known_yet_wait_with_it_and_keep_their_order() -> None:
    world = World()
    first = world.step(world.record(("no", b"header")), world.record(*order(0)), world.record(("none", b"x")))
    assert first is not None
    assert outgoing(first.output_parts) == [("dlq", b"missing-header")]
    assert first.output_parts[0].next_input_offset == 1
    assert first.wakes_ms == world.now_ms + 1
    second = world.step(wait_ms=1)
    assert second is not None
    assert outgoing(second.output_parts) == [("dlq", b"missing-header"), ("orders", None)]
    assert second.output_parts[-1].next_input_offset == 3


def test_a_topic_that_does_not_exist_is_a_dead_letter_by_a_fresh_answer() -> None:
    world = World()
    sent = world.settle(world.record(("retry-origin-topic", b"gone")), world.record(("retry-origin-topic", b"other")))
    assert sorted(outgoing(sent)) == [("dlq", b"origin-not-allowed"), ("dlq", b"origin-unknown")]


def test_a_step_that_is_run_again_says_the_same_though_the_topics_have_changed() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    before = dict(world.state.entries)
    now_ms = world.now_ms + 3000
    once = world.steps.step(0, world.state, [], now_ms)
    world.state.entries = before
    world.topics = {}
    second = world.steps.step(0, world.state, [], now_ms)
    assert once is not None
    assert second is not None
    assert once.output_parts == second.output_parts


def test_what_is_due_for_a_topic_that_vanished_is_deferred_and_fires_when_it_is_there_again() -> None:
    world = World()
    world.settle(world.record(*order(100_000)))
    there = world.topics
    world.topics = {}
    world.step(wait_ms=50_000)
    result = world.step(wait_ms=60_000)
    assert result is not None
    assert outgoing(result.output_parts) == []
    assert result.tally.deferred == {"orders": 1}
    assert view(result.output_parts)["closed_origins"] == {"orders": ["vanished", NOW + 111_000 + 1]}
    world.topics = there
    world.step(wait_ms=6_000)
    sent = world.settle()
    for _ in range(4):
        world.now_ms += 10_000
        sent += world.settle()
    assert outgoing(sent) == [("orders", None)]


def test_a_stopped_group_fires_nothing_over_steps_and_says_so_until_it_is_resumed() -> None:
    world = World()
    stop = world.record(*render_control(ControlKind.STOP, "*", "c-1"))
    world.settle(stop, world.record(*order(2_000)))
    result = world.step(wait_ms=60_000)
    assert result is not None
    assert outgoing(result.output_parts) == []
    assert view(result.output_parts)["closed_origins"] == {"*": ["stopped", stop.timestamp_ms + 1_000]}
    sent = world.settle(world.record(*render_control(ControlKind.RESUME, "*", "c-2")))
    for _ in range(12):
        world.now_ms += 10_000
        sent += world.settle()
    assert outgoing(sent) == [("orders", None)]


def test_an_instant_has_one_step() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    assert world.step(wait_ms=0) is None


def test_counts_are_published_though_nothing_happens() -> None:
    world = World()
    first = world.step()
    assert first is not None
    assert view(first.output_parts)["state"] == "running"
    assert view(first.output_parts)["restored_ms"] == RULES.query_began_ms, "figures of an earlier owner are older"
    quiet = world.step(wait_ms=500)
    assert quiet is not None
    assert quiet.output_parts == []
    assert quiet.wakes_ms == first.wakes_ms
    assert world.step(wait_ms=3000).output_parts  # type: ignore[union-attr]  # each instant has a step


def test_the_state_says_which_engine_wrote_it() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    assert decode_meta(world.state.entries[META]).checkpoint.engine is Engine.SPARK


def refused(world: World, *closings: Closing, wait_ms: int = 1000) -> tuple[StepResult, StepResult]:
    """Run a step twice: as first decided, and as decided after topics have refused its records."""
    before = dict(world.state.entries)
    first = world.step(wait_ms=wait_ms)
    assert first is not None
    world.state.entries = before
    world.replay_closings = ReplayClosings(world.now_ms, (), closings)
    second = world.step_again()
    world.replay_closings = ReplayClosings()
    assert second is not None
    return first, second


SILENT = Closing("orders", "unreachable", -1)


def test_what_an_origin_refuses_is_deferred_and_fires_when_the_origin_takes_it() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    first, second = refused(world, SILENT, wait_ms=3000)
    assert outgoing(first.output_parts) == [("orders", None)]
    assert outgoing(second.output_parts) == []
    assert second.tally.deferred == {"orders": 1}
    assert view(second.output_parts)["closed_origins"] == {"orders": ["unreachable", world.now_ms]}
    assert view(second.output_parts)["pending"] == 1
    assert second.output_parts[-1].closings == [SILENT]
    sent: list[OutputPart] = []
    for _ in range(4):
        sent += [part for part in world.settle() if not part.ahead]
        world.now_ms += 5_000
    assert outgoing(sent) == [("orders", None)]
    assert not decode_meta(world.state.entries[META]).topics["orders"].refused


def test_an_origin_that_refuses_again_stays_closed_for_longer_and_since_the_first_time() -> None:
    world = World()
    world.settle(world.record(*order(2000)))
    refused(world, SILENT, wait_ms=3000)
    since_ms = world.now_ms
    world.step(wait_ms=5_000)
    closed = []
    for _ in range(3):
        while True:
            world.now_ms += 1_000
            before = dict(world.state.entries)
            result = world.step_again()
            if result is not None and outgoing(result.output_parts):
                break
        world.state.entries = before
        world.replay_closings = ReplayClosings(world.now_ms, (), [SILENT])
        assert world.step_again() is not None
        world.replay_closings = ReplayClosings()
        topic = decode_meta(world.state.entries[META]).topics["orders"]
        closed.append(topic.closed_ms)
        assert topic.since_ms == since_ms
    assert closed == [20_000, 40_000, 80_000]


def test_a_closure_ends_when_its_origin_is_seen_open_though_nothing_is_due() -> None:
    world = World()
    world.settle(world.record(*order(3_600_000)))
    there = world.topics
    world.topics = {}
    for _ in range(4):
        world.step(world.record(("no", b"header")), wait_ms=16_000)
    assert decode_meta(world.state.entries[META]).checkpoint.closed.keys() == {"orders"}
    world.topics = there
    for _ in range(4):
        world.step(wait_ms=16_000)
    assert not decode_meta(world.state.entries[META]).checkpoint.closed


def test_an_origin_that_refuses_for_longer_than_origin_timeout_is_given_up() -> None:
    world = World()
    world.rules = replace(RULES, origin_timeout_ms=60_000)
    world.settle(world.record(*order(2000)))
    refused(world, SILENT, wait_ms=3000)
    sent: list[OutputPart] = []
    for _ in range(40):
        world.now_ms += 3_000
        before = dict(world.state.entries)
        result = world.step_again()
        if result is not None and ("orders", None) in outgoing(result.output_parts):
            world.state.entries = before
            world.replay_closings = ReplayClosings(world.now_ms, (), [SILENT])
            result = world.step_again()
            world.replay_closings = ReplayClosings()
        sent += result.output_parts if result is not None else []
    assert outgoing(sent) == [("dlq", b"unfireable")]


def test_a_dlq_that_cannot_be_written_holds_ingest_and_what_is_due_fires() -> None:
    world = World(orders=TopicMetadata(2, 1_000_000), dlq=TopicMetadata(1, 1_000_000))
    world.settle(world.record(*order(9000)))
    bad, good = world.record(("no", b"header")), world.record(*order(0))
    world.now_ms += 1000
    before = dict(world.state.entries)
    first = world.step_again(bad, good)
    assert first is not None
    assert outgoing(first.output_parts) == [("dlq", b"missing-header"), ("orders", None)]
    world.state.entries = before
    world.replay_closings = ReplayClosings(world.now_ms, (), [Closing("dlq", "unreachable", -1)])
    second = world.step_again(bad, good)
    world.replay_closings = ReplayClosings()
    assert second is not None
    assert outgoing(second.output_parts) == []
    assert second.wakes_ms > world.now_ms + 1
    due = world.step(wait_ms=8500)
    assert due is not None
    assert outgoing(due.output_parts) == [("orders", None)]
    assert view(due.output_parts)["reason"] == "the DLQ dlq cannot be written"
    world.now_ms += 5_000
    assert outgoing(world.settle()) == [("dlq", b"missing-header"), ("orders", None)]


def test_what_a_step_has_committed_stands_when_a_later_plan_of_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "DELIVERIES_MAX", 2)
    world = World()
    world.settle(*(world.record(*order(2000), value=b"%d" % at) for at in range(5)))
    before = decode_meta(world.state.entries[META]).checkpoint.sequence
    first, second = refused(world, Closing("orders", "unreachable", before + 1), wait_ms=3000)
    assert [len(part.records) for part in first.output_parts] == [2, 2, 1]
    assert [len(part.records) for part in second.output_parts][:2] == [2, 0]
    assert first.output_parts[0] == second.output_parts[0]
    assert second.tally.deferred == {"orders": 3}
    assert [digest(first.output_parts[:at]) == digest(second.output_parts[:at]) for at in (1, 2)] == [True, False]


def test_more_topics_than_a_mark_has_room_for_close_them_all_for_that_step() -> None:
    world = World(orders=TopicMetadata(2, 1_000_000), gone=TopicMetadata(2, 1_000_000))
    world.settle(world.record(*order(2000)), world.record(("retry-origin-topic", b"gone"), ("retry-delay-ms", b"2000")))
    _, second = refused(world, Closing(ALL, "unreachable", -1), wait_ms=3000)
    assert second.tally.deferred == {"orders": 1, "gone": 1}


def digest(output_parts: Iterable[OutputPart]) -> str:
    found = Digest()
    for part in output_parts:
        found.add(pack(part.records), part.status_records)
    return str(found)


def test_a_partition_whose_state_cannot_be_read_stops_and_keeps_what_comes() -> None:
    world = World()
    world.settle(world.record(*order(4000)))
    good = world.state.entries[META]
    world.state.entries[META] = good[:-3]
    stopped = world.step(world.record(*order(0)))
    assert stopped is not None
    assert view(stopped.output_parts)["state"] == "stopped"
    assert "does not decode" in stopped.tally.stopped[0]
    assert [each.before == each.after for each in stopped.output_parts] == [True]
    for _ in range(3):
        assert outgoing(world.step(world.record(*order(0)), wait_ms=20_000).output_parts) == []  # type: ignore[union-attr]  # each instant has a step
    world.state.entries[META] = good
    assert outgoing(world.step(wait_ms=30_000).output_parts) == []  # type: ignore[union-attr]  # as above
    world.now_ms += 60_000
    assert outgoing(world.settle()) == [("orders", None)] * 5
    assert STOPPED not in world.state.entries


def test_a_step_that_fails_half_way_has_written_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.settle(world.record(*order(4000)), world.record(*order(8000)))
    slots = sorted(each for each in world.state.entries if each[:1] == b"b" and each[1] == 0)
    state_key, good = slots[-1], world.state.entries[slots[-1]]
    world.state.entries[state_key] = good[:-1] + bytes([good[-1] ^ 1])
    before = dict(world.state.entries)
    monkeypatch.setattr(step, "DELIVERIES_MAX", 1)
    assert world.step(world.record(*order(500_000)), wait_ms=9000).tally.stopped  # type: ignore[union-attr]  # as above
    changed = {each for each in {*world.state.entries, *before} if world.state.entries.get(each) != before.get(each)}
    assert {each[:1] for each in changed} == {b"x", b"w", b"i"}
    world.state.entries[state_key] = good
    world.now_ms += 60_000
    assert outgoing(world.settle()) == [("orders", None)] * 2


def test_what_is_due_for_a_dlq_that_cannot_be_written_is_deferred() -> None:
    world = World(orders=TopicMetadata(2, 1_000_000), dlq=TopicMetadata(1, 1_000_000))
    world.settle(world.record(*order(30_000)))
    world.topics["orders"] = TopicMetadata(2, 100)
    world.step(wait_ms=20_000)
    first, second = refused(world, Closing("dlq", "unreachable", -1), wait_ms=15_000)
    assert outgoing(first.output_parts) == [("dlq", b"too-large")]
    assert outgoing(second.output_parts) == []
    assert second.tally.deferred == {"orders": 1}
    sent: list[OutputPart] = []
    for _ in range(5):
        world.now_ms += 5_000
        sent += world.settle()
    assert outgoing(sent) == [("dlq", b"too-large")]


def test_what_is_more_than_a_step_ingests_waits_for_the_next_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "INGEST_BYTES_MAX", 1_000)
    world = World()
    world.settle(world.record(*order(0), value=b"first"))
    records = [world.record(*order(0), value=b"%d" % at + b"x" * 300) for at in range(20)]
    sizes = []
    result = world.step(*records)
    while result is not None:
        sizes.append([int((each.value or b"").rstrip(b"x")) for part in result.output_parts for each in part.records])
        if result.wakes_ms > world.now_ms + 1:
            break
        result = world.step(wait_ms=1)
    assert [value for part in sizes for value in part] == list(range(20))
    assert max(map(len, sizes)) <= 3
    assert not [each for each in world.state.entries if each[:1] == b"i"]


def test_the_bounds_hold_for_a_state_partition_however_many_inputs_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "DELIVERIES_MAX", 10)
    world = World()
    world.settle(*(world.record(*order(2000)) for _ in range(60)))
    world.rules = replace(RULES, input_partitions=64, state_partitions=2)
    result = world.step(wait_ms=3000)
    assert result is not None
    fired = len(outgoing(result.output_parts))
    assert 0 < fired * 32 <= step.SHARING * step.PLANS_MAX * step.DELIVERIES_MAX
    assert result.wakes_ms == world.now_ms + 1
