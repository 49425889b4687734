"""Sizes on the wire are never larger than said, and a dead letter always fits."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sidecar.changelog.entry import HEAD, MOVING, head, lasting, payload
from sidecar.contract import DIALECTS_BY_CODE, fit_dead_letter, render_dead_letter
from sidecar.contract.sizes import BATCH_BYTES, DELIVERY_OVERHEAD_BYTES, content_bytes, record_bytes
from sidecar.model import Headers, Reason

SIZES = st.sampled_from((0, 1, 31, 32, 63, 64, 127, 128, 255, 256, 8_191, 8_192, 65_535, 65_536, 200_000))
BYTES = st.none() | SIZES.map(bytes)
NAMES = st.sampled_from(("h", "ü" * 40, "x" * 300, "retry-attempt", "retry-origin-topic", "retry-due-ms"))
HEADERS: st.SearchStrategy[Headers] = st.lists(st.tuples(NAMES, BYTES), max_size=12)
OFFSETS = st.sampled_from((0, 7, 2**40, 2**62))


def varint(number: int) -> int:
    """Return the bytes of a zigzag varint."""
    return max(1, ((number << 1 ^ number >> 63).bit_length() + 6) // 7)


def on_the_wire(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of a batch of this record in format v2, by the book."""
    body = 1 + varint(2**62) + varint(0) + varint(len(headers))
    texts = [key, value, *(part for name, held in headers for part in (name.encode(), held))]
    body += sum(varint(-1 if text is None else len(text)) + len(text or b"") for text in texts)
    return BATCH_BYTES + varint(body) + body


@given(BYTES, BYTES, HEADERS)
def test_a_record_takes_no_more_than_its_bound_and_more_than_its_content(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    wire = on_the_wire(key, value, headers)
    assert content_bytes(key, value, headers) < wire <= record_bytes(key, value, headers)


@given(BYTES, BYTES, HEADERS, OFFSETS, st.sampled_from((1, 2)))
def test_a_fire_takes_no_more_than_its_entry_and_a_constant(
    key: bytes | None, value: bytes | None, headers: Headers, offset: int, dialect: int
) -> None:
    rest = lasting(2**43, 2**43, 999, 1_000, dialect, b"orders", b"i" * 256, key, value, headers, 2**31 - 1)
    entry = MOVING.pack(2**43, offset, 2**43, 5, 0) + rest
    fixed = head(entry)
    came = payload(entry, HEAD.size + fixed.origin_length + fixed.retry_id_length)
    rendered = DIALECTS_BY_CODE[dialect].render(came[2], 999, 1_000, (2**31 - 1, offset, 2**43), 2**43)
    assert on_the_wire(key, value, rendered) <= len(entry) + DELIVERY_OVERHEAD_BYTES


@given(BYTES, BYTES, HEADERS, st.sampled_from((0, 1_500, 5_000, 70_000, 300_000, 10**7)))
def test_a_dead_letter_fits_and_says_what_is_missing(
    key: bytes | None, value: bytes | None, headers: Headers, bytes_max: int
) -> None:
    rendered = render_dead_letter(
        headers,
        reason=Reason.FATAL,
        detail="d" * 200,
        topic="t" * 249,
        partition=2**31 - 1,
        offset=2**62,
        timestamp_ms=2**43,
        connector_name="c" * 100,
        stage="intake",
    )
    left = fit_dead_letter(key, value, rendered, bytes_max)
    assert on_the_wire(*left) <= max(bytes_max, 1_000)
    missing = (dict(left[2]).get("retry-dlq-truncated") or b"").decode().split(",")
    assert ("value" in missing) == (left[1] != value)
    assert ("key" in missing) == (left[0] != key)
    assert (
        {name for name, _ in rendered} - {name for name, _ in left[2]} == set() or "headers" in missing or not bytes_max
    )
