"""Control records on a real broker: each outcome is true, wherever it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome
from sidecar.control.client import ControlClient
from sidecar.model import TimerId
from sidecar.settings import Settings
from tests.broker import read_committed
from tests.integration.killable import command, set_clock
from tests.integration.messages import Given, Launch, Pairs, World, marked, now_ms, one_sidecar, scrape, send
from tests.integration.sidecars import READY_S, Sidecars, Stage
from tests.waiting import eventually

DEADLINE_S = 60.0
FAR_MS = 3_600_000
TOKEN = "a-token-of-the-tests"

pytestmark = pytest.mark.broker


class EarlierClock(SystemClock):
    """Wall time so many seconds ago."""

    def __init__(self, by_s: int) -> None:
        self._by_ms = by_s * 1_000

    def wall_ms(self) -> int:
        return super().wall_ms() - self._by_ms


def settings_of(stage: Stage, token: str | None = None) -> Settings:
    return Settings(
        bootstrap_servers=stage.bootstrap,
        streams_app_id=stage.app_id,
        input_topic=stage.input_topic,
        dlq_topic=stage.dlq_topic,
        api_token=token,
    )


@pytest.fixture(scope="module")
def world(bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with one_sidecar(bootstrap, tmp_path_factory.mktemp("control")) as made:
        yield made


@pytest.fixture(scope="module")
def client(world: World) -> Iterator[ControlClient]:
    with ControlClient(settings_of(world.stage)) as made:
        yield made


def message(stage: Stage, marker: bytes, due_ms: int, *more: tuple[str, bytes | None], partition: int = 0) -> Given:
    headers: Pairs = [("retry-origin-topic", stage.origin.encode()), ("retry-due-ms", b"%d" % due_ms)]
    return Given(headers=[*headers, ("test", marker), *more], partition=partition)


def put(world: World, marker: bytes, due_ms: int, *more: tuple[str, bytes | None], partition: int = 0) -> TimerId:
    """Send a message and return its timer id."""
    (sent,) = world.send(message(world.stage, marker, due_ms, *more, partition=partition))
    return TimerId(sent.partition, sent.offset, due_ms)


def delivered(stage: Stage, marker: bytes) -> int:
    """Return how many have come back by now."""
    return len(marked(read_committed(stage.bootstrap, [stage.origin]), marker))


def test_what_is_cancelled_before_it_is_due_is_never_delivered(bootstrap: str, tmp_path: Path) -> None:
    offset = tmp_path / "offset"
    launch = Launch(command(clock_offset=offset), READY_S)
    with (
        one_sidecar(bootstrap, tmp_path, launch=launch, MAX_CLOCK_SKEW="1d") as world,
        ControlClient(settings_of(world.stage)) as client,
    ):
        due_ms = now_ms() + FAR_MS
        timer = put(world, b"cancelled", due_ms)
        put(world, b"behind the cancelled one", due_ms + 1_000)
        result = client.act(ControlKind.CANCEL, timer, deadline_s=DEADLINE_S)
        assert (result.outcome, result.count, result.missing) == (Outcome.CANCELLED, 1, ())
        set_clock(offset, 2 * FAR_MS)
        world.fired(b"behind the cancelled one")
        assert delivered(world.stage, b"cancelled") == 0


def test_a_partition_that_does_not_exist_holds_nothing(client: ControlClient) -> None:
    assert client.act(ControlKind.CANCEL, TimerId(99, 0, 0), deadline_s=DEADLINE_S).outcome is Outcome.NOT_PENDING


def test_rescheduled_to_an_earlier_time_it_comes_then(world: World, client: ControlClient) -> None:
    timer = put(world, b"earlier", now_ms() + FAR_MS)
    due_ms = now_ms() + 2_500
    result = client.act(ControlKind.RESCHEDULE, timer, due_ms=due_ms, deadline_s=DEADLINE_S)
    assert (result.outcome, result.count) == (Outcome.RESCHEDULED, 1)
    (fired,) = world.fired(b"earlier")
    assert fired.header("retry-was-due-ms") == b"%d" % due_ms
    assert fired.header("retry-timer-id") == str(timer).encode(), "its id stays"
    assert fired.timestamp_ms >= due_ms


def test_a_control_id_that_is_used_again_keeps_its_first_outcome(world: World, client: ControlClient) -> None:
    timer = put(world, b"twice", now_ms() + FAR_MS)
    first = client.act(ControlKind.CANCEL, timer, control_id="not ours/1", deadline_s=DEADLINE_S)
    again = client.act(ControlKind.CANCEL, timer, control_id="not ours/1", deadline_s=DEADLINE_S)
    assert (first.outcome, again.outcome) == (Outcome.CANCELLED, Outcome.NOT_PENDING)
    found = client.lookup("not ours/1")
    assert found is not None
    assert found.outcome is Outcome.CANCELLED
    assert client.lookup("never sent") is None


def test_what_cannot_be_done_is_answered_and_what_cannot_be_answered_is_a_dead_letter(
    world: World, client: ControlClient
) -> None:
    odd: Pairs = [("retry-control", b"explode"), ("retry-target", b"id:x"), ("test", b"odd")]
    world.send(Given(headers=[*odd, ("retry-control-id", b"odd-1")]), Given(headers=odd))
    (letter,) = world.dead(b"odd")
    assert letter.header("retry-dlq-reason") == b"bad-header"
    found = client.lookup("odd-1")
    assert found is not None
    assert found.outcome is Outcome.BAD_REQUEST
    assert "explode" in found.detail


def test_a_paused_origin_waits_even_through_a_restart_and_a_resumed_one_goes_on(
    stage: Stage, sidecars: Sidecars
) -> None:
    one = sidecars.start("one", stage, INSTANCE_ID="one")
    paused = partial(delivered, stage, b"paused")
    with ControlClient(settings_of(stage)) as client:
        result = client.act(ControlKind.PAUSE, stage.origin, deadline_s=DEADLINE_S)
        assert (result.outcome, len(result.answers)) == (Outcome.PAUSED, stage.partitions)
        send(stage.bootstrap, stage.input_topic, message(stage, b"paused", now_ms() + 500))
        eventually(lambda: one.pending() == 1, DEADLINE_S, "it waits")
        one.stop()
        one.start()
        one.await_ready()
        eventually(lambda: 'state="paused"' in scrape(one), DEADLINE_S, "the metrics say so")
        eventually(lambda: 'deferred_total{origin="' in scrape(one), DEADLINE_S, "it is put off")
        assert paused() == 0
        resumed = client.act(ControlKind.RESUME, stage.origin, deadline_s=DEADLINE_S)
        assert (resumed.outcome, resumed.count) == (Outcome.RESUMED, 1)
        eventually(lambda: paused() == 1, 60.0, "it comes after all")
        eventually(lambda: 'state="paused"' not in scrape(one), DEADLINE_S, "the metrics say so")


def test_with_a_token_only_signed_records_are_obeyed(stage: Stage, sidecars: Sidecars) -> None:
    sidecars.start("one", stage, API_TOKEN=TOKEN)
    due_ms = now_ms() + FAR_MS
    (sent,) = send(stage.bootstrap, stage.input_topic, message(stage, b"x", due_ms))
    timer = TimerId(sent.partition, sent.offset, due_ms)
    outcomes = []
    # The second one waits to the end for an answer that it believes.
    for token, deadline_s in ((None, DEADLINE_S), ("another", DEADLINE_S / 6), (TOKEN, DEADLINE_S)):
        with ControlClient(settings_of(stage, token)) as client:
            outcomes.append(client.act(ControlKind.CANCEL, timer, deadline_s=deadline_s))
    unsigned, strange, signed = outcomes
    assert unsigned.outcome is Outcome.BAD_REQUEST
    assert unsigned.detail.startswith("signature")
    assert strange.outcome is None, "it does not believe an answer that another token signs either"
    assert "not signed with this API_TOKEN" in strange.detail
    assert signed.outcome is Outcome.CANCELLED
    assert client.lookup(signed.control_id) == signed


@pytest.mark.parametrize(("waited_s", "outcome"), [(420, Outcome.CANCELLED), (660, Outcome.BAD_REQUEST)])
def test_a_signed_cancel_that_waited_for_an_owner_acts_or_says_that_it_is_too_old(
    stage: Stage, sidecars: Sidecars, waited_s: int, outcome: Outcome
) -> None:
    due_ms = now_ms() + FAR_MS
    (sent,) = send(stage.bootstrap, stage.input_topic, message(stage, b"x", due_ms))
    timer = TimerId(sent.partition, sent.offset, due_ms)
    one = sidecars.start("one", stage, API_TOKEN=TOKEN)
    eventually(lambda: one.pending() == 1, DEADLINE_S, "it waits")
    one.stop()
    with ControlClient(settings_of(stage, TOKEN), EarlierClock(waited_s)) as client:
        cancel = client.send(ControlKind.CANCEL, timer, deadline_s=DEADLINE_S)
        assert client.lookup(cancel.control_id) is None
        one.start()
        result = client.wait(cancel, deadline_s=2 * DEADLINE_S)
        assert (result.outcome, result.missing) == (outcome, ())
        assert client.lookup(cancel.control_id) == result
    one.await_ready()
    status, told = one.get(f"/control/{cancel.control_id}")
    assert (status, told["result"]) == (200, outcome)
    waits = int(outcome is Outcome.BAD_REQUEST)
    eventually(lambda: one.pending() == waits, DEADLINE_S, f"{waits} wait")
    if outcome is Outcome.BAD_REQUEST:
        assert "was made 6" in told["detail"]
        assert told["detail"].endswith("nothing was done, send it again")


def test_an_outcome_survives_a_kill_behind_the_commit_and_nothing_is_done_twice(
    stage: Stage, sidecars: Sidecars, tmp_path: Path
) -> None:
    one = sidecars.make("one", stage, INSTANCE_ID="one")
    armed = tmp_path / "armed"
    one.start(command(kill_at="committed", armed_by=armed))
    one.await_ready()
    due_ms = now_ms() + FAR_MS
    first, second = send(
        stage.bootstrap, stage.input_topic, message(stage, b"killed", due_ms), message(stage, b"killed", due_ms)
    )
    eventually(lambda: one.pending() == 2, DEADLINE_S, "both wait")
    armed.touch()
    with ControlClient(settings_of(stage)) as client:
        sent = client.send(ControlKind.FIRE, TimerId(first.partition, first.offset, due_ms), deadline_s=DEADLINE_S)
        assert one.wait() == -9
        result = client.wait(sent, deadline_s=DEADLINE_S)
        assert (result.outcome, result.count) == (Outcome.FIRED, 1)
        one.start()
        one.await_ready()
        assert client.lookup(sent.control_id) == result
        other = client.act(ControlKind.FIRE, TimerId(second.partition, second.offset, due_ms), deadline_s=DEADLINE_S)
        assert other.outcome is Outcome.FIRED
        eventually(lambda: one.pending() == 0, DEADLINE_S, "none waits")
    assert delivered(stage, b"killed") == 2


def test_an_id_of_more_messages_than_one_transaction_takes_is_cancelled_to_the_last(
    world: World, client: ControlClient
) -> None:
    due_ms = now_ms() + FAR_MS
    world.send(*(message(world.stage, b"many", due_ms, ("retry-id", b"many")) for _ in range(12_000)))
    eventually(lambda: world.sidecar.pending() >= 12_000, 60.0, "all wait")
    result = client.act(ControlKind.CANCEL, b"many", deadline_s=60.0)
    assert (result.outcome, result.count) == (Outcome.CANCELLED, 12_000)
    eventually(lambda: world.sidecar.pending() == 0, DEADLINE_S, "none waits")
