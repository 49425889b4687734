"""Dead letters: their headers, the filter, the decision on each, and the course of a run."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from sidecar import cli
from sidecar.contract.dead_letter import DeadLetter, RecordLocation
from sidecar.contract.redrive import RedriveTerms, Skipped, SkipReason
from sidecar.dlq.count import NAMES_MAX, OTHERS, Count
from sidecar.dlq.discards import Discard
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import DlqRecord, OffsetRange
from sidecar.dlq.redrive import RedriveLimits, RedrivePolicy, RedriveRun, Tally, still_ahead
from sidecar.engine.ports import Outgoing
from sidecar.errors import BrokerUnavailable, CommandFailed
from sidecar.kafka.admin.cluster import Topic
from sidecar.model import Headers, Reason
from sidecar.settings import Settings
from tests.clocks import HandClock
from tests.dead_letters import dead

HOUR_MS = 3_600_000
NATIVE: Headers = [("retry-origin-topic", b"orders"), ("retry-exception", b"com.acme.Late"), ("retry-group", b"shop")]
RETRY = Topic("retry", "id", 4, 1, frozenset(), {"max.message.bytes": "10000"})


def record(
    headers: Headers, reason: Reason = Reason.FATAL, *, offset: int = 0, value: bytes = b"v", **more: Any
) -> DlqRecord:
    held = dead(headers, reason, **more)
    return DlqRecord(0, offset, 5 * HOUR_MS, b"k", value, held, DeadLetter(held))


def settings() -> Settings:
    return Settings()


def policy(terms: RedriveTerms | None = None, wanted: DeadLetterFilter | None = None) -> RedrivePolicy:
    return RedrivePolicy(settings(), RETRY, wanted or DeadLetterFilter(), terms or RedriveTerms(), HandClock())


def test_what_is_discarded_stays_and_another_record_at_its_place_does_not() -> None:
    """A DLQ that was made anew begins its offsets anew."""
    found = record(NATIVE, offset=7)
    kept = Discard("alice@laptop", "a test", 0, found.timestamp_ms)
    for discard, stays in ((kept, True), (Discard("alice@laptop", "a test", 0, found.timestamp_ms - 1), False)):
        decided = RedrivePolicy(
            settings(), RETRY, DeadLetterFilter(), RedriveTerms(), HandClock(), {(0, 7): discard}
        ).decide(found)
        assert (decided == Skipped(SkipReason.DISCARDED, "alice@laptop: a test")) is stays
        assert isinstance(decided, Outgoing) is not stays
    others = RedrivePolicy(
        settings(), RETRY, DeadLetterFilter(("too-old",)), RedriveTerms(), HandClock(), {(0, 7): kept}
    )
    assert others.decide(found) is None, "the filter comes first"


# Reading


def test_a_dead_letter_says_why_it_died_and_what_it_was() -> None:
    said = DeadLetter(dead([*NATIVE, ("retry-attempt", b"2"), ("retry-redrives", b"1")]))
    assert (said.reason, said.detail, said.dialect and said.dialect.name) == ("fatal", "because", "native")
    assert (said.origin, said.exception, said.attempt, said.group) == ("orders", "com.acme.Late", 2, "shop")
    assert (said.timestamp_ms, said.came_from, said.redrives, said.truncated) == (
        1_700,
        RecordLocation("retry", 3, 99),
        1,
        False,
    )


def test_a_record_that_no_sidecar_wrote_says_nothing() -> None:
    given: list[Headers | None] = [None, [], [("colour", b"red")]]
    for headers in given:
        said = DeadLetter(headers)
        assert (said.reason, said.detail, said.origin, said.exception, said.group) == ("",) * 5
        assert (said.dialect, said.attempt, said.timestamp_ms, said.came_from, said.redrives) == (None,) * 4 + (0,)
        assert not said.is_control
        assert not said.truncated
    assert DeadLetter([("retry-dlq-reason", b"\xff")]).reason == "\\xff"


def test_an_ibm_message_is_read_without_its_quotes() -> None:
    said = DeadLetter(
        dead([("x-ibm-retry-origin-topic", b'"orders"'), ("x-ibm-retry-attempts", b'"2"')], Reason.MISSING_HEADER)
    )
    assert (said.dialect and said.dialect.name, said.origin, said.attempt) == ("ibm", "orders", 2)


# Which are meant


def test_a_filter_takes_names_and_globs_of_which_one_of_each_kind_must_match() -> None:
    said = DeadLetter(dead(NATIVE))
    assert DeadLetterFilter().matcher()(said)
    assert DeadLetterFilter(("fat*",), ("x", "ord*"), ("com.acme.*",), ("shop",)).matcher()(said)
    for other in (
        DeadLetterFilter(("bad-header",)),
        DeadLetterFilter(origins=("order",)),
        DeadLetterFilter(exceptions=("com.acme",)),
        DeadLetterFilter(groups=("*-2",)),
    ):
        assert not other.matcher()(said)


def test_a_run_has_the_name_of_its_filter_whatever_the_order() -> None:
    given = DeadLetterFilter(("fatal", "too-large"), ("orders",), died_from="-2h")
    assert given.run_name == DeadLetterFilter(("too-large", "fatal", "fatal"), ("orders",), died_from="-2h").run_name
    others = [
        DeadLetterFilter(),
        DeadLetterFilter(("fatal",)),
        DeadLetterFilter(("fatal", "too-large"), ("orders",), died_from="-3h"),
    ]
    assert len({each.run_name for each in [given, *others]}) == 4


def test_only_a_reason_that_is_written_out_is_named() -> None:
    assert DeadLetterFilter(("*", "fatal")).named == {"fatal"}


# Counting


def test_names_without_end_are_counted_as_others() -> None:
    count = Count(DeadLetterFilter(), 1)
    for number in range(NAMES_MAX + 5):
        count.add([record([("retry-origin-topic", b"o%d" % number)])])
    assert count.total == sum(count.by["origin"].values()) == NAMES_MAX + 5
    assert (count.by["origin"][OTHERS], len(count.by["origin"])) == (5, NAMES_MAX + 1)
    assert count.to_json("dlq")["examples"] == {"fatal": [record([("retry-origin-topic", b"o0")]).to_json()]}
    assert count.to_json("dlq")["by_hour"] == {"1970-01-01T05:00Z": NAMES_MAX + 5}


# What becomes of each


def test_a_redriven_record_goes_to_the_partition_of_the_retry_topic_that_it_came_from() -> None:
    sent = policy(RedriveTerms(delay_ms=1_000)).decide(record([("colour", b"red"), *NATIVE, ("retry-attempt", b"3")]))
    assert isinstance(sent, Outgoing)
    assert (sent.topic, sent.partition, sent.key, sent.value) == ("retry", 3, b"k", b"v")
    due = b"%d" % (HandClock().wall_ms() + 1_000)
    assert sent.headers == [("colour", b"red"), *NATIVE, ("retry-due-ms", due), ("retry-redrives", b"1")]
    elsewhere = policy().decide(record(NATIVE, topic="another"))
    assert isinstance(elsewhere, Outgoing)
    assert elsewhere.partition == -1


@pytest.mark.parametrize(
    ("given", "terms", "why"),
    [
        (record(NATIVE, truncated=True), RedriveTerms(), SkipReason.TRUNCATED),
        (record([*NATIVE, ("retry-redrives", b"3")]), RedriveTerms(), SkipReason.LOOP_GUARD),
        (record([*NATIVE, ("retry-redrives", b"x")]), RedriveTerms(), SkipReason.LOOP_GUARD),
        (record(NATIVE, Reason.TOO_LARGE), RedriveTerms(), SkipReason.WOULD_DIE_AGAIN),
        (record(NATIVE, Reason.DELAY_OUT_OF_RANGE), RedriveTerms(to_origin="orders"), SkipReason.WOULD_DIE_AGAIN),
        (record([], Reason.MISSING_HEADER), RedriveTerms(named=frozenset({"missing-header"})), SkipReason.MALFORMED),
        (
            record([("retry-control", b"cancel")], Reason.BAD_HEADER),
            RedriveTerms(to_origin="orders"),
            SkipReason.MALFORMED,
        ),
        (record(NATIVE, value=bytes(10_000)), RedriveTerms(), SkipReason.TOO_LARGE),
        (DlqRecord(0, 0, 0, None, None, None, DeadLetter(None)), RedriveTerms(), SkipReason.NOT_A_DEAD_LETTER),
    ],
)
def test_what_cannot_live_stays_and_says_why(given: DlqRecord, terms: RedriveTerms, why: SkipReason) -> None:
    stays = policy(terms).decide(given)
    assert isinstance(stays, Skipped)
    assert stays.why is why


@pytest.mark.parametrize(
    ("given", "terms"),
    [
        (record(NATIVE, Reason.TOO_LARGE), RedriveTerms(named=frozenset({"too-large"}))),
        (record(NATIVE, Reason.TOO_LARGE), RedriveTerms(to_origin="orders")),
        (record([], Reason.MISSING_HEADER), RedriveTerms(to_origin="orders")),
        (record([*NATIVE, ("retry-origin-topic", b"twice")], Reason.BAD_HEADER), RedriveTerms(to_origin="orders")),
        (record([*NATIVE, ("retry-redrives", b"3")]), RedriveTerms(max_redrives=4)),
        (record([*NATIVE, ("retry-due-ms", b"x")], Reason.BAD_HEADER), RedriveTerms(named=frozenset({"bad-header"}))),
    ],
)
def test_what_is_named_or_fixed_goes(given: DlqRecord, terms: RedriveTerms) -> None:
    sent = policy(terms).decide(given)
    assert isinstance(sent, Outgoing)
    assert dict(sent.headers)["retry-origin-topic"] == b"orders"


def test_another_origin_takes_its_partition_away_and_old_ids_replace_nothing() -> None:
    came: Headers = [*NATIVE, ("retry-origin-partition", b"7"), ("retry-id", b"i"), ("retry-replace", b"true")]
    sent = policy(RedriveTerms(to_origin="payments")).decide(record(came))
    assert isinstance(sent, Outgoing)
    names = [name for name, _ in sent.headers]
    assert "retry-origin-partition" not in names
    assert "retry-replace" not in names
    assert ("retry-id", b"i") in sent.headers


def test_attempts_are_kept_when_asked_for() -> None:
    came: Headers = [*NATIVE, ("retry-attempt", b"2"), ("retry-remaining", b"1")]
    kept = policy(RedriveTerms(keep_attempts=True)).decide(record(came))
    restarted = policy().decide(record(came))
    assert isinstance(kept, Outgoing)
    assert isinstance(restarted, Outgoing)
    assert set(came) <= set(kept.headers)
    assert not {"retry-attempt", "retry-remaining"} & dict(restarted.headers).keys()


# A run


class Given:
    """A reader of what is given; five at a time."""

    def __init__(self, records: Sequence[DlqRecord]) -> None:
        self._records = list(records)
        self._next = {0: 0}
        self._end = len(records) + 1
        """A marker of a transaction stands at the end."""

    membership = b"m"

    @property
    def done(self) -> bool:
        return not self._records

    @property
    def remaining(self) -> int:
        return self._end - self._next[0]

    @property
    def next_offsets(self) -> Mapping[int, int]:
        return self._next

    def read(self) -> list[DlqRecord]:
        taken, self._records = self._records[:5], self._records[5:]
        self._next = {0: taken[-1].offset + 1 if self._records else self._end}
        return taken


class Kept:
    """The records that a run has sent, transaction by transaction."""

    def __init__(self, clock: HandClock) -> None:
        self.transactions: list[tuple[list[Outgoing], dict[int, int]]] = []
        self.fails_at = -1
        self._written: list[Outgoing] | None = None
        self.clock = clock

    def write(self, records: Sequence[Outgoing]) -> None:
        assert self._written is None, "the transaction before is not committed"
        self._written = list(records)

    def commit(self, offsets: Mapping[int, int], membership: bytes) -> None:
        assert membership == b"m"
        assert self._written is not None
        if self.fails_at == len(self.transactions):
            raise CommandFailed("the broker is away")
        self.transactions.append((self._written, dict(offsets)))
        self._written = None
        self.clock.now_s += 0.125


def went(records: Sequence[DlqRecord], limits: RedriveLimits) -> tuple[Kept, RedriveRun]:
    kept, redrive_run = run_of(records, limits)
    assert redrive_run.run(lambda remaining: None)
    return kept, redrive_run


def run_of(records: Sequence[DlqRecord], limits: RedriveLimits, *, stopping: bool = False) -> tuple[Kept, RedriveRun]:
    clock = HandClock()
    kept = Kept(clock)
    redrive: Any = kept
    policy_ = RedrivePolicy(settings(), RETRY, DeadLetterFilter(), RedriveTerms(), clock)
    return kept, RedriveRun(Given(records), redrive, policy_, limits, lambda: stopping, clock)


def test_the_progress_is_in_the_transaction_that_sends_and_the_end_is_committed_at_the_end() -> None:
    kept, redrive_run = went([record(NATIVE, offset=each) for each in range(12)], RedriveLimits(None, None))
    assert [offsets[0] for _, offsets in kept.transactions] == [5, 10, 13]
    assert redrive_run.tally.redriven == sum(len(records) for records, _ in kept.transactions) == 12


def test_each_transaction_notes_what_it_sends_and_what_stays_before_it() -> None:
    given = [record(NATIVE, offset=each, truncated=each % 2 == 0) for each in range(9)]
    kept, redrive_run = went(given, RedriveLimits(3, None))
    assert [(len(records), offsets[0]) for records, offsets in kept.transactions] == [(2, 5), (1, 6)]
    assert (redrive_run.tally.redriven, redrive_run.tally.skipped) == (3, {SkipReason.TRUNCATED: {"fatal": 3}})


@pytest.mark.parametrize(
    ("stopped", "start", "end"),
    [
        (None, 40, 80),
        (50, 50, 80),
        # Deleted by age meanwhile.
        (3, 10, 80),
        # It was here before with a later --died-to.
        (90, 90, 90),
    ],
)
def test_a_run_continues_where_it_stopped(stopped: int | None, start: int, end: int) -> None:
    whole = {0: OffsetRange(first=10, start=40, end=80, last=100)}
    assert still_ahead(whole, {0: stopped}, "r", "dlq") == {0: OffsetRange(10, start, end, 100)}


def test_a_dlq_that_ends_before_the_run_has_stopped_is_another_one() -> None:
    with pytest.raises(CommandFailed, match="run r stopped at offset 101 of partition 0, and topic dlq ends at 100"):
        still_ahead({0: OffsetRange(10, 40, 80, 100)}, {0: 101}, "r", "dlq")


def test_a_rate_is_kept() -> None:
    """The clock advances by an eighth of a second with each transaction: room for one more at eight a second."""
    kept, _ = went([record(NATIVE, offset=each) for each in range(8)], RedriveLimits(None, 8.0))
    sizes = [len(records) for records, _ in kept.transactions]
    assert sum(sizes) == 8
    assert all(total <= 1 + number for number, total in enumerate(itertools.accumulate(sizes)))


def test_what_was_sent_is_counted_while_a_rate_holds_the_rest_back() -> None:
    kept, redrive_run = run_of([record(NATIVE, offset=each) for each in range(3)], RedriveLimits(None, 0.001))
    seen = []

    def advanced(_remaining: int) -> None:
        seen.append(redrive_run.sent)
        if redrive_run.sent == 1:
            raise BrokerUnavailable("that is enough")

    with pytest.raises(BrokerUnavailable):
        redrive_run.run(advanced)
    assert seen[-1] == 1
    assert [len(records) for records, _ in kept.transactions] == [1]


def test_a_run_that_is_stopped_has_committed_all_that_it_sent() -> None:
    kept, redrive_run = run_of([record(NATIVE)], RedriveLimits(None, None), stopping=True)
    assert not redrive_run.run(lambda remaining: None)
    assert (kept.transactions, redrive_run.tally.redriven) == ([], 0)


def test_a_run_over_the_next_partition_goes_on_with_the_counts_the_limit_and_the_rate() -> None:
    given = [record(NATIVE, offset=each) for each in range(4)]
    kept, first = went(given, RedriveLimits(6, 8.0))
    redrive: Any = kept
    policy_ = RedrivePolicy(settings(), RETRY, DeadLetterFilter(), RedriveTerms(), kept.clock)
    second = RedriveRun(Given(given), redrive, policy_, RedriveLimits(6, 8.0), lambda: False, kept.clock, first)
    assert not first.at_limit
    assert second.run(lambda remaining: None)
    assert (second.tally.redriven, second.sent, second.at_limit) == (6, 6, True)
    sizes = [len(records) for records, _ in kept.transactions]
    assert sum(sizes) == 6
    assert all(total <= 1 + number for number, total in enumerate(itertools.accumulate(sizes)))


def test_a_commit_that_fails_ends_the_run_and_its_records_do_not_count_as_sent() -> None:
    kept, redrive_run = run_of([record(NATIVE, offset=each) for each in range(15)], RedriveLimits(None, None))
    kept.fails_at = 1
    with pytest.raises(CommandFailed, match="the broker is away"):
        redrive_run.run(lambda remaining: None)
    assert [len(records) for records, _ in kept.transactions] == [5]
    assert redrive_run.sent == 5


def test_a_reader_that_fails_ends_the_run_after_the_commit_in_flight() -> None:
    kept, redrive_run = run_of([record(NATIVE, offset=each) for each in range(15)], RedriveLimits(None, None))

    def advanced(remaining: int) -> None:
        if remaining <= 6:
            raise BrokerUnavailable("nothing came")

    with pytest.raises(BrokerUnavailable):
        redrive_run.run(advanced)
    assert [len(records) for records, _ in kept.transactions] == [5, 5]
    assert redrive_run.sent == 10


def test_the_tally_tells_programs_why_each_stays_by_the_reason_of_its_death() -> None:
    tally, all_ways = Tally(), policy()
    for each in (record(NATIVE), record(NATIVE, Reason.BAD_HEADER), record(NATIVE, Reason.BAD_HEADER, offset=7)):
        tally.add(each, all_ways.decide(each))
    tally.add(record(NATIVE), None)
    assert (tally.read, tally.redriven, tally.filtered) == (4, 1, 1)
    assert tally.skipped == {SkipReason.WOULD_DIE_AGAIN: {"bad-header": 2}}
    assert [skipped.why for _, skipped in tally.first_skipped] == [SkipReason.WOULD_DIE_AGAIN] * 2


# Usage


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["report", "--reason", "no-such"], "matches no reason: allowed are missing-header, "),
        (["report", "--died-from", "yesterday"], "must be epoch milliseconds"),
        (["redrive", "--yes", "--to-origin", "a b"], "--to-origin: retry-origin-topic="),
        (["redrive", "--yes", "--to-origin", "dlq"], "--to-origin: dlq is no origin"),
        (["redrive", "--yes", "--run", "a/b"], "--run: 'a/b': allowed are"),
        (["redrive"], "stdin is not a terminal, so no confirmation is possible: give --yes or --dry-run"),
    ],
)
def test_a_mistake_in_the_command_says_what_is_allowed(given: list[str], says: str) -> None:
    result = CliRunner().invoke(cli.main, ["dlq", *given])
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())
