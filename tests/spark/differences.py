"""What is different on the Spark engine: one list, which the tests hold and docs/how-to/spark.md shows as a table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from tests.docs.pages import DOCS

PAGE: Final = DOCS / "how-to" / "spark.md"
BEGIN: Final = "<!-- differences: python -m tests.docs -->"
END: Final = "<!-- differences end -->"


class Refused(NamedTuple):
    """A request that a Spark driver answers with an error."""

    method: str
    path: str
    status: int
    reason: str
    """Part of the message."""


class Difference(NamedTuple):
    """One thing that the two engines do differently."""

    name: str
    embedded: str
    spark: str
    test: str = ""
    """The file and name of the test that shows it; empty: a request in `refused` does, or no test can."""
    refused: Refused | None = None


DIFFERENCES: Final = (
    Difference(
        "lists, search, single messages",
        "the store as it is now",
        "the state as one micro-batch shows it: `as_of_ms` and `micro_batch` say which. One read at a time, up to "
        "10 s; then 503 with `Retry-After`",
        "tests/spark/test_messages.py::test_messages_are_listed_found_and_shown_and_a_filter_changes_what_it_matches",
    ),
    Difference(
        "rows that a page looks at",
        "2,000",
        "whole slots of the wheel, until the page is full or 16 MiB are read, for 2 s at most",
        "tests/spark/reads/test_reader.py::test_a_page_reads_the_slots_that_it_shows_and_no_others",
    ),
    Difference(
        "reload of policies",
        "SIGHUP, `POST /policies/reload`",
        "none: policies are read when the query starts; SIGHUP ends the driver",
        refused=Refused("POST", "/policies/reload", 501, "takes no policies over while it runs"),
    ),
    Difference(
        "`ORDER=key`",
        "keeps the order of a key",
        "refused at the start. Messages that were stored with an order are delivered at their due times",
        "tests/spark/stream/test_setup.py::test_order_per_key_is_refused",
    ),
    Difference(
        "a DLQ of a policy (`dlq_topic`)",
        "allowed",
        "refused at the start: there is one DLQ",
        "tests/spark/stream/test_setup.py::test_a_dlq_of_a_policy_is_refused",
    ),
    Difference(
        "missing topics or permissions at the start",
        "waits, not ready, and names them",
        "exits with status 1 and names them",
    ),
    Difference(
        "one delivery that its origin refuses (a compacted topic and no key)",
        "dead-lettered in the same transaction",
        "found after the partition step: counts as fired. The dead letter has the original message, read again from "
        "the retry topic, or the headers of the delivery if the topic has deleted it",
        "tests/spark/stream/test_sink_refusals.py::test_an_origin_that_takes_nothing_is_closed_by_the_second_attempt",
    ),
    Difference("a rate", "to the millisecond", "smooth to the length of a micro-batch"),
    Difference(
        "a notification of dead letters",
        "counts by origin, exception, group and reason, with samples",
        "counts by reason; `examined` is 0. It is sent after the micro-batch",
        "tests/spark/test_notify.py::test_a_driver_announces_the_dead_letters_of_a_micro_batch_by_reason",
    ),
    Difference(
        "the last hour (`/activity`, dashboard)",
        "each partition publishes it, and its next owner continues it",
        "the driver counts since it started; `retry-sidecar api` has none",
        "tests/spark/test_figures.py::test_the_last_hour_is_what_the_micro_batches_did",
    ),
    Difference(
        "Kafka Connect's restart",
        "restores partitions again",
        "changes nothing",
    ),
    Difference(
        "`lateness_seconds`, `commit_seconds`, `transactions_total`",
        "of each transaction",
        "of each micro-batch: the lateness ends with it, so it is an upper bound, and what was handed out ahead counts "
        "as sent with its plan; `aborted` and `fenced` count micro-batches that failed",
        "tests/spark/test_figures.py::test_a_micro_batch_that_fails_is_a_transaction_that_failed",
    ),
    Difference(
        "`restore_seconds`, `store_bytes`, `input_lag`",
        "of the partition, the state folder, the log",
        "from the driver's start to the first micro-batch; files of the state on the executors; what the source had "
        "not read at the end of a micro-batch",
        "tests/spark/test_figures.py::test_the_progress_of_a_micro_batch_fills_the_metrics",
    ),
    Difference(
        "open files",
        "`process_open_fds`",
        "the same of the driver's Python process, and `open_files` of all processes: `RetrySidecarOpenFiles` can fire",
        "tests/spark/test_open_files.py::test_a_query_keeps_no_socket_of_a_micro_batch",
    ),
    Difference(
        "`store_free_bytes`, `changelog_bytes_total`, `dlq_records`, `input_lost_total`, "
        "`last_stable_offset_stuck_seconds`",
        "measured",
        "empty or 0: `RetrySidecarStateDiskFilling`, `RetrySidecarDlqLarge`, `RetrySidecarInputLost`, "
        "`RetrySidecarReloadRejected` and `RetrySidecarLastStableOffsetStuck` cannot fire. A query that loses input "
        "ends: `RetrySidecarDown` or `RetrySidecarNotReady` fires",
        "tests/spark/test_figures.py::test_each_alert_can_fire_on_spark_unless_the_table_says_that_it_cannot",
    ),
)


def table() -> str:
    """Return the table as Markdown."""
    rows = "".join(f"| {each.name} | {each.embedded} | {_of_spark(each)} |\n" for each in DIFFERENCES)
    return f"| | embedded engine | Spark engine |\n|---|---|---|\n{rows}"


def _of_spark(difference: Difference) -> str:
    refused = difference.refused
    if refused is None:
        return difference.spark
    return f"{difference.spark}. `{refused.method} {refused.path}` answers {refused.status}"


def page() -> str:
    """Return the page with the table between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{table()}\n{END}{after}"


def unable_alerts() -> Iterator[str]:
    """Yield the alerts that cannot fire on Spark, as the table says."""
    for each in DIFFERENCES:
        if "cannot fire" in each.spark:
            yield from re.findall(r"`(RetrySidecar\w+)`", each.spark.partition("cannot fire")[0])
