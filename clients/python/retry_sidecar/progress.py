"""What a consumer may commit: messages that are handled, skipped, or safe on the retry topic. Pure."""

from __future__ import annotations

from collections import defaultdict
from enum import StrEnum
from typing import Final

from retry_sidecar.consumed import AnyMessage, Consumed, is_for_group, timer_id_of

REMEMBERED_MAX: Final = 10_000
"""The default number of timer ids that a repeat filter remembers: about 2 MB."""
DELIVERY_TIMEOUT_S: Final = 60.0
"""The default of the longest wait for a confirmation; below `max.poll.interval.ms`, which is 5 minutes by default."""


class Result(StrEnum):
    """The result of a message."""

    HANDLED = "handled"
    SENT_BACK = "sent-back"
    """The handler failed: the message goes to the retry topic."""
    OTHER_GROUP = "other-group"
    """Skipped: a delivery for another consumer group, which failed."""
    REPEAT = "repeat"
    """Skipped: a delivery that was handled before."""


class RetryNotDelivered(Exception):
    """A failed message is not confirmed on the retry topic. Its offset is not committed."""


class RetryingStopped(Exception):
    """An earlier message was neither handled nor sent back: close the consumer, and start again from its commits."""


class RepeatFilter:
    """Recognises deliveries that were handled before by their timer id, which only repeats share.

    A consumer that reads uncommitted records sees repeats after an aborted transaction of the sidecar; every consumer
    sees them after a rebalance.

    Args:
        remember: The number of timer ids that are remembered; the oldest goes first.
    """

    def __init__(self, remember: int = REMEMBERED_MAX) -> None:
        if remember < 0:
            raise ValueError(f"remember={remember}: allowed are 0 (no filter) and more")
        self._remember = remember
        self._seen: dict[str, None] = {}

    def is_repeat(self, message: AnyMessage) -> bool:
        """Return whether a delivery with the same timer id was added before."""
        return timer_id_of(message) in self._seen

    def add(self, message: AnyMessage) -> None:
        """Remember a message that is handled or sent back. A message without a timer id is never a repeat."""
        timer_id = timer_id_of(message)
        if timer_id is None or not self._remember:
            return
        self._seen[timer_id] = None
        if len(self._seen) > self._remember:
            del self._seen[next(iter(self._seen))]


class Progress:
    """The messages that one consumer has begun and those that are done.

    Args:
        group: The consumer's group.
        remember: See RepeatFilter.
    """

    def __init__(self, group: str, remember: int) -> None:
        self._group = group
        self._repeats = RepeatFilter(remember)
        self._begun: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        self._next: dict[tuple[str, int], int] = {}
        self._stopped = ""

    def begin(self, message: Consumed) -> Result | None:
        """Return why a message is skipped; None: it is to be handled.

        Raises:
            RetryingStopped: An earlier message was neither handled nor sent back.
        """
        if self._stopped:
            raise RetryingStopped(self._stopped)
        self._begun[message.topic, message.partition].add(message.offset)
        skipped = None
        if not is_for_group(message, self._group):
            skipped = Result.OTHER_GROUP
        elif self._repeats.is_repeat(message):
            skipped = Result.REPEAT
        if skipped is not None:
            self._pass(message)
        return skipped

    def finish(self, message: Consumed) -> None:
        """Note that a message is handled or sent back."""
        self._repeats.add(message)
        self._pass(message)

    def stop(self, why: str) -> None:
        """Refuse all further messages."""
        self._stopped = self._stopped or why

    def offsets(self) -> dict[tuple[str, int], int]:
        """Return the next offset of each partition of which a message is done; never beyond one that is not done."""
        return {
            partition: min(begun) if (begun := self._begun.get(partition)) else following
            for partition, following in self._next.items()
        }

    def committed(self, offsets: dict[tuple[str, int], int]) -> None:
        """Forget offsets that are committed, unless their partitions have come further since."""
        for partition, offset in offsets.items():
            if self._next.get(partition) == offset:
                del self._next[partition]

    def _pass(self, message: Consumed) -> None:
        partition = message.topic, message.partition
        self._begun[partition].discard(message.offset)
        self._next[partition] = max(self._next.get(partition, 0), message.offset + 1)
