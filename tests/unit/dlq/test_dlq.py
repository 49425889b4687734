"""What dead letters say, which are meant, what becomes of each, and how a run goes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar import cli
from sidecar.cli.dlq.filter import OTHERS
from sidecar.cli.dlq.report import NAMES_MAX, Count
from sidecar.contract import render_dead_letter
from sidecar.contract.dead_letter import Place, read_dead_letter
from sidecar.contract.redrive import Left, Terms, Why
from sidecar.dlq.filter import LetterFilter
from sidecar.dlq.reader import Letter, Span
from sidecar.dlq.redrive import Going, Judge, Pace, Tally, still_ahead
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed
from sidecar.kafka.cluster import Topic
from sidecar.model import Headers, Reason
from sidecar.settings import Settings
from tests.clocks import HandClock

HOUR_MS = 3_600_000
NATIVE: Headers = [("retry-origin-topic", b"orders"), ("retry-exception", b"com.acme.Late"), ("retry-group", b"shop")]
RETRY = Topic("retry", "id", 4, 1, frozenset(), {"max.message.bytes": "10000"})


def dead(headers: Headers, reason: Reason = Reason.FATAL, *, topic: str = "retry", truncated: bool = False) -> Headers:
    rendered = render_dead_letter(
        headers,
        reason=reason,
        detail="because",
        topic=topic,
        partition=3,
        offset=99,
        timestamp_ms=1_700,
        connector_name="app",
        stage="intake",
    )
    return [*rendered, ("retry-dlq-truncated", b"value")] if truncated else rendered


def letter(
    headers: Headers, reason: Reason = Reason.FATAL, *, offset: int = 0, value: bytes = b"v", **more: Any
) -> Letter:
    held = dead(headers, reason, **more)
    return Letter(0, offset, 5 * HOUR_MS, b"k", value, held, read_dead_letter(held))


def settings() -> Settings:
    return Settings()


def judge(terms: Terms | None = None, wanted: LetterFilter | None = None) -> Judge:
    return Judge(settings(), RETRY, wanted or LetterFilter(), terms or Terms(), HandClock())


# Reading


def test_a_dead_letter_says_why_it_died_and_what_it_was() -> None:
    said = read_dead_letter(dead([*NATIVE, ("retry-attempt", b"2"), ("retry-redrives", b"1")]))
    assert (said.reason, said.detail, said.dialect and said.dialect.name) == ("fatal", "because", "native")
    assert (said.origin, said.exception, said.attempt, said.group) == ("orders", "com.acme.Late", 2, "shop")
    assert (said.timestamp_ms, said.came_from, said.redrives, said.truncated) == (
        1_700,
        Place("retry", 3, 99),
        1,
        False,
    )


def test_a_record_that_no_sidecar_wrote_says_nothing() -> None:
    assert read_dead_letter(None) == read_dead_letter([("colour", b"red")])._replace(attempt=None)
    assert read_dead_letter([]).reason == ""
    assert read_dead_letter([("retry-dlq-reason", b"\xff")]).reason == "\\xff"


def test_an_ibm_message_is_read_without_its_quotes() -> None:
    said = read_dead_letter(
        dead([("x-ibm-retry-origin-topic", b'"orders"'), ("x-ibm-retry-attempts", b'"2"')], Reason.MISSING_HEADER)
    )
    assert (said.dialect and said.dialect.name, said.origin, said.attempt) == ("ibm", "orders", 2)


# Which are meant


def test_a_filter_takes_names_and_globs_of_which_one_of_each_kind_must_match() -> None:
    said = read_dead_letter(dead(NATIVE))
    assert LetterFilter().matcher()(said)
    assert LetterFilter(("fat*",), ("x", "ord*"), ("com.acme.*",), ("shop",)).matcher()(said)
    for other in (
        LetterFilter(("bad-header",)),
        LetterFilter(origins=("order",)),
        LetterFilter(exceptions=("com.acme",)),
        LetterFilter(groups=("*-2",)),
    ):
        assert not other.matcher()(said)


def test_a_run_has_the_name_of_its_filter_whatever_the_order() -> None:
    given = LetterFilter(("fatal", "too-large"), ("orders",), since="-2h")
    assert given.run_name == LetterFilter(("too-large", "fatal", "fatal"), ("orders",), since="-2h").run_name
    others = [LetterFilter(), LetterFilter(("fatal",)), LetterFilter(("fatal", "too-large"), ("orders",), since="-3h")]
    assert len({each.run_name for each in [given, *others]}) == 4


def test_only_a_reason_that_is_written_out_is_named() -> None:
    assert LetterFilter(("*", "fatal")).named == {"fatal"}


# Counting


def test_names_without_end_are_counted_as_others() -> None:
    count = Count(LetterFilter(), 1)
    for number in range(NAMES_MAX + 5):
        count.add([letter([("retry-origin-topic", b"o%d" % number)])])
    assert count.total == sum(count.by["origin"].values()) == NAMES_MAX + 5
    assert (count.by["origin"][OTHERS], len(count.by["origin"])) == (5, NAMES_MAX + 1)
    assert count.to_json("dlq")["examples"] == {"fatal": [letter([("retry-origin-topic", b"o0")]).to_json()]}
    assert count.to_json("dlq")["by_hour"] == {"1970-01-01T05:00Z": NAMES_MAX + 5}


# What becomes of each


def test_a_redriven_record_goes_to_the_partition_of_the_retry_topic_that_it_came_from() -> None:
    sent = judge(Terms(delay_ms=1_000)).of(letter([("colour", b"red"), *NATIVE, ("retry-attempt", b"3")]))
    assert isinstance(sent, Outgoing)
    assert (sent.topic, sent.partition, sent.key, sent.value) == ("retry", 3, b"k", b"v")
    due = b"%d" % (HandClock().wall_ms() + 1_000)
    assert sent.headers == [("colour", b"red"), *NATIVE, ("retry-due-ms", due), ("retry-redrives", b"1")]
    elsewhere = judge().of(letter(NATIVE, topic="another"))
    assert isinstance(elsewhere, Outgoing)
    assert elsewhere.partition == -1


@pytest.mark.parametrize(
    ("given", "terms", "why"),
    [
        (letter(NATIVE, truncated=True), Terms(), Why.TRUNCATED),
        (letter([*NATIVE, ("retry-redrives", b"3")]), Terms(), Why.LOOP_GUARD),
        (letter([*NATIVE, ("retry-redrives", b"x")]), Terms(), Why.LOOP_GUARD),
        (letter(NATIVE, Reason.TOO_LARGE), Terms(), Why.WOULD_DIE_AGAIN),
        (letter(NATIVE, Reason.DELAY_OUT_OF_RANGE), Terms(to_origin="orders"), Why.WOULD_DIE_AGAIN),
        (letter([], Reason.MISSING_HEADER), Terms(named=frozenset({"missing-header"})), Why.MALFORMED),
        (letter([("retry-control", b"cancel")], Reason.BAD_HEADER), Terms(to_origin="orders"), Why.MALFORMED),
        (letter(NATIVE, value=bytes(10_000)), Terms(), Why.TOO_LARGE),
        (Letter(0, 0, 0, None, None, None, read_dead_letter(None)), Terms(), Why.NOT_A_DEAD_LETTER),
    ],
)
def test_what_can_not_live_stays_and_says_why(given: Letter, terms: Terms, why: Why) -> None:
    stays = judge(terms).of(given)
    assert isinstance(stays, Left)
    assert stays.why is why


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        (letter(NATIVE, Reason.TOO_LARGE), Terms(named=frozenset({"too-large"}))),
        (letter(NATIVE, Reason.TOO_LARGE), Terms(to_origin="orders")),
        (letter([], Reason.MISSING_HEADER), Terms(to_origin="orders")),
        (letter([*NATIVE, ("retry-origin-topic", b"twice")], Reason.BAD_HEADER), Terms(to_origin="orders")),
        (letter([*NATIVE, ("retry-redrives", b"3")]), Terms(max_redrives=4)),
        (letter([*NATIVE, ("retry-due-ms", b"x")], Reason.BAD_HEADER), Terms(named=frozenset({"bad-header"}))),
    ],
)
def test_what_is_named_or_mended_goes(given: Letter, terms: Terms) -> None:
    sent = judge(terms).of(given)
    assert isinstance(sent, Outgoing)
    assert dict(sent.headers)["retry-origin-topic"] == b"orders"


def test_another_origin_takes_its_partition_away_and_old_ids_replace_nothing() -> None:
    came: Headers = [*NATIVE, ("retry-origin-partition", b"7"), ("retry-id", b"i"), ("retry-replace", b"true")]
    sent = judge(Terms(to_origin="payments")).of(letter(came))
    assert isinstance(sent, Outgoing)
    names = [name for name, _ in sent.headers]
    assert "retry-origin-partition" not in names
    assert "retry-replace" not in names
    assert ("retry-id", b"i") in sent.headers


def test_attempts_are_kept_when_asked_for() -> None:
    came: Headers = [*NATIVE, ("retry-attempt", b"2"), ("retry-remaining", b"1")]
    kept = judge(Terms(keep_attempts=True)).of(letter(came))
    anew = judge().of(letter(came))
    assert isinstance(kept, Outgoing)
    assert isinstance(anew, Outgoing)
    assert set(came) <= set(kept.headers)
    assert not {"retry-attempt", "retry-remaining"} & dict(anew.headers).keys()


# A run


class Given:
    """A reader of what is given; five at a time."""

    def __init__(self, letters: Sequence[Letter]) -> None:
        self._letters = list(letters)
        self._next = {0: 0}
        self._end = len(letters) + 1
        """A marker of a transaction stands at the end."""

    membership = b"m"

    @property
    def done(self) -> bool:
        return not self._letters

    @property
    def left(self) -> int:
        return self._end - self._next[0]

    @property
    def next_offsets(self) -> Mapping[int, int]:
        return self._next

    def read(self) -> list[Letter]:
        taken, self._letters = self._letters[:5], self._letters[5:]
        self._next = {0: taken[-1].offset + 1 if self._letters else self._end}
        return taken


class Kept:
    """What a run has sent, transaction by transaction."""

    def __init__(self, clock: HandClock) -> None:
        self.transactions: list[tuple[list[Outgoing], dict[int, int]]] = []
        self._clock = clock

    def send(self, records: Sequence[Outgoing], offsets: Mapping[int, int], membership: bytes) -> None:
        assert membership == b"m"
        self.transactions.append((list(records), dict(offsets)))
        self._clock.now_s += 0.125


def went(letters: Sequence[Letter], pace: Pace) -> tuple[Kept, Going]:
    kept, going = run_of(letters, pace, stopping=False)
    assert going.go(lambda left: None)
    return kept, going


def run_of(letters: Sequence[Letter], pace: Pace, *, stopping: bool) -> tuple[Kept, Going]:
    clock = HandClock()
    kept = Kept(clock)
    redrive: Any = kept
    judges = Judge(settings(), RETRY, LetterFilter(), Terms(), clock)
    return kept, Going(Given(letters), redrive, judges, pace, lambda: stopping, clock)


def test_the_place_where_a_run_begins_is_noted_before_anything_is_sent_and_the_end_at_the_end() -> None:
    kept, going = went([letter(NATIVE, offset=each) for each in range(12)], Pace(None, None))
    assert kept.transactions[0] == ([], {0: 0})
    assert [offsets[0] for _, offsets in kept.transactions] == [0, 5, 10, 13]
    assert going.tally.redriven == sum(len(records) for records, _ in kept.transactions) == 12


def test_each_transaction_notes_what_it_sends_and_what_stays_before_it() -> None:
    given = [letter(NATIVE, offset=each, truncated=each % 2 == 0) for each in range(9)]
    kept, going = went(given, Pace(3, None))
    assert [(len(records), offsets[0]) for records, offsets in kept.transactions] == [(0, 0), (2, 5), (1, 6)]
    assert (going.tally.redriven, going.tally.left) == (3, {Why.TRUNCATED: {"fatal": 3}})


@pytest.mark.parametrize(
    ("stopped", "start", "end"),
    [
        (None, 40, 80),
        (50, 50, 80),
        # Deleted by age meanwhile.
        (3, 10, 80),
        # It was here before with a later --until.
        (90, 90, 90),
    ],
)
def test_a_run_goes_on_where_it_stopped(stopped: int | None, start: int, end: int) -> None:
    whole = {0: Span(first=10, start=40, end=80, last=100)}
    assert still_ahead(whole, {0: stopped}, "run r", "topic dlq") == {0: Span(10, start, end, 100)}


def test_a_dlq_that_ends_before_the_run_has_stopped_is_another_one() -> None:
    with pytest.raises(CommandFailed, match="run r stopped at offset 101 of partition 0"):
        still_ahead({0: Span(10, 40, 80, 100)}, {0: 101}, "run r", "topic dlq")


def test_a_rate_is_kept() -> None:
    """The clock goes on by an eighth of a second with each transaction: room for one more at eight a second."""
    kept, _ = went([letter(NATIVE, offset=each) for each in range(8)], Pace(None, 8.0))
    sizes = [len(records) for records, _ in kept.transactions]
    assert sum(sizes) == 8
    assert all(total <= 1 + number for number, total in enumerate(itertools.accumulate(sizes)))


def test_a_run_that_is_told_to_stop_has_noted_all_that_it_sent() -> None:
    kept, going = run_of([letter(NATIVE)], Pace(None, None), stopping=True)
    assert not going.go(lambda left: None)
    assert (kept.transactions, going.tally.redriven) == ([([], {0: 0})], 0)


def test_the_tally_tells_programs_why_each_stays_by_the_reason_of_its_death() -> None:
    tally, all_ways = Tally(), judge()
    for each in (letter(NATIVE), letter(NATIVE, Reason.BAD_HEADER), letter(NATIVE, Reason.BAD_HEADER, offset=7)):
        tally.add(each, all_ways.of(each))
    tally.add(letter(NATIVE), None)
    assert (tally.read, tally.redriven, tally.filtered) == (4, 1, 1)
    assert tally.left == {Why.WOULD_DIE_AGAIN: {"bad-header": 2}}
    assert [left.why for _, left in tally.first_left] == [Why.WOULD_DIE_AGAIN] * 2


# Usage


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["report", "--reason", "no-such"], "is met by no reason: there are missing-header, "),
        (["report", "--since", "yesterday"], "must be epoch milliseconds"),
        (["redrive", "--yes", "--to-origin", "a b"], "--to-origin: retry-origin-topic="),
        (["redrive", "--yes", "--to-origin", "dlq"], "--to-origin: dlq is no origin"),
        (["redrive", "--yes", "--run", "a/b"], "--run: 'a/b': allowed are"),
        (["redrive"], "nobody can be asked here (stdin is no terminal): say --yes, or look with --dry-run"),
    ],
)
def test_a_mistake_in_the_command_says_what_is_allowed(given: list[str], says: str) -> None:
    result = CliRunner().invoke(cli.main, ["dlq", *given])
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
