"""The start of queries: an interrupted micro-batch completes first, under its old rules. Spark and Kafka are fakes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from sidecar import __version__
from sidecar.errors import BrokerUnavailable, CommandFailed, SettingsInvalid
from sidecar.kafka.admin.offsets import Committed
from sidecar.spark import group
from sidecar.spark.manifest import Former, Kept, Unfinished
from sidecar.spark.marks import Mark, MarkedCheckpoint, TopicsRefuse
from sidecar.spark.running import FAILURES_MAX, StartedQuery, Starter, keep_running
from sidecar.spark.stream.query import Replay
from sidecar.spark.stream.step import Rules
from tests.spark.stream.test_partition_step import RULES
from tests.spark.stream.test_setup import MANIFEST
from tests.spark.stream.test_sink import settings_of

SETTINGS = settings_of(SimpleNamespace(bootstrap="nowhere:9092", app_id="app", input_topic="retry", dlq_topic="dlq"))  # type: ignore[arg-type]  # all that is asked of a stage
OTHER = dataclasses.replace(RULES, origin_timeout_ms=5, input_topic_id=MANIFEST.input_topic_id)


class Folder:
    """A checkpoint in memory."""

    location = "file:///checkpoint"

    def __init__(self, unfinished: Unfinished | None, kept: Kept | None) -> None:
        self.next = unfinished
        self.held = kept
        self.planned = 0
        self.planned_ms = 0

    def unfinished(self) -> Unfinished | None:
        return self.next

    def begun(self) -> bool:
        return True

    def kept(self) -> Kept | None:
        return self.held

    def keep(self, rules: Rules) -> None:
        assert self.next is None, "a micro-batch is unfinished"
        self.held = Kept(__version__, rules)

    def plan_empty(self, now_ms: int) -> None:
        assert now_ms > 0
        self.planned += 1
        self.planned_ms = now_ms


def sent(monkeypatch: pytest.MonkeyPatch, marks: Mapping[int, Mark]) -> None:
    """Let the changelog have these marks."""
    last = {number: MarkedCheckpoint(mark=mark) for number, mark in marks.items()}
    monkeypatch.setattr(group, "last_checkpoints", lambda *_: last)


class Stand:
    """A starter, and what it starts."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        folder: Folder,
        marks: Mapping[int, Mark],
        committed: Mapping[int, int] | None = None,
    ) -> None:
        monkeypatch.setattr(group, "settle", lambda *_: None)
        monkeypatch.setattr(
            group,
            "committed",
            lambda *_: {number: Committed(offset, "") for number, offset in (committed or {}).items()},
        )
        sent(monkeypatch, marks)
        self.folder = folder
        self.started: list[tuple[Rules, Replay | None]] = []
        self.starter = Starter(SETTINGS, MANIFEST, folder, lambda: OTHER, self._start)  # type: ignore[arg-type]  # see Folder

    def _start(self, rules: Rules, replay: Replay | None) -> Any:
        self.started.append((rules, replay))
        return SimpleNamespace()


def test_what_was_cut_off_is_completed_alone_under_the_rules_and_version_that_began_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand = Stand(monkeypatch, Folder(Unfinished(7, 1_000), Kept("0.0.1", RULES)), {})
    assert stand.starter.start().alone
    ((rules, replay),) = stand.started
    assert rules == RULES
    assert replay is not None
    assert (replay.former, replay.alone) == ("0.0.1", True)
    stand.folder.next = None
    assert not stand.starter.start().alone
    assert stand.started[1] == (OTHER, None)
    assert stand.folder.held == Kept(__version__, OTHER)
    assert stand.folder.planned == 1


def test_under_the_same_rules_the_query_continues_behind_what_was_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch, Folder(Unfinished(7, 1_000), Kept(__version__, OTHER)), {})
    assert not stand.starter.start().alone
    assert stand.folder.planned == 0


RIGHT: Any = SimpleNamespace(blocker=lambda: None)
"""A clock."""


class Ending:
    """A query that ends at once, with these failures one after the other."""

    def __init__(self, folder: Folder, *failures: str | None) -> None:
        self.folder = folder
        self.failures = list(failures)

    def __call__(self, *_: object) -> Any:
        failure = self.failures.pop(0)
        if failure is None:
            self.folder.next = None
        return SimpleNamespace(isActive=False, exception=lambda: failure)


def test_before_a_rescale_what_was_cut_off_is_completed_and_nothing_else_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Under the same rules it would be continued behind otherwise."""
    folder = Folder(Unfinished(7, 1_000), Kept(__version__, OTHER))
    stand = Stand(monkeypatch, folder, {})
    refuse = f"sidecar.spark.marks.TopicsRefuse: {TopicsRefuse({'orders': 'vanished'}, 'said')}"
    ending = Ending(folder, "an executor was lost", refuse, None)
    monkeypatch.setattr(stand.starter, "_start", ending)
    assert stand.starter.complete(lambda _: False, RIGHT)
    assert not ending.failures
    assert stand.starter.complete(lambda _: False, RIGHT), "nothing is unfinished"
    assert folder.planned == 0


def test_what_cannot_be_completed_is_not_rescaled(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(Unfinished(7, 1_000), Kept(__version__, OTHER))
    stand = Stand(monkeypatch, folder, {})
    monkeypatch.setattr(stand.starter, "_start", Ending(folder, *["no broker"] * FAILURES_MAX))
    with pytest.raises(CommandFailed, match="the query cannot continue: no broker"):
        stand.starter.complete(lambda _: False, RIGHT)
    stopped = list[str]()
    query = SimpleNamespace(isActive=True, stop=lambda: stopped.append("stopped"))
    monkeypatch.setattr(stand.starter, "_start", lambda *_: query)
    assert not stand.starter.complete(lambda _: True, RIGHT)
    assert stopped


def test_producers_of_a_former_number_of_state_partitions_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch, Folder(None, None), {})
    settled = list[int]()
    monkeypatch.setattr(group, "settle", lambda _, count: settled.append(count))
    monkeypatch.setattr(stand.starter, "_manifest", structs.replace(MANIFEST, former=Former("query", 9)))
    stand.starter.start()
    assert settled == [9]


def test_topics_that_refused_are_taken_for_closed_where_nothing_is_committed_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = Mark(12, "c", 7)
    stand = Stand(monkeypatch, Folder(Unfinished(7, 1_000), Kept(__version__, OTHER)), {0: done})
    stand.folder.next = Unfinished(7, 1_000)
    failure = f"sidecar.spark.marks.TopicsRefuse: {TopicsRefuse({'orders': 'vanished'}, 'said')}"
    assert stand.starter.note_refusals(failure)
    assert not stand.starter.note_refusals(failure), "the next try would be the same"
    assert not stand.starter.note_refusals("something else")
    stand.starter.start()
    replay = stand.started[0][1]
    assert replay is not None
    assert [each.sequence for each in replay.replay_closings.of(0, 1_000)] == [12]
    assert [each.sequence for each in replay.replay_closings.of(1, 1_000)] == [-1]


def test_offsets_that_another_tool_has_set_are_noticed_and_those_that_expired_are_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = {number: Mark(3, "c", next_input_offset=9) for number in range(3)}
    for unfinished in (None, Unfinished(7, 1_000)):
        stand = Stand(monkeypatch, Folder(unfinished, None), marks, {0: 7, 1: 9})
        stand.starter.start()
        (said,) = [line for line in capsys.readouterr().out.splitlines() if "offsets_set_by_others" in line]
        assert "partitions=0" in said, "of 2 they have expired"


def test_another_topic_of_the_name_is_refused_at_each_start_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source would continue at the old offset."""
    stand = Stand(monkeypatch, Folder(None, None), {})
    monkeypatch.setattr(stand.starter, "_make_rules", lambda: dataclasses.replace(OTHER, input_topic_id="another"))
    with pytest.raises(SettingsInvalid, match="spark export"):
        stand.starter.start()
    assert not stand.started


AHEAD = Mark(5, MANIFEST.checkpoint, 7, "digest", "writer", [], 2, "next")


@pytest.mark.parametrize("mark", [AHEAD, structs.replace(AHEAD, ahead=0), structs.replace(AHEAD, checkpoint="other")])
def test_what_was_sent_ahead_is_taken_over_by_the_rules_that_planned_it(
    monkeypatch: pytest.MonkeyPatch, mark: Mark
) -> None:
    """The micro-batch is a new one, so no earlier run of it planned ahead, and this one does not."""
    stand = Stand(monkeypatch, Folder(None, Kept(__version__, OTHER)), {0: mark})
    monkeypatch.setattr(stand.starter, "_make_rules", lambda: dataclasses.replace(OTHER, origin_timeout_ms=6))
    stand.starter.start()
    if mark is AHEAD:
        assert stand.started == [(dataclasses.replace(OTHER, ahead=False), Replay(alone=True))]
        assert stand.folder.planned == 1
    else:
        assert stand.started == [(dataclasses.replace(OTHER, origin_timeout_ms=6), None)]


def test_a_stopped_partition_that_keeps_what_was_sent_ahead_is_settled_once_and_then_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else each start under other settings would settle for ever, and ingest nothing."""
    stand = Stand(monkeypatch, Folder(None, Kept(__version__, OTHER)), {0: AHEAD, 1: AHEAD})
    changed = dataclasses.replace(OTHER, origin_timeout_ms=6)
    monkeypatch.setattr(stand.starter, "_make_rules", lambda: changed)
    assert stand.starter.start().alone
    sent(monkeypatch, {0: AHEAD, 1: structs.replace(AHEAD, ahead=0, batch=8)})
    assert not stand.starter.start().alone
    assert stand.started[1:] == [(changed, None)]
    assert stand.folder.held == Kept(__version__, changed)
    assert "stopped_partitions_left" in capsys.readouterr().out
    assert stand.starter.finish() is None, "also at the end"
    assert stand.starter.complete(lambda _: False, RIGHT), "and before a rescale"


def test_what_is_settled_is_due_by_then_whatever_the_clock_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition whose timer has not expired would have no step."""
    far_ms = 2**50
    stand = Stand(monkeypatch, Folder(None, Kept("0.0.1", OTHER)), {0: structs.replace(AHEAD, ahead_ms=far_ms)})
    assert stand.starter.start().alone
    assert stand.folder.planned_ms > far_ms


def test_a_query_that_stops_leaves_nothing_sent_that_its_state_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(None, Kept(__version__, OTHER))
    stand = Stand(monkeypatch, folder, {0: structs.replace(AHEAD, ahead=0)})
    monkeypatch.setattr(stand.starter, "_make_rules", lambda: OTHER)
    stand.starter.start()
    assert stand.starter.finish() is None
    sent(monkeypatch, {0: AHEAD})
    assert stand.starter.finish() is not None
    assert stand.started[1:] == [(dataclasses.replace(OTHER, ahead=False), Replay(alone=True))]
    folder.next = Unfinished(8, 1)
    assert stand.starter.finish() is None


def test_a_topic_that_is_replaced_under_a_query_stops_it_and_the_next_start_decides() -> None:
    ends: list[str | None] = [None, None, "replaced"]
    query: Any = SimpleNamespace(id=1, runId=1, isActive=True, lastProgress=None, status={"isTriggerActive": False})
    query.stop = lambda: setattr(query, "isActive", False)
    starts = iter([StartedQuery(query, alone=False)])

    class Refusing:
        def start(self) -> StartedQuery:
            if query.isActive:
                return next(starts)
            raise SettingsInvalid(["id of the input topic"])

        def finish(self) -> None:
            """Do nothing: nothing was sent ahead."""

    batches = SimpleNamespace(pass_on=lambda: 0, pass_on_rest=lambda _: 0)
    good = SimpleNamespace(blocker=lambda: None)
    with pytest.raises(SettingsInvalid):
        keep_running(Refusing(), lambda _: False, batches, good, lambda: ends.pop(0))  # type: ignore[arg-type]  # as above
    assert ends == []


class Failing:
    """Starts queries that have ended, by what is given for each."""

    def __init__(self, *ends: Exception | str) -> None:
        self.ends = list(ends)

    def start(self) -> StartedQuery:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        query: Any = SimpleNamespace(id=1, runId=1, isActive=False, exception=lambda: end or None)
        return StartedQuery(query, alone=not end)

    def note_refusals(self, failure: str) -> bool:
        return "TopicsRefuse" in failure

    def same_topic(self) -> None:
        if self.ends and isinstance(end := self.ends.pop(0), Exception):
            raise end


def run(*ends: Exception | str) -> tuple[list[float], str]:
    """Return the waits, and the error that ended it."""
    waits: list[float] = []
    starter, batches = Failing(*ends), SimpleNamespace(pass_on_rest=lambda _: 0)

    def stopping(seconds: float) -> bool:
        waits.append(seconds)
        return not starter.ends

    try:
        keep_running(starter, stopping, batches, SimpleNamespace(blocker=lambda: None), lambda: None)  # type: ignore[arg-type]  # all that is asked of them
    except CommandFailed as error:
        return waits, str(error)
    return waits, ""


def test_brokers_that_are_away_are_waited_for() -> None:
    waits, said = run(*[BrokerUnavailable("away")] * 12)
    assert (len(waits), max(waits), said) == (12, 30.0, "")


def test_a_query_that_fails_again_and_again_ends_and_a_refusal_is_no_failure() -> None:
    refusals = ["TopicsRefuse"] * 20
    waits, said = run(*refusals, *["Broken: no"] * (FAILURES_MAX + 1))
    assert "Broken: no" in said
    assert waits == [2.0, 4.0, 8.0, 16.0]


def test_a_query_that_cannot_read_a_topic_of_the_same_name_says_the_way_out() -> None:
    said = "sidecar.errors.CommandFailed: retry, partition 0: offset 6 is to be read, and the log ends at 0"
    with pytest.raises(SettingsInvalid, match="spark export"):
        run(said, SettingsInvalid(["id of the input topic: `spark export`"]))
    assert said in run(said)[1]
