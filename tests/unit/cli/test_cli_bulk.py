"""A run over a filter: what it acts on, what it steps over, how it stops, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.cli import instance
from sidecar.cli.instance import Instances
from sidecar.cli.messages import bulk
from sidecar.cli.messages.bulk import Interrupted, Run, TimerReader
from sidecar.cli.messages.filters import Filter
from sidecar.cli.messages.journal import Journal, Order
from sidecar.clock import SystemClock
from sidecar.contract.control import ControlKind
from sidecar.errors import CommandFailed
from sidecar.runtime.stop import Stop
from tests.unit.shelf import URL, Shelf

DUE_MS = 1_800_000_000_000
EVERYTHING = Filter()


class Bench:
    """A shelf, a run over it, and the run's journal."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        path: Path,
        kind: ControlKind = ControlKind.CANCEL,
        due_ms: int | None = None,
        wanted: Filter = EVERYTHING,
    ) -> None:
        monkeypatch.setattr(bulk, "PAGE", 4)
        monkeypatch.setattr(bulk, "AGAIN_S", 0.001)
        monkeypatch.setattr(bulk, "GRACE_S", 0.0)
        self.shelf = Shelf(kind, due_ms)
        monkeypatch.setattr(instance, "ask", self.shelf.ask)
        self.path = path / "run.jsonl"
        self.kind = kind
        self.due_ms = due_ms
        self.wanted = wanted
        self.stop = Stop()
        self.shown: list[int] = []

    def begin(self) -> Journal:
        found = self.reader().count(lambda total: None)
        order = Order(self.kind, self.wanted, self.due_ms, found.upto, found.total, None)
        return Journal.begin(self.path, order)

    def reader(self, patience_s: float = 5) -> TimerReader:
        return TimerReader(Instances(lambda: (URL,), None), self.wanted, self.stop, SystemClock(), patience_s)

    def go(self, journal: Journal, *, patience_s: float = 5, timeout_s: float = 5, rate: float | None = None) -> None:
        Run(
            self.reader(patience_s),
            self.shelf,
            journal,
            self.stop,
            SystemClock(),
            timeout_s=timeout_s,
            per_second=rate,
            advanced=self.shown.append,
        ).go()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    made = Bench(monkeypatch, tmp_path)
    for number in range(10):
        made.shelf.store(number % 3, number, DUE_MS + number)
    return made


def test_all_that_matches_is_acted_on_once_and_a_bounded_number_at_a_time(bench: Bench) -> None:
    timers = list(bench.shelf.messages)
    journal = bench.begin()
    bench.shelf.in_flight_max = 3
    bench.go(journal)
    assert bench.shelf.acted == timers
    assert (journal.progress.finished, journal.progress.outcomes) == (True, {"cancelled": 10})
    assert bench.shelf.most_in_flight == 3
    assert bench.shown[-1] == 10


def test_what_comes_after_the_beginning_is_not_meant(bench: Bench) -> None:
    """Fired messages that fail come back as new ones: a run must not chase them."""
    journal = bench.begin()

    def come(page: int) -> None:
        bench.shelf.store(0, 100 + page, DUE_MS + 50 + page)

    bench.shelf.on_page = come
    bench.go(journal)
    assert len(bench.shelf.acted) == 10
    assert {each["offset"] > 100 for each in bench.shelf.messages.values()} == {True}


def test_what_moves_to_where_the_list_has_been_is_met_in_the_next_round(bench: Bench) -> None:
    journal = bench.begin()
    last = list(bench.shelf.messages)[-1]

    def move(page: int) -> None:
        if page == 5:  # three pages were counted
            bench.shelf.messages[last]["stored_due_ms"] = DUE_MS - 1

    bench.shelf.on_page = move
    bench.go(journal)
    assert bench.shelf.acted[-1] == last
    assert bench.shelf.messages == {}


@pytest.mark.parametrize("count", [4, 10])
def test_what_the_list_still_shows_a_moment_later_is_not_acted_on_twice(bench: Bench, count: int) -> None:
    for timer in list(bench.shelf.messages)[count:]:
        del bench.shelf.messages[timer]
    journal = bench.begin()
    bench.shelf.lags = True
    bench.go(journal)
    assert journal.progress.outcomes == {"cancelled": count}


def test_a_page_without_some_partition_is_asked_for_again_and_not_stepped_over(bench: Bench) -> None:
    journal = bench.begin()
    bench.shelf.missing.extend([[1], [1, 2], [], [0]])
    bench.go(journal)
    assert bench.shelf.messages == {}
    assert journal.progress.outcomes == {"cancelled": 10}


def test_a_partition_that_stays_without_an_owner_ends_the_run_where_it_can_go_on(bench: Bench) -> None:
    journal = bench.begin()
    bench.shelf.missing.extend([[], *([[2]] * 1_000)])
    with pytest.raises(CommandFailed, match="partition 2 has no owner now"):
        bench.go(journal, patience_s=0.05)
    bench.shelf.missing.clear()
    again = Journal.read(bench.path)
    assert again.progress.outcomes == {"cancelled": 4}
    bench.go(again)
    assert (bench.shelf.messages, again.progress.outcomes) == ({}, {"cancelled": 10})


def test_without_an_answer_it_names_the_partition_and_what_was_sent(bench: Bench) -> None:
    journal = bench.begin()
    bench.shelf.silent = {1}
    with pytest.raises(CommandFailed, match=r"no answer from partition 1 for 0.05 s: .* 1 records were sent"):
        bench.go(journal, timeout_s=0.05)
    assert Journal.read(bench.path).progress.outcomes == {"cancelled": 3}, "the rest of the page has its answers"


def test_a_run_that_was_interrupted_goes_on_and_counts_nothing_twice(bench: Bench) -> None:
    """A timer acted on without an answer is gone when its page is read again."""
    journal = bench.begin()
    bench.shelf.in_flight_max = 2

    def interrupt(timer: object) -> None:
        if str(timer) == f"0-6-{DUE_MS + 6}":
            bench.stop.asked = True
            bench.shelf.silent = {0, 1}

    bench.shelf.on_put = interrupt
    with pytest.raises(Interrupted):
        bench.go(journal)
    bench.stop.asked = False
    bench.shelf.silent = set()
    again = Journal.read(bench.path)
    assert again.order == journal.order
    assert again.progress.outcomes == {"cancelled": 6}
    unheard = len(bench.shelf.in_flight)
    bench.shelf.answers(0)
    assert len(bench.shelf.messages) == 4 - unheard
    bench.go(again)
    assert bench.shelf.messages == {}
    assert again.progress.outcomes == {"cancelled": 10 - unheard}
    assert len(bench.shelf.acted) == len(set(bench.shelf.acted)) == 10


def test_what_fires_between_list_and_command_counts_as_not_pending(bench: Bench) -> None:
    journal = bench.begin()
    bench.shelf.on_put = lambda timer: bench.shelf.messages.pop(f"1-1-{DUE_MS + 1}", None)
    bench.go(journal)
    assert journal.progress.outcomes == {"cancelled": 9, "not-pending": 1}
    assert journal.progress.refused == {}


def test_what_is_rescheduled_within_the_filter_is_rescheduled_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench(monkeypatch, tmp_path, ControlKind.RESCHEDULE, DUE_MS + 500, Filter(due_to_ms=DUE_MS + 1_000))
    for number in range(10):
        bench.shelf.store(0, number, DUE_MS + number)
    bench.shelf.store(0, 10, DUE_MS + 2_000)
    journal = bench.begin()
    assert journal.order.total == 10
    bench.go(journal)
    assert journal.progress.outcomes == {"rescheduled": 10}
    assert len(bench.shelf.acted) == 10


def test_what_is_refused_is_named_and_not_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bench = Bench(monkeypatch, tmp_path, ControlKind.FIRE)
    held = bench.shelf.store(0, 0, DUE_MS, "held")
    bench.shelf.store(0, 1, DUE_MS)
    bench.shelf.paused = {"held"}
    journal = bench.begin()
    bench.go(journal)
    assert journal.progress.outcomes == {"fired": 1, "origin-paused": 1}
    assert Journal.read(bench.path).progress.refused == {held: "held is paused"}


def test_a_rate_is_kept(bench: Bench) -> None:
    journal, clock = bench.begin(), SystemClock()
    began_s = clock.monotonic_s()
    bench.go(journal, rate=100)
    assert clock.monotonic_s() - began_s >= 0.09


# The journal


def test_a_line_that_was_cut_off_does_not_count(bench: Bench) -> None:
    journal = bench.begin()
    bench.go(journal)
    before = Journal.read(bench.path).progress
    with bench.path.open("a", encoding="utf-8") as file:
        file.write('{"round": 7, "cur')
    assert Journal.read(bench.path).progress == before
    again = Journal.read(bench.path)
    again.progress.outcomes["cancelled"] += 1
    again.write()
    assert Journal.read(bench.path).progress.outcomes == {"cancelled": 11}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', "no JSON", '{"version": 1, "command": "stop"}'])
def test_a_file_that_is_no_journal_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CommandFailed, match="is not the journal of a run"):
        Journal.read(path)


def test_a_journal_of_another_version_or_none_is_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps({"version": 2}), encoding="utf-8")
    with pytest.raises(CommandFailed, match="another version"):
        Journal.read(path)
    with pytest.raises(CommandFailed, match="No such file"):
        Journal.read(tmp_path / "none")


def test_no_run_writes_over_the_journal_of_another(bench: Bench) -> None:
    bench.begin()
    with pytest.raises(CommandFailed, match="exists: continue it with --resume"):
        bench.begin()
