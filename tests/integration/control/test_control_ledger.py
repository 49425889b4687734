"""Clients act on what waits while instances are killed and restarted; a ledger says whether every outcome was true."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind, Outcome
from sidecar.contract.status import OutcomeRecord
from sidecar.control.client import ControlClient
from sidecar.model import TimerId
from tests.broker import create_topic, unique
from tests.integration.control.test_control import settings_of
from tests.integration.control.test_http_control import call
from tests.integration.control_clients import FAR_MS, Clients, by_client, by_http, by_record, write_script
from tests.integration.control_history import Answer, Asked, Delivery, History, Message, Told, Turn, read_history
from tests.integration.control_ledger import Rule, Verdict, judge
from tests.integration.ledger import Ledger
from tests.integration.scenarios import SESSION, TAKEOVER_S, share
from tests.integration.sidecars import API, LOG_APPEND_TIME, Sidecar, Sidecars, Stage
from tests.waiting import eventually

MESSAGES = 3_000
LENGTH_MS = 15_000
RATES_MS = (500, 500, 500, 350, 60)
"""Mean time between two actions: HTTP at one, two and api, the client class, own records."""


# The ledger itself


def right() -> History:
    """Return a small history that is right: partition 0, origins a and b, a transaction each second."""
    items: dict[tuple[int, int], Message | Asked] = {
        (0, 0): Message(1_500, "a"),
        (0, 1): Message(9_000, "a", b"x"),
        (0, 2): Message(9_000, "a", b"x"),
        (0, 3): Message(9_000, "a"),
        (0, 4): Message(5_500, "b"),
        (0, 5): Message(0, "", dead=True),
        (0, 6): Asked("cancel", ControlKind.CANCEL, "id:x", stamp_ms=2_100),
        (0, 7): Asked("late", ControlKind.CANCEL, "0-0-1500", stamp_ms=2_100),
        (0, 8): Asked("pause", ControlKind.PAUSE, "b", stamp_ms=2_100),
        (0, 9): Asked("move", ControlKind.RESCHEDULE, "0-3-9000", 7_500, stamp_ms=3_100),
        (0, 10): Message(9_500, "a"),
        (0, 11): Asked("fire", ControlKind.FIRE, "0-10-9500", stamp_ms=3_200),
        (0, 12): Asked("bad", ControlKind.FIRE, "0-3-9000", refused=True, stamp_ms=6_100),
        (0, 13): Asked("resume", ControlKind.RESUME, "b", stamp_ms=6_500),
        (0, 14): Message(99_000, "a"),
        (0, 15): Message(98_000, "a", b"y"),
        (0, 16): Message(97_000, "a", b"y", replaces=True),
    }
    outcomes = {
        6: (Outcome.CANCELLED, 2, 3_000),
        7: (Outcome.NOT_PENDING, 0, 3_000),
        8: (Outcome.PAUSED, 1, 3_000),
        9: (Outcome.RESCHEDULED, 1, 4_000),
        11: (Outcome.FIRED, 1, 4_000),
        12: (Outcome.BAD_REQUEST, 0, 7_000),
        13: (Outcome.RESUMED, 1, 7_000),
    }
    answers = [
        Answer("cancel", Outcome.CANCELLED, 2),
        Answer("late", Outcome.NOT_PENDING, 0),
        Answer("resume", None, 0),
    ]
    return History(
        turns={0: [Turn(6, 1_000), Turn(6, 2_000), Turn(9, 3_000), Turn(12, 4_000), Turn(17, 7_000), Turn(17, 8_000)]},
        items=items,
        told=[told(offset, *each) for offset, each in outcomes.items()],
        delivered=[
            Delivery(TimerId(0, 0, 1_500), "a", 2_005, 1_500),
            Delivery(TimerId(0, 10, 9_500), "a", 4_005, 9_500),
            Delivery(TimerId(0, 4, 5_500), "b", 7_005, 5_500),
            Delivery(TimerId(0, 3, 9_000), "a", 8_005, 7_500),
        ],
        dead=[(0, 5)],
        waiting=[TimerId(0, 14, 99_000), TimerId(0, 16, 97_000)],
        answers=answers,
    )


def told(offset: int, outcome: Outcome, count: int, at_ms: int, detail: str = "") -> Told:
    return Told(0, offset, OutcomeRecord(outcome, count, "", 0, at_ms, detail))


def say(history: History, offset: int, outcome: Outcome, count: int, at_ms: int, detail: str = "") -> None:
    """Let the outcome of a control record be another one."""
    history.told = [each for each in history.told if each.offset != offset] + [
        told(offset, outcome, count, at_ms, detail)
    ]


def deliver(history: History, offset: int, stamp_ms: int, was_due_ms: int) -> None:
    """Deliver one more."""
    message = history.items[0, offset]
    assert isinstance(message, Message)
    history.delivered.append(Delivery(TimerId(0, offset, message.due_ms), message.origin, stamp_ms, was_due_ms))


def come_at(history: History, offset: int, stamp_ms: int, was_due_ms: int | None = None) -> None:
    """Let a delivery come at another time, or for another due."""
    (moved,) = (each for each in history.delivered if each.timer.offset == offset)
    withheld(history, offset)
    deliver(history, offset, stamp_ms, moved.was_due_ms if was_due_ms is None else was_due_ms)


def withheld(history: History, offset: int) -> None:
    """Let it never come."""
    history.delivered = [each for each in history.delivered if each.timer.offset != offset]


FORGERIES: dict[str, tuple[Rule, Callable[[History], object]]] = {
    "a cancelled one comes after all": (Rule.CANCELLED, lambda h: deliver(h, 1, 8_005, 9_000)),
    "a cancelled one waits on": (Rule.CANCELLED, lambda h: h.waiting.append(TimerId(0, 1, 9_000))),
    "not pending, and it comes later": (Rule.NOT_PENDING, lambda h: come_at(h, 0, 3_500)),
    "not pending, and it waits on": (Rule.NOT_PENDING, lambda h: say(h, 9, Outcome.NOT_PENDING, 0, 4_000)),
    "cancelled, and it had come before": (Rule.UNTRUE, lambda h: say(h, 7, Outcome.CANCELLED, 1, 3_000)),
    "one of two is cancelled": (Rule.UNTRUE, lambda h: say(h, 6, Outcome.CANCELLED, 1, 3_000)),
    "fired by command, and it never comes": (Rule.NOT_FIRED, lambda h: withheld(h, 10)),
    "fired by command, and it comes in another transaction": (Rule.NOT_FIRED, lambda h: come_at(h, 10, 8_005)),
    "fired by command, and it comes again at its due": (Rule.TWICE, lambda h: deliver(h, 10, 9_505, 9_500)),
    "moved, and it comes before the new due": (Rule.EARLY, lambda h: come_at(h, 3, 7_005)),
    "moved, and it comes for the old due": (Rule.OTHER_DUE, lambda h: come_at(h, 3, 8_005, was_due_ms=9_000)),
    "moved, and it comes at both dues": (Rule.TWICE, lambda h: deliver(h, 3, 9_005, 9_000)),
    "moved, and it never comes": (Rule.LOST, lambda h: withheld(h, 3)),
    "paused, and it comes": (Rule.PAUSED, lambda h: come_at(h, 4, 6_005)),
    "a replaced one comes after all": (Rule.CANCELLED, lambda h: deliver(h, 15, 8_005, 98_000)),
    "a replaced one waits on": (Rule.CANCELLED, lambda h: h.waiting.append(TimerId(0, 15, 98_000))),
    "the one in its place is gone": (Rule.LOST, lambda h: h.waiting.remove(TimerId(0, 16, 97_000))),
    "waits, and it is gone": (Rule.LOST, lambda h: h.waiting.clear()),
    "comes before its due": (Rule.EARLY, lambda h: come_at(h, 0, 1_005)),
    "comes twice": (Rule.TWICE, lambda h: deliver(h, 0, 2_006, 1_500)),
    "comes, and is a dead letter": (Rule.TWICE, lambda h: h.dead.append((0, 0))),
    "comes, and waits on": (Rule.TWICE, lambda h: h.waiting.append(TimerId(0, 0, 1_500))),
    "a dead letter is lost": (Rule.LOST, lambda h: h.dead.clear()),
    "a message is never taken in": (Rule.LOST, lambda h: h.items.update({(0, 17): Message(99_000, "a")})),
    "no outcome": (Rule.UNANSWERED, lambda h: h.told.pop(0)),
    "two outcomes": (Rule.UNANSWERED, lambda h: h.told.append(h.told[0])),
    "the outcome is of another transaction": (Rule.TORN, lambda h: say(h, 6, Outcome.CANCELLED, 2, 3_500)),
    "the client is told something else": (Rule.MISTOLD, lambda h: h.answers.append(Answer("move", Outcome.FIRED, 1))),
    "the client is told of fewer": (Rule.MISTOLD, lambda h: h.answers.append(Answer("cancel", Outcome.CANCELLED, 1))),
}


def test_the_ledger_finds_nothing_in_a_history_that_is_right() -> None:
    assert judge(right()) == Verdict([])


@pytest.mark.parametrize("name", FORGERIES)
def test_the_ledger_finds_what_is_forged(name: str) -> None:
    rule, forge = FORGERIES[name]
    history = right()
    forge(history)
    faults = judge(history).faults
    assert rule in {fault.rule for fault in faults}, faults


def test_a_fire_that_finds_its_origin_unreachable_is_right_only_where_origins_fail() -> None:
    history = right()
    say(history, 11, Outcome.ORIGIN_PAUSED, 0, 4_000, "1 were left as they are: a is unreachable")
    come_at(history, 10, 9_505)
    history.turns[0].append(Turn(17, 9_500))
    assert Rule.UNTRUE in {fault.rule for fault in judge(history).faults}
    history.origins_fail = True
    assert judge(history) == Verdict([])


def test_a_fire_that_finds_one_of_two_origins_unreachable_fires_the_other() -> None:
    history = History(
        turns={0: [Turn(2, 1_000), Turn(3, 3_000), Turn(3, 6_000)]},
        items={
            (0, 0): Message(5_500, "a", b"z"),
            (0, 1): Message(6_500, "b", b"z"),
            (0, 2): Asked("fire", ControlKind.FIRE, "id:z", stamp_ms=2_100),
        },
        told=[told(2, Outcome.FIRED, 1, 3_000, "1 were left as they are: a is unreachable")],
        delivered=[
            Delivery(TimerId(0, 1, 6_500), "b", 3_500, 6_500),
            Delivery(TimerId(0, 0, 5_500), "a", 6_500, 5_500),
        ],
    )
    assert {fault.rule for fault in judge(history).faults} >= {Rule.UNTRUE, Rule.NOT_FIRED}
    history.origins_fail = True
    assert judge(history) == Verdict([])


@pytest.mark.parametrize(
    "forge",
    [
        lambda h: come_at(h, 10, 3_990),
        lambda h: come_at(h, 0, 3_005),
        lambda h: h.turns[0].insert(4, Turn(12, 4_000)),
    ],
    ids=["stamped before the command that fires it", "stamped behind a command that finds it gone", "one at once"],
)
def test_a_delivery_near_the_border_of_two_transactions_belongs_to_either(forge: Callable[[History], object]) -> None:
    history = right()
    forge(history)
    assert judge(history) == Verdict([])


def test_a_delivery_does_not_belong_to_a_transaction_far_away() -> None:
    history = right()
    come_at(history, 10, 3_500)
    assert {fault.rule for fault in judge(history).faults} == {Rule.EARLY, Rule.NOT_FIRED}


def copied(outcome: Outcome, count: int, detail: str = "this is the outcome of the first such command") -> History:
    """Return the right history with a copy of its reschedule at the end, and the answer to the copy."""
    history = right()
    history.items[0, 17] = history.items[0, 9]
    history.turns[0].append(Turn(18, 9_000))
    history.told.append(told(17, outcome, count, 9_000, detail))
    return history


def test_a_copy_of_a_command_gets_the_first_outcome_and_does_nothing() -> None:
    assert judge(copied(Outcome.RESCHEDULED, 1)) == Verdict([])


@pytest.mark.parametrize(
    "history",
    [copied(Outcome.RESCHEDULED, 2), copied(Outcome.NOT_PENDING, 0), copied(Outcome.NOT_PENDING, 0, "")],
    ids=["another count", "another outcome", "acted on again"],
)
def test_a_copy_of_a_command_with_another_outcome_is_found(history: History) -> None:
    assert [fault.rule for fault in judge(history).faults] == [Rule.UNTRUE]


def test_a_first_outcome_that_no_command_had_is_found() -> None:
    history = right()
    say(history, 9, Outcome.RESCHEDULED, 1, 4_000, "this is the outcome of the first such command")
    come_at(history, 3, 9_005, was_due_ms=9_000)
    history.turns[0].append(Turn(17, 9_000))
    assert [fault.rule for fault in judge(history).faults] == [Rule.UNTRUE]


def test_a_pause_is_judged_by_clocks_alone_too() -> None:
    """The transactions are forged as well, so that the resume seems to come first."""
    history = right()
    come_at(history, 4, 6_005)
    history.turns[0][4:] = [Turn(17, 6_000), Turn(17, 8_000)]
    for offset, outcome, count in ((12, Outcome.BAD_REQUEST, 0), (13, Outcome.RESUMED, 1)):
        say(history, offset, outcome, count, 6_000)
    assert [fault.rule for fault in judge(history).faults] == [Rule.PAUSED]


# What the changelog alone lost


def lost_by_the_changelog() -> History:
    """Return a right history whose transaction of 4 s is committed but for its part in the changelog.

    The one at 6 s takes in again what it took in: it moves 3 and fires 10 another time.
    """
    history = right()
    history.turns[0][3] = Turn(12, 6_000)
    history.rolled_back = {0: [Turn(12, 4_000)]}
    for offset, outcome in ((9, Outcome.RESCHEDULED), (11, Outcome.FIRED)):
        history.told.append(told(offset, outcome, 1, 6_000))
    deliver(history, 10, 6_005, 9_500)
    history.answers += [Answer("move", Outcome.RESCHEDULED, 1), Answer("fire", Outcome.FIRED, 1)]
    return history


def test_what_a_transaction_delivered_that_the_changelog_lost_may_come_once_more() -> None:
    assert judge(lost_by_the_changelog()) == Verdict([], came_again=1)


def test_what_such_a_transaction_delivered_need_not_come_again() -> None:
    """Found in its origin, it does not wait any more: what asks for it then is told so, or counts it in."""
    history = lost_by_the_changelog()
    (again,) = (each for each in history.delivered if each.stamp_ms == 6_005)
    history.delivered.remove(again)
    history.told = [each for each in history.told if (each.offset, each.record.at_ms) != (11, 6_000)]
    history.told.append(told(11, Outcome.NOT_PENDING, 0, 6_000))
    assert judge(history) == Verdict([], answered_anew=1)


@pytest.mark.parametrize(
    ("forge", "rule"),
    [
        (lambda h: deliver(h, 10, 7_005, 9_500), Rule.TWICE),
        (lambda h: deliver(h, 0, 4_006, 1_500), Rule.TWICE),
        (lambda h: deliver(h, 3, 4_006, 7_500), Rule.EARLY),
        (lambda h: withheld(h, 3), Rule.LOST),
        (lambda h: h.rolled_back.clear(), Rule.TWICE),
        (lambda h: h.answers.append(Answer("fire", Outcome.NOT_PENDING, 0)), Rule.MISTOLD),
        (lambda h: h.told.append(told(11, Outcome.FIRED, 1, 6_000)), Rule.UNANSWERED),
    ],
    ids=["a third time", "another one twice", "too early in it", "lost by it", "no such loss", "mistold", "told twice"],
)
def test_nothing_else_is_allowed_for_such_a_transaction(forge: Callable[[History], object], rule: Rule) -> None:
    history = lost_by_the_changelog()
    forge(history)
    faults = judge(history).faults
    assert rule in {fault.rule for fault in faults}, faults


# The sidecar


@pytest.mark.broker
@pytest.mark.slow
def test_every_outcome_is_true_whatever_is_killed(stage: Stage, sidecars: Sidecars) -> None:
    seed = int(os.environ.get("SIDECAR_TEST_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
    print(f"SIDECAR_TEST_SEED={seed} repeats what is done, and when")
    dice = random.Random(seed)
    origins = (stage.origin, f"{stage.app_id}-invoices")
    create_topic(stage.bootstrap, origins[1], 2, LOG_APPEND_TIME)
    script = write_script(dice, messages=MESSAGES, rates=RATES_MS, length_ms=LENGTH_MS, stage=stage)
    # One keeps its partitions through a restart; those of two go to the other and come back.
    one, two = sidecars.make("one", stage, INSTANCE_ID="one", **SESSION), sidecars.make("two", stage, **SESSION)
    api = sidecars.make("api", stage)
    one.start()
    two.start()
    api.start(API)
    api.await_ready()
    eventually(lambda: share(one, two), TAKEOVER_S, "both have partitions")

    clients = Clients(stage, origins, script, SystemClock().wall_ms())
    with ControlClient(settings_of(stage)) as control, ThreadPoolExecutor(len(RATES_MS) + 1) as threads:
        ways = [*map(by_http, (one, two, api)), by_client(control), by_record(stage, "raw")]
        at_work = [threads.submit(clients.act, number, do) for number, do in enumerate(ways)]
        at_work.append(threads.submit(clients.send))
        disturb(clients.began_ms, dice, one, two)
        for each in at_work:
            each.result()
        last = control.act(ControlKind.RESUME, origins[1], deadline_s=TAKEOVER_S)
        assert last.outcome is Outcome.RESUMED, "whoever was to resume it may have found nobody"
    history = read_history(stage, origins, settled(stage, api), clients.answers)
    faults = judge(history).faults
    assert not faults, "\n".join([f"SIDECAR_TEST_SEED={seed}: {len(faults)} faults", *map(str, faults[:20])])
    require_variety(history)


def disturb(began_ms: int, dice: random.Random, one: Sidecar, two: Sidecar) -> None:
    """Kill each of them and end one in order, at moments of the dice; each is ready again before the next."""
    clock = SystemClock()
    acts: list[tuple[Sidecar, Callable[[], object]]] = [(two, two.kill), (one, one.stop), (one, one.kill)]
    for number, (instance, end) in enumerate(acts):
        at_ms = began_ms + LENGTH_MS * number // len(acts) + dice.randrange(1_000, 4_000)
        eventually(lambda at_ms=at_ms: clock.wall_ms() >= at_ms, 60, "the moment has come")  # type: ignore[misc]
        end()
        instance.start()
        instance.await_ready()


def settled(stage: Stage, api: Sidecar, deadline_s: float = 60.0) -> list[TimerId]:
    """Wait until all is taken in and nothing is due soon, and return what is listed then."""
    clock, ledger = SystemClock(), Ledger(stage)
    ends = input_ends(stage)
    eventually(lambda: ledger.committed_offsets() == ends, deadline_s, f"all is taken in: {ends}")
    since_ms = clock.wall_ms()

    def at_rest() -> bool:
        group = api.group() or {"complete": False}
        young = group["complete"] and group["as_of_ms"] > since_ms
        return young and (group["next_due_ms"] or since_ms + FAR_MS) > since_ms + FAR_MS / 2

    eventually(at_rest, deadline_s, "nothing is due soon")
    listed: list[TimerId] = []
    cursor = ""
    while True:
        page = eventually(lambda after=cursor: whole_page(api, after), 60, "a page of all partitions")  # type: ignore[misc]
        listed += [TimerId(each["partition"], each["offset"], each["first_due_ms"]) for each in page["messages"]]
        if page["cursor"] is None:
            return listed
        cursor = f"&cursor={page['cursor']}"


def whole_page(api: Sidecar, cursor: str) -> dict[str, Any]:
    """Return a page; an empty answer when an owner did not answer in time."""
    status, page = call(api, "GET", f"/pending/messages?limit=1000{cursor}", token=None)
    return page if status == 200 and page["complete"] else {}


def input_ends(stage: Stage) -> dict[int, int]:
    """Return one more than the last offset of each input partition that has records."""
    reader = Consumer({"bootstrap.servers": stage.bootstrap, "group.id": unique("reader")})
    try:
        places = [TopicPartition(stage.input_topic, partition) for partition in range(stage.partitions)]
        ends = {place.partition: reader.get_watermark_offsets(place, timeout=15.0)[1] for place in places}
        return {partition: end for partition, end in ends.items() if end}
    finally:
        reader.close()


def require_variety(history: History) -> None:
    """Fail unless the run had enough of everything to say something."""
    outcomes = Counter(told.record.outcome for told in history.told)
    print(f"{len(history.delivered)} delivered, {len(history.waiting)} wait, outcomes {dict(outcomes)}")
    # Nothing would be delivered while the whole group is stopped: that has a test with Connect's tools.
    assert set(outcomes) == set(Outcome) - {Outcome.STOPPED}, outcomes
    assert min(outcomes[each] for each in (Outcome.CANCELLED, Outcome.RESCHEDULED, Outcome.FIRED)) >= 10, outcomes
    assert len(history.delivered) >= MESSAGES // 2
    assert sum(answer.outcome is not None for answer in history.answers) >= 10
