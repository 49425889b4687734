"""What a step plans ahead is what the next step begins with, to the byte, whatever happens in between."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from sidecar.changelog.entry import KEY
from sidecar.contract.control import ControlKind, render_control
from sidecar.model import Headers
from sidecar.spark.handover.import_export import with_what_is_sent
from sidecar.spark.marks import Digest, Mark, ReplayClosings
from sidecar.spark.state.entries import META, decode_meta
from sidecar.spark.stream import step, topic_metadata
from sidecar.spark.stream.horizon import AHEAD_MS_MAX, SLICE_MS
from sidecar.spark.stream.step import StepResult
from sidecar.spark.stream.topic_metadata import TopicMetadata
from sidecar.spark.stream.wire import Closing, OutputPart, pack
from tests.spark.stream.test_partition_step import NOW, World, order, outgoing

PACE_MS = 1000


def warm(world: World) -> None:
    """Let the partition learn its origin and its pace."""
    world.settle(world.record(*order(20_000)))
    for _ in range(5):
        world.step(wait_ms=PACE_MS)


def soon(in_ms: int, *more: tuple[str, bytes | None], wait_ms: int = PACE_MS) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers of a message that is due so long after the next step."""
    return order(in_ms + wait_ms, *more)


def ahead(result: StepResult | None) -> list[OutputPart]:
    return [] if result is None else [part for part in result.output_parts if part.ahead]


def regular(result: StepResult | None) -> list[OutputPart]:
    return [] if result is None else [part for part in result.output_parts if not part.ahead]


def digests(parts: Iterable[OutputPart]) -> list[tuple[int, str]]:
    digest, found = Digest(), []
    for part in parts:
        digest.add(pack(part.records), part.status_records)
        found.append((part.after, str(digest)))
    return found


def test_what_comes_due_before_the_next_step_is_handed_out_and_never_before_its_due() -> None:
    world = World()
    warm(world)
    result = world.step(*(world.record(*soon(in_ms)) for in_ms in (150, 180, 420, 1400, 1700)))
    handed = ahead(result)
    assert [len(part.records) for part in handed] == [2, 1, 1]  # of 1,700 ms is behind the horizon
    for part in handed:
        last_ms = max(record.due_ms for record in part.records)
        assert last_ms <= part.release_ms < last_ms + SLICE_MS
    assert [(part.before, part.after) for part in handed] == [
        (handed[0].before + at, handed[0].before + at + 1) for at in range(3)
    ]


def test_the_next_step_begins_with_what_was_handed_out_though_the_topics_have_changed() -> None:
    world = World(orders=TopicMetadata(2, 1_000_000), gone=TopicMetadata(1, 1_000_000))
    warm(world)
    handed = ahead(world.step(*(world.record(*soon(in_ms)) for in_ms in (150, 300, 900))))
    world.topics = {}  # the broker has none of them any more
    following = regular(world.step(world.record(*soon(50, wait_ms=400)), wait_ms=400))
    assert digests(following[: len(handed)]) == digests(handed)
    assert [part.release_ms for part in following[: len(handed)]] == [part.release_ms for part in handed]
    assert following[-1].last
    for part in following:
        assert part.release_ms >= max((record.due_ms for record in part.records), default=0), "the sink waits for it"
        assert bool(part.release_ms) == bool(part.records)
    assert len(outgoing(following)) == 3


def test_what_the_broker_says_of_a_topic_at_the_end_of_a_step_counts_behind_what_that_step_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_metadata, "REFRESH_MS", 0)
    world = World()
    warm(world)
    world.topics["orders"] = TopicMetadata(2, 1_000_000, "unreachable")
    handed = ahead(world.step(*(world.record(*soon(in_ms)) for in_ms in (150, 900))))
    assert len(outgoing(handed)) == 2
    following = world.step(world.record(*soon(-100)))
    assert following is not None
    assert digests(regular(following)[:2]) == digests(handed)
    assert following.tally.deferred == {"orders": 1}


def test_a_step_that_is_repeated_hands_out_the_same() -> None:
    world = World()
    warm(world)
    before = copy.deepcopy(world.state)
    records = [world.record(*soon(in_ms)) for in_ms in (0, 150, 300, 900)]
    once = world.step(*records)
    after, world.state, world.topics = world.state, before, {}
    again = world.step_again(*records)
    assert digests(regular(once)) == digests(regular(again))
    assert digests(ahead(once)) == digests(ahead(again))
    metas = [decode_meta(state.get(META) or b"") for state in (after, world.state)]
    assert metas[0].ahead_ms == metas[1].ahead_ms > 0


def test_what_was_handed_out_cannot_be_cancelled_and_the_answer_says_so() -> None:
    world = World()
    warm(world)
    first = world.record(*soon(300, ("retry-id", b"a")))
    later = world.record(*soon(5000, ("retry-id", b"b")))
    handed = ahead(world.step(first, later))
    assert len(handed) == 1
    cancels = [world.record(*render_control(ControlKind.CANCEL, name, f"c-{name!r}")) for name in (b"a", b"b")]
    result = world.step(*cancels, wait_ms=100)
    assert result is not None
    assert (result.tally.cancelled, sum(result.tally.fired.values())) == (1, 1)
    outcomes = [each.value for part in result.output_parts for each in part.status_records if each.key[:2] == b"o/"]
    assert [b"not-pending" in value for value in outcomes] == [True, False]


def test_what_is_fired_by_command_is_not_held_until_it_is_due() -> None:
    world = World()
    warm(world)
    world.step(*(world.record(*soon(in_ms, ("retry-id", name))) for in_ms, name in ((3_600_000, b"a"), (5_000, b"b"))))
    fire = world.record(*render_control(ControlKind.FIRE, b"a", "c-1"))
    result = world.step(fire, wait_ms=5_500)
    dues_ms = sorted(record.due_ms for part in regular(result) for record in part.records)
    assert len(dues_ms) == 2
    assert dues_ms[1] - dues_ms[0] > 3_000_000
    assert max(part.release_ms for part in regular(result)) == dues_ms[0], "the other one is held, as any that is due"


def test_a_message_that_comes_due_within_what_was_handed_out_is_sent_soon_behind_it() -> None:
    world = World()
    warm(world)
    (part,) = ahead(world.step(world.record(*soon(1400))))
    handed = ahead(world.step(world.record(*soon(200, wait_ms=500)), wait_ms=500))
    assert len(outgoing(handed)) == 1
    assert handed[0].release_ms <= part.release_ms + SLICE_MS


def test_what_is_more_than_a_delivery_is_not_handed_out() -> None:
    world = World()
    warm(world)
    world.step(world.record(*order(5000)), world.record(*order(4800)))
    world.topics["orders"] = TopicMetadata(2, 1_000_000, "unreachable")
    refused = ReplayClosings(world.now_ms + 4000, (), [Closing("orders", "unreachable", -1)])
    world.replay_closings = refused
    result = world.step(world.record(*soon(300, wait_ms=4000)), wait_ms=4000)
    assert result is not None
    assert (result.tally.deferred, ahead(result)) == ({"orders": 2}, [])
    after = world.step(wait_ms=1000)
    assert after is not None
    assert after.tally.deferred == {"orders": 1}


def test_no_more_is_handed_out_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "AHEAD_DELIVERIES_MAX", 5)
    world = World()
    warm(world)
    handed = ahead(world.step(*(world.record(*soon(150 + 100 * (at // 2))) for at in range(20))))
    assert [len(part.records) for part in handed] == [2, 2]
    assert len(outgoing(regular(world.step(wait_ms=AHEAD_MS_MAX)))) == 20


def test_a_herd_is_planned_once_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "AHEAD_BYTES_MAX", 1_000)
    world = World()
    warm(world)
    herd = [world.record(*soon(150 + 10 * at)) for at in range(40)]
    handed = ahead(world.step(*herd[:1]))
    result = world.step(*herd[1:], wait_ms=1)
    assert (len(outgoing(handed)), ahead(result), len(outgoing(regular(result)))) == (1, [], 1)
    assert len(outgoing(regular(world.step(wait_ms=AHEAD_MS_MAX)))) == 39


def test_a_partition_without_a_pace_or_with_more_to_do_plans_nothing_ahead() -> None:
    world = World()
    assert ahead(world.step(world.record(*soon(100)))) == []
    world.rules = step.Rules(**{**{f: getattr(world.rules, f) for f in world.rules.__slots__}, "ahead": False})
    warm(world)
    assert ahead(world.step(world.record(*soon(100)))) == []


def test_an_export_leaves_out_what_was_sent_ahead_of_the_state() -> None:
    """A query that was cut off, or whose topic was replaced, has no last micro-batch that takes it over."""
    world = World()
    warm(world)
    first, *others = ahead(world.step(*(world.record(*soon(in_ms)) for in_ms in (150, 160, 400, 900))))
    standing = decode_meta(world.state.get(META) or b"").checkpoint
    mark = Mark(standing.sequence, "checkpoint", 7, ahead=1, ahead_ms=first.release_ms)
    after = with_what_is_sent(standing, mark)
    assert (after.sequence, after.has_fired) == (standing.sequence + 1, True)
    watermark = KEY.pack(after.watermark_ms, after.watermark_offset)
    assert all(record.source <= watermark for record in first.records)
    assert all(record.source > watermark for part in others for record in part.records)
    following = regular(world.step())[0]
    assert (following.after, len(following.records)) == (after.sequence, 2)
    for other in (None, replace(mark, sequence=standing.sequence - 1), replace(mark, ahead=0)):
        assert with_what_is_sent(standing, other) == standing


@pytest.mark.parametrize("seed", range(25))
def test_in_random_worlds_each_message_is_sent_once_and_what_was_handed_out_is_what_follows(seed: int) -> None:
    chance = random.Random(seed)
    world = World()
    warm(world)
    handed: list[OutputPart] = []
    sent: list[bytes] = []
    came = 0
    for _ in range(40):
        records = []
        for _ in range(chance.choice((0, 0, 1, 5, 20))):
            more: Headers = [("retry-id", b"%d" % chance.randrange(5))] if chance.random() < 0.2 else []
            records.append(world.record(*order(chance.choice((0, 1, 90, 400, 1000, 3000, 70_000))), *more))
        came += len(records)
        wait_ms = chance.choice((1, 200, 500, 1100, 4000))
        before = copy.deepcopy(world.state)
        result = world.step(*records, wait_ms=wait_ms)
        if chance.random() < 0.3:
            world.state = before
            again = world.step_again(*records)
            assert digests(regular(again)) == digests(regular(result))
            assert digests(ahead(again)) == digests(ahead(result))
        if result is None:
            continue
        following = regular(result)
        assert digests(following[: len(handed)]) == digests(handed)
        sent += [dict(each.headers)["retry-timer-id"] for part in following for each in part.records]  # type: ignore[misc]
        handed = ahead(result)
        for part in handed:
            assert all(record.due_ms <= part.release_ms for record in part.records)
    for _ in range(30):
        result = world.step(wait_ms=5000)
        sent += [dict(each.headers)["retry-timer-id"] for part in regular(result) for each in part.records]  # type: ignore[misc]
    assert len(sent) == len(set(sent)) == came + 1
    assert world.now_ms > NOW
