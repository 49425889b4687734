"""What users of other retry systems lost messages by: here each of them arrives, or is on the DLQ, or is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from sidecar.contract.sizes import record_bytes
from tests.simulation.fakes.timeline import START_MS
from tests.simulation.limits import small_limits
from tests.simulation.shell.ledger import Fate, Sent
from tests.simulation.shell.senders import ORDERS
from tests.simulation.shell.story import quiet
from tests.simulation.shell.world import CHANGELOG, DLQ, INPUT, Mode, World

SEED: Final = 97
"""Of a calm world without settings of its own: one process, one partition of the retry topic."""
LONG_S: Final = 60.0
LIMIT_BYTES: Final = 4_000
SLOTS_MIN: Final = 70
"""All slots of the first level and one of the second one are over by then."""
MONTHS_S: Final = 100 * 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with small_limits(), quiet() as told:
        world = World(SEED, [], tmp_path)
        assert (world.mode, len(world.processes), len(world.cluster.topics[INPUT].logs)) == (Mode.CALM, 1, 1)
        told.append(world)
        world.wait(LONG_S, lambda: "readiness_gained" in world.trace[-1])
        yield world
        world.processes[0].kill()


def send(world: World, **changes: object) -> Sent:
    """Send a good message that is due in a second, or another one."""
    now_ms = world.timeline.now_ms()
    sent = world.senders.good(now_ms)
    sent.origin, sent.key, sent.value, sent.due_ms = ORDERS, b"k", b"v", now_ms + 1_000
    for name, value in changes.items():
        setattr(sent, name, value)
    sent.headers[:2] = [("retry-origin-topic", sent.origin.encode()), ("retry-due-ms", b"%d" % sent.due_ms)]
    world.write(sent)
    return sent


def await_out(world: World, *messages: Sent) -> list[str]:
    """Return the topics to which messages went, each to one."""
    latest_s = max(world.timeline.now_s, *((each.due_ms - START_MS) / 1_000 for each in messages))
    world.wait(latest_s - world.timeline.now_s + LONG_S, lambda: all(each.out for each in messages))
    return [topic for each in messages for topic, _ in each.out]


def stopped_for(world: World, seconds: float, meanwhile: Callable[[], None] = lambda: None) -> None:
    """Have no sidecar run for so long."""
    (process,) = world.processes
    process.stop()
    meanwhile()
    world.timeline.advance(seconds)
    process.start()


def reason_of(world: World, letter: int = -1) -> bytes | None:
    """Return why the last dead letter died."""
    letters = [each for log in world.cluster.topics[DLQ].logs for each in log.entries if each.is_visible]
    return dict(letters[letter].row.headers)["retry-dlq-reason"]


def test_the_largest_message_fires_with_our_headers_or_is_on_the_dlq_as_too_large(world: World) -> None:
    world.cluster.topics[ORDERS].max_bytes = LIMIT_BYTES
    bare = send(world)
    rest = LIMIT_BYTES - record_bytes(bare.key, b"", bare.headers)
    random = world.rng.randbytes(rest)  # compressing it saves nothing
    largest = send(world, value=random, fate=Fate.DEAD)
    smaller = send(world, value=random[:-300])
    assert await_out(world, bare, largest, smaller) == [ORDERS, DLQ, ORDERS]
    assert reason_of(world) == b"too-large"


def test_a_delay_longer_than_the_retention_of_the_retry_topic_fires_from_the_changelog(world: World) -> None:
    sent = send(world, due_ms=world.timeline.now_ms() + int(MONTHS_S * 1_000))
    world.wait(5.0)
    log = world.cluster.topics[INPUT].logs[0]
    log.cut(log.end)
    assert not log.entries
    world.processes[0].disk.wipe()
    stopped_for(world, MONTHS_S - 30.0)
    assert await_out(world, sent) == [ORDERS]


@pytest.mark.parametrize("delay", [2**31, 2**63 - 1, 2**63, 2**64, 10**30], ids=lambda delay: f"{delay:.0e}")
def test_a_delay_that_overflows_is_on_the_dlq_and_never_fires_at_once(world: World, delay: int) -> None:
    is_long = delay < 365 * 86_400_000
    sent = send(world, fate=Fate.FIRED if is_long else Fate.DEAD)
    sent.headers[1] = ("retry-delay-ms", b"%d" % delay)
    if is_long:
        sent.due_ms = world.timeline.now_ms() + delay
    behind = send(world)
    world.wait(LONG_S, lambda: bool(behind.out))
    assert [topic for topic, _ in behind.out] == [ORDERS]
    assert [topic for topic, _ in sent.out] == ([] if is_long else [DLQ])
    assert is_long or reason_of(world) in {b"delay-out-of-range", b"bad-header"}


def test_an_outage_longer_than_any_slot_that_was_begun_loses_nothing_and_fires_nothing_twice(world: World) -> None:
    now_ms = world.timeline.now_ms()
    dues_ms = [now_ms + seconds * 1_000 for seconds in (1, 2, 63, 64, 65, 128, 3_600, 4_000)]
    sent = [send(world, due_ms=due_ms) for due_ms in dues_ms]
    world.wait(0.5)
    stopped_for(world, SLOTS_MIN * 60.0)
    assert await_out(world, *sent) == [ORDERS] * len(sent)


def test_a_retention_that_ends_before_what_was_read_is_counted_and_the_rest_fires(world: World) -> None:
    before = send(world)
    await_out(world, before)
    log = world.cluster.topics[INPUT].logs[0]

    def meanwhile() -> None:
        for _ in range(3):
            send(world)
        world.ledger.deleted(0, log.end)
        log.cut(log.end)

    stopped_for(world, LONG_S, meanwhile)
    behind = send(world)
    assert await_out(world, behind) == [ORDERS]
    (said,) = [line for line in world.trace if "input_records_gone" in line]
    assert f"wanted={before.offset + 1} log_start={behind.offset}" in said.replace("partition=0 ", "")


def test_a_commit_without_a_marker_in_the_changelog_is_not_rolled_back_by_the_next_failure(world: World) -> None:
    cluster, orders = world.cluster, world.cluster.topics[ORDERS]
    later = send(world, due_ms=world.timeline.now_ms() + 30_000)
    world.wait(5.0)
    cluster.markers_wait = True
    overdue = send(world, due_ms=world.timeline.now_ms() - 1)
    world.wait(5.0, lambda: cluster.leave_open(CHANGELOG, 0, fences=False) == 1)
    cluster.markers_wait = False
    assert len(overdue.out) == 1
    world.wait(20.0)
    orders.may_write = False
    world.wait(10.0, lambda: "transaction_failed" in world.trace[-1])
    orders.may_write = True
    assert await_out(world, later) == [ORDERS]
    world.wait(LONG_S)
    assert [topic for topic, _ in overdue.out] == [ORDERS]
    assert any("transaction_left_open" in line for line in world.trace)
