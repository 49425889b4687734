"""What a notification says: counts, samples without payload, and bounds on both."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sidecar.model import Headers, Reason
from sidecar.notify.summary import (
    FIELDS,
    NAME_CHARS_MAX,
    NAMES_MAX,
    OTHERS,
    SAMPLES_MAX,
    SAMPLES_OF_A_REASON_MAX,
    SHOWN_MAX,
    TEXT_CHARS_MAX,
    Source,
    Summary,
)
from tests.dead_letters import dead as dead_letter

SOURCE = Source("kafka-retry", "sidecar-0", "dlq")


def dead(reason: Reason = Reason.FATAL, origin: str = "orders", exception: str = "com.acme.Late") -> Headers:
    """Return the headers of a dead letter, as the sidecar writes them."""
    came: Headers = [
        ("retry-origin-topic", origin.encode()),
        ("retry-exception", exception.encode()),
        ("retry-group", b"shop"),
    ]
    return dead_letter(came, reason, detail="it failed", partition=2, offset=41, timestamp_ms=1_770_000_000_000)


def summary_of(*headers: tuple[Reason, Headers]) -> dict[str, Any]:
    summary = Summary()
    for reason, each in headers:
        summary.by_reason[reason.value] += 1
        summary.examine(each)
    return summary.fields(SOURCE, "a", "b", 1, 2)


def test_it_counts_by_reason_origin_exception_and_group_and_shows_samples() -> None:
    fields = summary_of(
        (Reason.FATAL, dead()),
        (Reason.FATAL, dead(origin="payments")),
        (Reason.TOO_LARGE, dead(Reason.TOO_LARGE)),
    )
    assert fields.keys() == set(FIELDS)
    assert (fields["count"], fields["examined"]) == (3, 3)
    assert fields["by_reason"] == {"fatal": 2, "too-large": 1}
    assert fields["by_origin"] == {"orders": 2, "payments": 1}
    assert fields["by_exception"] == {"com.acme.Late": 3}
    assert fields["by_group"] == {"shop": 3}
    assert fields["summary"] == (
        "3 dead letters on dlq; reasons: fatal 2, too-large 1; origins: orders 2, payments 1; "
        "exceptions: com.acme.Late 3; groups: shop 3"
    )
    assert fields["samples"][0] == {
        "reason": "fatal",
        "detail": "it failed",
        "origin": "orders",
        "exception": "com.acme.Late",
        "group": "shop",
        "attempt": 0,
        "redrives": 0,
        "timestamp_ms": 1_770_000_000_000,
        "came_from": {"topic": "retry", "partition": 2, "offset": 41},
    }


def test_a_single_one_is_said_so() -> None:
    assert summary_of((Reason.FATAL, dead()))["summary"].startswith("1 dead letter on dlq; reasons: fatal 1;")


def test_samples_are_few_and_of_each_reason() -> None:
    many = [(reason, dead(reason)) for reason in (Reason.FATAL, Reason.TOO_LARGE) for _ in range(50)]
    samples = summary_of(*many)["samples"]
    assert Counter(each["reason"] for each in samples) == dict.fromkeys(("fatal", "too-large"), SAMPLES_OF_A_REASON_MAX)
    every = summary_of(*((reason, dead(reason)) for reason in Reason for _ in range(9)))["samples"]
    assert len(every) == SAMPLES_MAX


def test_names_are_bounded_in_number_and_length() -> None:
    fields = summary_of(*((Reason.FATAL, dead(exception=f"{n:05}" + "x" * 5_000)) for n in range(NAMES_MAX + 50)))
    assert SHOWN_MAX <= len(fields["by_exception"]) <= SHOWN_MAX + 1
    assert sum(fields["by_exception"].values()) == NAMES_MAX + 50
    assert max(map(len, fields["by_exception"])) == NAME_CHARS_MAX
    assert fields["by_exception"][OTHERS] > NAMES_MAX - SHOWN_MAX
    assert len(fields["summary"]) == TEXT_CHARS_MAX


@given(st.lists(st.tuples(st.text(max_size=30), st.none() | st.binary(max_size=30)), max_size=8))
def test_any_headers_are_counted(headers: Headers) -> None:
    summary = Summary()
    summary.by_reason["fatal"] += 1
    summary.examine(headers)
    fields = summary.fields(SOURCE, "a", "b", 1, 2)
    assert sum(fields["by_origin"].values()) == sum(fields["by_group"].values()) == 1
