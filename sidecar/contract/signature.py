"""Signatures of records that command the sidecar or speak for it: HMAC-SHA256 under the API token.

Form: `<time, epoch ms>.<64 hex digits>`, ASCII. Signed are the time and the given parts, each behind its length, so
that no two different lists of parts are the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final

AGE_MAX_MS: Final = 600_000
"""A signature made longer ago than this, or as far ahead, is refused: records cannot be kept and used again later."""

_FORM: Final = re.compile(rb"([0-9]{1,15})\.([0-9a-f]{64})")


def tokens_of(given: str | None) -> tuple[str, ...]:
    """Return the tokens of a setting, none if it is not set: the first signs and is sent, each one is accepted."""
    return () if given is None else tuple(given.split(","))


def sign(token: str, parts: Iterable[bytes], at_ms: int) -> bytes:
    """Return the signature of these parts.

    Args:
        token: setting API_TOKEN, whose first token signs.
        parts: what is signed, in an order that signer and verifier share.
        at_ms: wall time of the signer, epoch ms.
    """
    return b"%d.%s" % (at_ms, _digest(tokens_of(token)[0], parts, at_ms).encode())


def verify(token: str, parts: Iterable[bytes], signature: bytes | None, now_ms: int) -> bool:
    """Tell whether this is a signature of these parts that was made within AGE_MAX_MS of `now_ms`.

    Args:
        token: setting API_TOKEN, of which each token verifies.
        parts: as given to `sign`.
        signature: what came; None when none came. Any bytes are safe.
        now_ms: when the record came to be, by a clock that its sender cannot set.
    """
    at_ms = signed_at_ms(token, parts, signature)
    return at_ms is not None and abs(now_ms - at_ms) <= AGE_MAX_MS


def signed_at_ms(token: str, parts: Iterable[bytes], signature: bytes | None) -> int | None:
    """Return when this signature of these parts was made, however long ago; None when it is no such signature."""
    found = None if signature is None else _FORM.fullmatch(signature)
    if found is None:
        return None
    at_ms, signed = int(found[1]), tuple(parts)
    good = any(hmac.compare_digest(_digest(each, signed, at_ms).encode(), found[2]) for each in tokens_of(token))
    return at_ms if good else None


def _digest(token: str, parts: Iterable[bytes], at_ms: int) -> str:
    made = hmac.new(token.encode(), digestmod=hashlib.sha256)
    for part in (b"%d" % at_ms, *parts):
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.hexdigest()
