"""Records with old timestamps, which retention may delete before they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest

from sidecar.kafka.admin.cluster import Topic
from sidecar.kafka.old_timestamps import OldTimestamp, Seen, oldest, retention_ms
from sidecar.kafka.range_reader import Range
from sidecar.model import NO_TIMESTAMP, Record

NOW_MS = 1_770_000_000_000
DAY_MS = 86_400_000
KEPT_MS = 7 * DAY_MS
NEVER: Callable[[], bool] = lambda: False  # noqa: E731


class Log:
    """Partitions with records of these timestamps, two in a slice."""

    def __init__(self, *stamps_ms: list[int]) -> None:
        self.stamps_ms = stamps_ms

    @property
    def ranges(self) -> list[Range]:
        return [Range("retry", number, 0, len(found)) for number, found in enumerate(self.stamps_ms)]

    def read(self, wanted: Range, *, skips_deleted: bool = False) -> Iterator[Iterable[Record]]:
        assert skips_deleted, "retention deletes meanwhile"
        found = [
            Record(wanted.partition, offset, stamp_ms, None, None, [])
            for offset, stamp_ms in enumerate(self.stamps_ms[wanted.partition])
        ]
        yield from (found[at : at + 2] for at in range(0, len(found), 2))

    def seen(self, unread: Mapping[int, int]) -> Seen:
        return oldest(self, self.ranges, unread, KEPT_MS, NOW_MS, NEVER)


def test_a_record_with_an_older_timestamp_than_one_before_it_is_found_though_it_is_read() -> None:
    log = Log([NOW_MS - DAY_MS, NOW_MS - 6 * DAY_MS, NOW_MS], [NOW_MS - DAY_MS, NOW_MS])
    assert log.seen({0: 3, 1: 2}) == Seen(OldTimestamp(0, 1, 5 * DAY_MS), 2)


def test_an_unread_record_is_compared_with_the_clock() -> None:
    log = Log([NOW_MS - 5 * DAY_MS, NOW_MS - 4 * DAY_MS, NOW_MS - DAY_MS])
    assert log.seen({0: 1}).oldest == OldTimestamp(0, 1, 4 * DAY_MS)
    assert log.seen({}).oldest == OldTimestamp(0, 0, 5 * DAY_MS)


def test_a_topic_to_which_nothing_was_sent_for_long_is_fine_once_it_is_read() -> None:
    assert Log([NOW_MS - 6 * DAY_MS, NOW_MS - 5 * DAY_MS]).seen({0: 2}).oldest is None


def test_up_to_half_of_the_retention_is_fine() -> None:
    assert Log([NOW_MS, NOW_MS - KEPT_MS // 2]).seen({}).oldest is None
    assert Log([NOW_MS, NOW_MS - KEPT_MS // 2 - 1]).seen({0: 2}).oldest is not None


def test_a_timestamp_in_the_future_makes_no_other_one_old() -> None:
    assert Log([NOW_MS + 30 * DAY_MS, NOW_MS - DAY_MS]).seen({0: 2}).oldest is None


def test_a_record_without_a_timestamp_is_left_out() -> None:
    assert Log([NOW_MS, NO_TIMESTAMP]).seen({}).oldest is None


def test_partitions_that_cannot_be_read_in_time_are_left_out() -> None:
    log = Log([NOW_MS], [NOW_MS - 6 * DAY_MS], [NOW_MS])
    late = iter([False, True])
    assert oldest(log, log.ranges, {}, KEPT_MS, NOW_MS, lambda: next(late)) == Seen(None, 1)


@pytest.mark.parametrize(
    ("changed", "kept_ms"),
    [
        ({}, KEPT_MS),
        ({"cleanup.policy": "compact,delete"}, KEPT_MS),
        ({"cleanup.policy": "compact"}, None),
        ({"retention.ms": "-1"}, None),
        ({"message.timestamp.type": "LogAppendTime"}, None),
    ],
)
def test_only_a_topic_that_keeps_records_by_their_producers_timestamps_is_looked_at(
    changed: dict[str, str], kept_ms: int | None
) -> None:
    usual = {
        "cleanup.policy": "delete",
        "retention.ms": str(KEPT_MS),
        "message.timestamp.type": "CreateTime",
    }
    assert retention_ms(Topic("retry", "id", 1, 1, frozenset(), {**usual, **changed})) == kept_ms
