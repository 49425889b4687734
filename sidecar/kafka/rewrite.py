"""Makes the changelog whole again: from a state folder, or by the decision to go on without what is lost."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from sidecar.changelog.codec import CHECKPOINT_KEY, Checkpoint, Engine, encode_checkpoint
from sidecar.changelog.offset_mark import OffsetMark
from sidecar.clock import SystemClock
from sidecar.engine.ports import Mutations, Store
from sidecar.engine.rewrite import Present, given_up, rewriting, rewritten
from sidecar.engine.rows import NOT_RESTORED, Identity, Meta, Rows, decode_meta
from sidecar.engine.transaction import ChangelogRecord
from sidecar.engine.wholeness import Log, missing, replaces
from sidecar.errors import BrokerUnavailable, PartitionStopped, TransactionFailed
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, end_offsets, first_offsets, unavailable
from sidecar.kafka.admin.offsets import Committed
from sidecar.kafka.admin.topics import TopicFacts, ensure_topics
from sidecar.kafka.changelog import ChangelogReader
from sidecar.kafka.idle_group import require_no_members, stable_offsets
from sidecar.kafka.producer import TransactionalProducer
from sidecar.settings import Settings

ASK_S: Final = 30.0
READ_S: Final = 0.2
STALL_S: Final = 30.0
INIT_S: Final = 30.0
RECORDS_MAX: Final = 2_000
"""Of a transaction."""
BYTES_MAX: Final = 8 * 1024 * 1024
"""Of a transaction, and one record more."""


class Outcome(StrEnum):
    """What became of a partition."""

    WHOLE = "whole"
    """The changelog has everything: nothing was written."""
    REBUILT = "rebuilt"
    GIVEN_UP = "given up"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Done:
    """What was done for a partition, or why nothing."""

    outcome: Outcome
    timers: int = 0
    """Written."""
    text: str = ""


class _Changelog:
    """The changelog of a group that has no members, and all that is known of it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.admin = Admin(settings)
        require_no_members(self.admin, settings)
        self.facts: TopicFacts = ensure_topics(self.admin, settings, ASK_S, new_changelog=True)
        self.identity = Identity(self.facts.cluster_id, self.facts.changelog_topic_id, settings.changelog_topic)
        self.numbers = range(self.facts.usable_partitions)
        self.committed: Mapping[int, Committed] = stable_offsets(settings, self.numbers)
        deadline, topic = Deadline(ASK_S), settings.changelog_topic
        starts = first_offsets(self.admin, topic, self.numbers, deadline)
        ends = end_offsets(self.admin, topic, self.numbers, deadline)
        self.logs = {each: Log(self.identity, starts[each], ends[each]) for each in self.numbers}

    def mark(self, number: int) -> OffsetMark | None:
        committed = self.committed.get(number)
        return None if committed is None else OffsetMark.parse(committed.metadata)

    def present(self, number: int) -> Present:
        """Read a partition to its end. Raises PartitionStopped, BrokerUnavailable."""
        found, log = Present(), self.logs[number]
        if log.start >= log.end:
            return found
        topic = self.settings.changelog_topic
        with closing(ChangelogReader(config.changelog_reader(self.settings), topic)) as reader:
            reader.start(number, log.start)
            stalled = Deadline(STALL_S)
            while reader.position(number) < log.end:
                records = reader.read(READ_S).get(number, ())
                found.add(records)
                if records:
                    stalled = Deadline(STALL_S)
                elif stalled.passed:
                    raise unavailable(self.admin, f"topic {topic} gives nothing for {STALL_S:.0f} s")
        return found

    def write(self, number: int, records: Iterable[ChangelogRecord]) -> None:
        """Write records in transactions, the last one at the end of the last. Raises CommandFailed, BrokerUnavailable.

        An instance that has joined meanwhile has stopped the partition: it goes on from no checkpoint but the last.
        """
        settings = self.settings
        properties = config.transactional_producer(settings, settings.transactional_id_prefix + "rebuild")
        producer = TransactionalProducer({**properties, "logger": config.quiet_logger()}, SystemClock())
        try:
            producer.init(INIT_S)
            for part in _parts(records):
                producer.begin()
                for _ in producer.write_changelog(settings.changelog_topic, number, part):
                    pass  # it waits by itself
                producer.commit()
        except TransactionFailed as cause:
            raise BrokerUnavailable(
                f"the changelog {settings.changelog_topic}, partition {number}, cannot be written ({cause}): "
                "run the command again, it continues"
            ) from cause
        finally:
            producer.close()


def _parts(records: Iterable[ChangelogRecord]) -> Iterator[Sequence[ChangelogRecord]]:
    part: list[ChangelogRecord] = []
    size = 0
    for key, value in records:
        part.append((key, value))
        size += len(key) + len(value or b"")
        if len(part) >= RECORDS_MAX or size >= BYTES_MAX:
            yield part
            part, size = [], 0
    if part:
        yield part


def rebuild_changelog(
    settings: Settings, store: Store, partitions: Sequence[int], *, behind: bool, progress: Callable[[int], object]
) -> dict[int, Done]:
    """Write again what the changelog lacks of the partitions that the store has.

    Each partition is done when its checkpoint is committed; then its rows are deleted, as the next start restores them.

    Args:
        settings: The settings, which name the group and the changelog.
        store: Opened, so that no instance uses it.
        partitions: Those with rows.
        behind: Continue from rows that lack committed transactions too: their input is read again.
        progress: Called with the number of timers written by a partition.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The group has members, or the cluster refuses.
        TopicsInvalid: A topic or a permission is missing.
    """
    changelog = _Changelog(settings)
    done: dict[int, Done] = {}
    for number in partitions:
        value = store.get(Rows(number).meta)
        try:
            if value is None:
                done[number] = Done(Outcome.REFUSED, text="the meta row is gone")
            else:
                done[number] = _rebuild(changelog, store, number, decode_meta(value), behind=behind)
        except PartitionStopped as cause:
            done[number] = Done(Outcome.REFUSED, text=str(cause))
        progress(done[number].timers)
    store.flush()
    return done


def _rebuild(changelog: _Changelog, store: Store, number: int, meta: Meta, *, behind: bool) -> Done:
    identity, mark = changelog.identity, changelog.mark(number)
    if number not in changelog.numbers:
        return Done(Outcome.REFUSED, text="the changelog has no such partition")
    if (meta.cluster_id, meta.changelog_topic) != (identity.cluster_id, identity.changelog_topic):
        text = f"the folder is of the changelog {meta.changelog_topic} on cluster {meta.cluster_id}"
        return Done(Outcome.REFUSED, text=text)
    if meta.changelog_offset == NOT_RESTORED:
        return Done(Outcome.REFUSED, text="its rows are not complete: a restore was on its way")
    present, log = changelog.present(number), changelog.logs[number]
    if present.last.engine is not Engine.EMBEDDED:
        return Done(Outcome.REFUSED, text=f"it was last written by the {present.last.engine} engine")
    same = meta.changelog_topic_id == identity.changelog_topic_id
    continues = same and log.start <= meta.changelog_offset <= log.end
    if not missing(present.last, log, mark) and (continues or replaces(present.last, log, meta)):
        return Done(Outcome.WHOLE)
    plan = rewriting(meta, present, mark, identity.changelog_topic_id, secrets.randbits(63) | 1)
    if plan.behind and not behind:
        text = (
            f"{plan.behind} committed transactions are in neither the folder nor the changelog: another instance's "
            "folder may have them; to go on without them, and read their input again, add --behind (what they "
            "delivered is delivered again)"
        )
        return Done(Outcome.REFUSED, text=text)
    counted = itertools.count()
    records = rewritten(store, number, present, plan.checkpoint, changelog.facts.changelog_bytes_max, counted)
    changelog.write(number, records)
    wiped = Mutations()
    wiped.ranges = Rows(number).ranges()
    store.apply([wiped])
    return Done(Outcome.REBUILT, timers=next(counted))


def give_up(settings: Settings, *, decided: bool) -> dict[int, Done]:
    """Go on without what the changelog lacks, in each partition where it lacks something.

    Args:
        settings: The settings, which name the group and the changelog.
        decided: Write; else only say what would be given up.

    Raises:
        BrokerUnavailable: No answer in time.
        CommandFailed: The group has members, or the cluster refuses.
        TopicsInvalid: A topic or a permission is missing.
    """
    changelog = _Changelog(settings)
    done: dict[int, Done] = {}
    for number in changelog.numbers:
        try:
            present = changelog.present(number)
        except PartitionStopped as cause:
            done[number] = Done(Outcome.REFUSED, text=str(cause))
            continue
        if present.last.engine is not Engine.EMBEDDED:
            done[number] = Done(Outcome.REFUSED, text=f"it was last written by the {present.last.engine} engine")
            continue
        mark, committed = changelog.mark(number), changelog.committed.get(number)
        why = missing(present.last, changelog.logs[number], mark)
        if not why:
            done[number] = Done(Outcome.WHOLE)
            continue
        offset = None if committed is None else committed.offset
        topic_id = changelog.identity.changelog_topic_id
        checkpoint = given_up(present, mark, offset, topic_id, secrets.randbits(63) | 1)
        if decided:
            changelog.write(number, _only(checkpoint))
        done[number] = Done(Outcome.GIVEN_UP, text=why)
    return done


def _only(checkpoint: Checkpoint) -> Sequence[ChangelogRecord]:
    return [(CHECKPOINT_KEY, encode_checkpoint(checkpoint))]
