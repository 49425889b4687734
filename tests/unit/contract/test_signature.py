"""Signatures over records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.contract.signature import AGE_MAX_MS, sign, verify

NOW_MS = 1_770_000_000_000
PARTS = (b"topic", b"3", b"content")

parts = st.lists(st.binary(max_size=6), max_size=4)


@given(parts, st.text(min_size=1, max_size=20))
def test_what_was_signed_is_accepted(signed: list[bytes], token: str) -> None:
    assert verify(token, signed, sign(token, signed, NOW_MS), NOW_MS)


@given(parts, parts)
def test_other_parts_are_refused(signed: list[bytes], shown: list[bytes]) -> None:
    """Even when the concatenated bytes are equal: `ab`, `c` is not `a`, `bc`."""
    assert verify("secret", shown, sign("secret", signed, NOW_MS), NOW_MS) is (signed == shown)


def test_another_token_is_refused() -> None:
    assert not verify("secret", PARTS, sign("Secret", PARTS, NOW_MS), NOW_MS)


@pytest.mark.parametrize(
    ("off_ms", "accepted"), [(AGE_MAX_MS, True), (AGE_MAX_MS + 1, False), (-AGE_MAX_MS, True), (-AGE_MAX_MS - 1, False)]
)
def test_a_signature_is_good_for_ten_minutes(off_ms: int, accepted: bool) -> None:
    assert verify("secret", PARTS, sign("secret", PARTS, NOW_MS), NOW_MS + off_ms) is accepted


def test_the_time_cannot_be_changed() -> None:
    _, _, digest = sign("secret", PARTS, NOW_MS).partition(b".")
    assert not verify("secret", PARTS, b"%d.%s" % (NOW_MS + 1, digest), NOW_MS)


@given(st.none() | st.binary(max_size=100))
def test_any_other_bytes_are_refused(signature: bytes | None) -> None:
    assert not verify("secret", PARTS, signature, NOW_MS)
