"""What a restore begins with, asked of the brokers for each partition on its own account.

    1 committed input offsets, asked again until they are stable: a former owner's open transaction has ended
    2 the id of the input topic, and which partitions have a leader; only those are asked for more
    3 the bounds of input and changelog, uncommitted records included; taken BEFORE step 1 is done they could miss the
      former owner's last transaction

A partition of which the brokers do not tell holds up no other: it says why, and is asked for again ever less often.
Nothing here blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import structlog

from sidecar.clock import Clock
from sidecar.engine.partition import Partition
from sidecar.kafka.offsets import Bounds
from sidecar.runtime.ports import BoundsQuestion, Brokers, CommittedQuestion, TopicsQuestion

log = structlog.get_logger(__name__)

ASK_AGAIN_S: Final = 0.25
ASK_AGAIN_MAX_S: Final = 5.0
"""Longest time between two questions for a partition of which the brokers do not tell."""
HOLD_BACK_S: Final = 1.0
HOLD_BACK_MAX_S: Final = 300.0
"""Longest time for which a partition is left out whose own topics do not take what is written."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics whose partitions belong together."""

    input_topic: str
    changelog_topic: str
    group_id: str


class Told(NamedTuple):
    """What the brokers said of one partition."""

    partition: Partition
    committed: int | None
    """Input offset; None: nothing was committed yet."""
    input_topic_id: str
    input_bounds: Bounds
    changelog_bounds: Bounds


@dataclass(slots=True)
class _Question:
    """What is asked for some partitions; one that begins anew meanwhile leaves it."""

    partitions: dict[int, Partition]
    committed: CommittedQuestion
    offsets: Mapping[int, int | None] = field(default_factory=dict)
    now: TopicsQuestion | None = None
    bounds: BoundsQuestion | None = None


@dataclass(slots=True)
class _Later:
    """When a partition is asked for again."""

    at_s: float
    wait_s: float
    why: str = ""


class Asking:
    """Owned by the reset."""

    def __init__(self, brokers: Brokers, clock: Clock, topics: Topics) -> None:
        self._brokers = brokers
        self._clock = clock
        self._topics = topics
        self._waiting: dict[int, Partition] = {}
        self._later: dict[int, _Later] = {}
        self._held_back: dict[int, _Later] = {}
        self._questions: dict[bool, _Question] = {}
        """One for partitions that are in trouble, which may take long, and one for the others."""

    @property
    def busy(self) -> bool:
        """Whether any partition waits for an answer."""
        return bool(self._waiting or self._questions)

    def want(self, partition: Partition) -> None:
        """Ask for a partition, as soon as it may be."""
        self._waiting[partition.number] = partition
        if (held := self._held_back.get(partition.number)) is not None and held.at_s > self._clock.monotonic_s():
            partition.reason = held.why

    def drop(self, number: int) -> None:
        """Forget a partition, but not how long it is held back."""
        self._waiting.pop(number, None)
        self._later.pop(number, None)
        for question in self._questions.values():
            question.partitions.pop(number, None)

    def hold_back(self, number: int, why: str) -> None:
        """Leave a partition out for a while, longer each time; the others go on without it."""
        wait_s = HOLD_BACK_S
        if (before := self._held_back.get(number)) is not None:
            wait_s = min(before.wait_s * 2, HOLD_BACK_MAX_S)
        log.warning("partition_held_back", partition=number, reason=why, seconds=wait_s)
        self._held_back[number] = _Later(self._clock.monotonic_s() + wait_s, wait_s, why)

    def went_through(self, numbers: Iterable[int]) -> None:
        """Forget that these were held back: what was written for them was taken."""
        if self._held_back:
            for number in numbers:
                self._held_back.pop(number, None)

    def advance(self) -> list[Told]:
        """Ask, and return what has been told since."""
        self._ask()
        told = []
        for key, question in list(self._questions.items()):
            if self._is_answered(question):
                del self._questions[key]
                told += self._told(question)
        return told

    def _ask(self) -> None:
        now_s = self._clock.monotonic_s()
        due: dict[bool, dict[int, Partition]] = {False: {}, True: {}}
        for number, partition in self._waiting.items():
            waits = (self._later.get(number), self._held_back.get(number))
            if all(each is None or now_s >= each.at_s for each in waits):
                due[bool(partition.reason)][number] = partition
        for key, partitions in due.items():
            if partitions and key not in self._questions:
                committed = self._brokers.committed(self._topics.input_topic, sorted(partitions))
                self._questions[key] = _Question(partitions, committed)
                for number in partitions:
                    del self._waiting[number]

    def _is_answered(self, question: _Question) -> bool:
        """Go on to the next step once there is an answer; return whether there is nothing more to ask."""
        if question.bounds is not None:
            return question.bounds.done()
        if question.now is None:
            if not question.committed.done():
                return False
            question.offsets = question.committed.result()
            self._put_off(question, question.committed.troubles, question.offsets)
            if question.partitions:
                topics = (self._topics.input_topic, self._topics.changelog_topic)
                question.now = self._brokers.topics(topics)
            return not question.partitions
        if not question.now.done():
            return False
        numbers = sorted(question.partitions)
        troubles = question.now.troubles(numbers)
        self._put_off(question, troubles, set(numbers) - troubles.keys())
        if question.partitions:
            # Only now: the offsets are stable, so whatever was committed lies below the end that is read here.
            topics = (self._topics.changelog_topic, self._topics.input_topic)
            question.bounds = self._brokers.bounds(dict.fromkeys(topics, sorted(question.partitions)))
        return not question.partitions

    def _told(self, question: _Question) -> list[Told]:
        if question.bounds is None or question.now is None:
            return []
        bounds = question.bounds.result()
        keys = (self._topics.input_topic, self._topics.changelog_topic)
        whole = {number for number in question.partitions if all((topic, number) in bounds for topic in keys)}
        self._put_off(question, question.bounds.troubles, whole)
        told = []
        for number, partition in question.partitions.items():
            self._later.pop(number, None)
            entry, changelog = (bounds[topic, number] for topic in keys)
            input_topic_id = question.now.id_of(self._topics.input_topic)
            told.append(Told(partition, question.offsets[number], input_topic_id, entry, changelog))
        return told

    def _put_off(self, question: _Question, troubles: Mapping[int, str], told: Iterable[int]) -> None:
        """Take the partitions out of a question of which the brokers do not tell; they are asked for again later."""
        now_s = self._clock.monotonic_s()
        kept = frozenset(told)
        for number in [each for each in question.partitions if each not in kept]:
            partition = question.partitions.pop(number)
            trouble = troubles.get(number, "")
            if trouble and trouble != partition.reason:
                log.warning("offsets_not_told", partition=number, reason=trouble)
            before = self._later.get(number)
            wait_s = ASK_AGAIN_S if before is None or not trouble else min(before.wait_s * 2, ASK_AGAIN_MAX_S)
            partition.reason = trouble
            self._later[number] = _Later(now_s + wait_s, wait_s)
            self._waiting[number] = partition
