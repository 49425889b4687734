"""The record that sends a failed message to the retry topic."""

from __future__ import annotations

from typing import NamedTuple

from retry_sidecar.consumed import AnyMessage, Consumed
from retry_sidecar.headers import (
    ATTEMPT,
    GROUP,
    HISTORY,
    REPLACED,
    Headers,
    Retry,
    exception_name,
    foreign_attempts,
    names_topic,
    text,
)


class RetryRecord(NamedTuple):
    """A record for the retry topic, to be sent with any client library."""

    key: bytes | None
    value: bytes | None
    headers: Headers


def retry_record(
    message: AnyMessage,
    error: BaseException | None = None,
    *,
    due_ms: int | None = None,
    delay_ms: int | None = None,
    group: str | None = None,
    qualified_names: bool = True,
) -> RetryRecord:
    """Return the record that brings a consumed message back to the topic that it was consumed from.

    Headers that name another origin were copied from a message of that topic: what they say of retries does not apply
    to this message, so it is sent without them, as at its first attempt.

    Args:
        message: The message as consumed; its key, value, other headers and attempts are kept. A header of the sidecar
            that is not UTF-8 is left out.
        error: The error; its class name goes into `retry-exception`.
        due_ms: The due time, in epoch milliseconds; without it `delay_ms`, or else the policy's delay.
        delay_ms: The delay from the time of sending.
        group: The consumer's group; without it the one in the headers stays.
        qualified_names: Whether the class name has its module before it.

    Raises:
        ValueError: Both `due_ms` and `delay_ms` are given.
        TypeError: Key or value are no bytes.
    """
    came = Consumed.of(message)
    gone = REPLACED if names_topic(came.headers, came.topic) else REPLACED | HISTORY
    kept = [header for header in came.headers if header[0] not in gone]
    values = dict(kept)
    retry = Retry(
        origin=came.topic,
        due_ms=due_ms,
        delay_ms=delay_ms,
        attempt=None if ATTEMPT in values else foreign_attempts(came.headers, came.topic),
        exception=None if error is None else exception_name(error, qualified=qualified_names),
        group=group or text(values.get(GROUP)),
    )
    others = [header for header in kept if header[0] != GROUP]
    return RetryRecord(came.key, came.value, [*others, *retry.headers()])
