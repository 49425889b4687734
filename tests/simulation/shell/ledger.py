"""A ledger of what was sent and what came out, independent of the program: checked after each transaction."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sidecar.changelog.codec import CHECKPOINT_KEY, decode_checkpoint
from sidecar.contract.dead_letter import CONNECT_STAGE
from sidecar.engine.ingest import STAGE
from sidecar.kafka.admin.catalogue import FORBIDDEN_AFTER_S
from sidecar.model import Headers
from tests.fold import fold
from tests.simulation.fakes.cluster import Cluster
from tests.simulation.fakes.logs import Entry, Row, Transaction
from tests.simulation.fakes.timeline import Timeline

UID: Final = "uid"
HEADERS_MAX: Final = 1_000
"""Of messages with very many of them that are refused at their arrival, in one transaction."""
_UID: Final = re.compile(rb"uid-(\d+);")
ORIGIN: Final = "retry-origin-topic"
_OURS: Final = re.compile(r"retry-")


class Fate(Enum):
    """The possible results of a message."""

    FIRED = "fired"
    DEAD = "dead"
    EITHER = "either"


@dataclass(slots=True)
class Sent:
    """A message that a sender wrote to the retry topic."""

    number: int
    kind: str
    origin: str
    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    fate: Fate
    slack_ms: int = 0
    """So much later than `due_ms` it may be due."""
    partition: int = -1
    offset: int = -1
    sent_s: float = 0.0
    healed_s: float = 0.0
    """When the faults ended in whose midst it waited."""
    is_good: bool = False
    """Nothing that a sender or an operator did is in its way."""
    is_touched: bool = False
    """A control record named it: it may leave earlier, later or never."""
    is_removed: bool = False
    """An operator took it away: it may not leave any more."""
    replays: int = 0
    """How often an operator set the group's offset back to before it."""
    is_back: bool = False
    """Pending again in the changelog, which lacks the transaction that delivered it; it must not come twice."""
    is_lost: bool = False
    """Deleted from the retry topic, maybe before it was read."""
    is_former: bool = False
    """In a retry topic that was deleted."""
    out: list[tuple[str, float]] = field(default_factory=list)
    """Topic and second."""


class Ledger:
    """Holds every committed transaction to what was sent."""

    def __init__(
        self,
        cluster: Cluster,
        timeline: Timeline,
        input_topic: str,
        changelog: str,
        dlq: str,
        own_dlqs: Mapping[str, str] | None = None,
        ordered: Collection[str] = (),
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.sent: dict[int, Sent] = {}
        self.commits = 0
        self.fired = 0
        self.dead = 0
        self.origin_timeout_s = 0.0
        """For so long an origin is closed at least before what is due for it dies; 0: another rule may be at work."""
        self.forgives = True
        """What a transaction delivered that was rolled back in the changelog may come twice: something can keep the
        search of the origins from finding it."""
        self.is_recreated = False
        """There was another retry topic before."""
        self._took_s: dict[str, float] = {}
        """By origin, when it took a message last."""
        self._outage_s: dict[str, float] = {}
        """When an origin went away for the first time since it took a message."""
        self._cluster = cluster
        self._timeline = timeline
        self._input = input_topic
        self._changelog = changelog
        self._dlq = dlq
        self._own_dlqs = dict(own_dlqs or {})
        """By origin, the DLQ that its messages go to."""
        self._ordered = ordered
        self._rates = dict(rates or {})
        """By origin, messages a second; only as long as all clocks are right."""
        self._in_turn: dict[str, list[int]] = {}
        """By origin with a rate, when its messages fired."""
        self._places: dict[tuple[str, int, int], Sent] = {}
        """By id of the retry topic, partition and offset: those of a former topic are named until it is noticed."""
        self._counted_in: dict[int, str] = {}
        """By partition, the id of the retry topic that its latest checkpoint names."""
        self._view: dict[int, dict[bytes, bytes | None]] = {}
        self._next_of: dict[int, int] = {}
        """By partition, the next input offset of its latest checkpoint."""
        self._replayed: dict[tuple[int, int], list[Sent]] = {}
        """By transaction and partition, what may come once more if that part is aborted."""
        self._taken: dict[int, int] = {}
        """By partition, how far the checkpoint is where the group's offset is not its own: one of them was rolled
        back."""

    def note(self, message: Sent, partition: int, offset: int) -> None:
        """A message stands in the retry topic."""
        message.partition, message.offset = partition, offset
        message.sent_s = self._timeline.now_s
        self.sent[message.number] = message
        self._places[self._cluster.topics[self._input].id, partition, offset] = message

    def taken(self, partition: int) -> int:
        """Return the offset up to which the present retry topic is taken in: a group's offset outlives its topic."""
        topic = self._cluster.topics.get(self._input)
        if topic is None or self._counted_in.get(partition) != topic.id:
            return 0
        return self._taken.get(partition, self._cluster.group.offsets.get(partition, 0))

    @property
    def is_rolled_back(self) -> bool:
        """Whether somewhere the group's offset is not that of the checkpoint."""
        return bool(self._taken)

    def set_back(self, partition: int, offset: int) -> None:
        """The group's offset was set back: what was disposed of may leave again."""
        for message in self.sent.values():
            if message.partition == partition and message.offset >= offset and not message.is_former:
                message.replays += 1

    def deleted(self, partition: int, start: int) -> None:
        """The retry topic's log was cut: what was not taken in may have been read before, or is lost."""
        taken = self.taken(partition)
        for message in self.sent.values():
            if message.partition == partition and taken <= message.offset < start and not message.is_former:
                message.is_lost = True

    def recreated(self) -> None:
        """The retry topic was deleted, and there is another one of its name."""
        for partition, log in enumerate(self._cluster.topics[self._input].logs):
            self.deleted(partition, log.end)
        for message in self.sent.values():
            message.is_former = True
        self.is_recreated = True

    def outage(self, origin: str) -> None:
        """An origin goes away: it is closed since the first time that it did after it took a message."""
        never = float("-inf")
        if self._took_s.get(origin, never) >= self._outage_s.get(origin, never):
            self._outage_s[origin] = self._timeline.now_s

    # After a transaction

    def completed(self, transaction: Transaction) -> None:
        self.commits += 1
        headers = 0
        rolled_back: set[int] = set()
        fired: list[tuple[int, Sent]] = []
        written = {partition for topic, partition, _ in transaction.writes if topic == self._changelog}
        assert written == transaction.offsets.keys(), ("not the offsets of its changelog records", written)
        for topic, partition, entry in transaction.writes:
            if topic != self._changelog:
                continue
            if entry.is_rolled_back or self._cluster.is_left_open(transaction, topic, partition):
                rolled_back.add(partition)
                self._counted_in.setdefault(partition, self._cluster.topics[self._input].id)
            else:
                self._note_row(partition, entry.row)
        out = {id(each): len(each.out) for each in self.sent.values()}
        for topic, _, entry in transaction.writes:
            if topic == self._dlq or topic in self._own_dlqs.values():
                headers += self._headers_refused(entry)
                self._died(entry, topic)
            elif not topic.startswith("app-"):
                self._fire(topic, entry, transaction)
                fired.append((entry.offset, self.message_of(entry)))
        assert headers <= HEADERS_MAX, ("headers without end in one transaction", headers)
        self._check_order(fired)
        for message in self.sent.values():
            if message.partition in rolled_back and len(message.out) > out[id(message)]:
                if not self.forgives:
                    message.is_back = True
                    continue
                message.replays += 1  # it is pending again
                self._replayed.setdefault((id(transaction), message.partition), []).append(message)
        for partition in transaction.offsets:
            self._taken.pop(partition, None)
            if not transaction.keeps_offsets and self._is_set_by_hand(partition):
                self.set_back(partition, self._cluster.group.offsets[partition])  # once more
            elif partition in rolled_back or not transaction.keeps_offsets:
                self._taken[partition] = self._next_of.get(partition, 0)
            self._conserve(partition)

    def settled(self, transaction: Transaction, topic: str, partition: int) -> None:
        """The part of a transaction that was left open is committed."""
        assert topic == self._changelog, topic
        for *place, entry in transaction.writes:
            if place == [topic, partition]:
                self._note_row(partition, entry.row)
        self._taken.pop(partition, None)
        for message in self._replayed.pop((id(transaction), partition), ()):
            message.replays -= 1

    def _is_set_by_hand(self, partition: int) -> bool:
        group = self._cluster.group
        return partition in group.offsets and not group.metadata.get(partition)

    def _note_row(self, partition: int, row: Row) -> None:
        self._view.setdefault(partition, {})[row.key or b""] = row.value
        if row.key == CHECKPOINT_KEY and row.value is not None:
            checkpoint = decode_checkpoint(row.value)
            self._counted_in[partition] = checkpoint.input_topic_id
            self._next_of[partition] = checkpoint.next_input_offset

    def _headers_refused(self, entry: Entry) -> int:
        """Return the headers of a dead letter that was one at its arrival; a timer's are as bytes until it is due."""
        at_arrival = dict(entry.row.headers).get(CONNECT_STAGE) == STAGE.encode()
        return len(entry.row.headers) if at_arrival and self.message_of(entry).kind == "headers" else 0

    def _fire(self, topic: str, entry: Entry, transaction: Transaction) -> None:
        message = self.message_of(entry)
        assert topic != self._input, ("fired into the retry topic", message)
        self._leave(message, topic)
        self._took_s[topic] = self._timeline.now_s
        self.fired += 1
        assert message.fate is not Fate.DEAD, ("fired though it must not be", message)
        assert topic == message.origin, ("fired elsewhere", topic, message)
        assert message.is_touched or transaction.began_ms >= message.due_ms, ("early", transaction.began_ms, message)
        if topic in self._rates and not _is_out_of_turn(message):
            self._in_turn.setdefault(topic, []).append(transaction.began_ms)
        row = entry.row
        assert (row.key, row.value) == (message.key, message.value), ("changed", row.key, message)
        assert _foreign(row.headers) == _foreign(message.headers), ("headers changed", message)

    def _check_order(self, fired: Sequence[tuple[int, Sent]]) -> None:
        """Check that none fired before an earlier one of its origin and key that still waits."""
        at = {id(message): offset for offset, message in fired}
        for offset, message in fired:
            if message.origin not in self._ordered or message.key is None or _is_out_of_turn(message):
                continue
            for each in self.sent.values():
                if each.number >= message.number or _is_out_of_turn(each) or each.is_lost:
                    continue
                if (each.partition, each.origin, each.key) == (message.partition, message.origin, message.key):
                    assert each.out, ("before an earlier one of its key", each, message)
                    assert at.get(id(each), -1) < offset, ("in front of an earlier one of its key", each, message)

    def expired(self) -> None:
        """The offsets of the group are gone: the checkpoints say how far each partition is."""
        for partition in range(len(self._cluster.topics[self._input].logs)):
            self._taken[partition] = self._next_of.get(partition, 0)

    def _died(self, entry: Entry, topic: str) -> None:
        message = self.message_of(entry)
        headers = dict(entry.row.headers)
        named = {(value or b"").decode(errors="replace") for name, value in message.headers if name == ORIGIN}
        expected = {self._own_dlqs.get(origin, self._dlq) for origin in named} or {self._dlq}
        assert {topic} == expected, ("a dead letter on another DLQ", topic, message)
        self._leave(message, topic)
        self.dead += 1
        if b"ORIGIN_TIMEOUT" in (headers.get("retry-dlq-detail") or b""):
            closed_s = self._timeline.now_s - self._outage_s.get(message.origin, float("-inf"))
            assert closed_s > self.origin_timeout_s, ("its origin was open not long ago", closed_s, message)
        reason = headers.get("retry-dlq-reason")
        assert message.fate is not Fate.FIRED, ("a dead letter of a good message", reason, message)
        if message.is_former and "__connect.errors.offset" not in headers:
            return  # its offset is one of a topic that is gone
        place = int(headers["__connect.errors.partition"] or -1), int(headers["__connect.errors.offset"] or -1)
        assert place == (message.partition, message.offset), ("false coordinates", place, message)

    def _leave(self, message: Sent, topic: str) -> None:
        message.out.append((topic, self._timeline.now_s))
        assert not message.is_removed or message.replays, ("out though it was cancelled", message)
        assert len(message.out) <= 1 + message.replays, ("twice", message)

    def message_of(self, entry: Entry) -> Sent:
        """Return the message that a record which left is."""
        for name, value in entry.row.headers:
            if name == UID and (found := _UID.fullmatch(value or b"")):
                return self.sent[int(found[1])]
        headers = dict(entry.row.headers)
        partition = int(headers["__connect.errors.partition"] or -1)
        if "__connect.errors.offset" in headers:
            offset = int(headers["__connect.errors.offset"] or -1)
            return self._places[self._counted_in[partition], partition, offset]
        former = [each for each in self.sent.values() if each.is_former and each.partition == partition]
        nameless = [each for each in former if not each.out and each.fate is not Fate.FIRED]
        for each in nameless if len(nameless) > 1 else ():
            each.is_touched = True  # it may be any of them
        return nameless[0]

    def _conserve(self, partition: int) -> None:
        """Check that each message below the group's offset is pending, has left, or was removed by an operator."""
        folded = fold(self._view.get(partition, {}).items())
        taken = self.taken(partition)
        if taken:
            end = self._cluster.topics[self._input].logs[partition].end
            assert taken <= end, ("offset beyond the log", partition)
        pending: set[int] = set()
        for entry in folded.pending.values():
            found = _UID.search(entry)
            assert found is not None, ("a timer of nobody", entry)
            number = int(found[1])
            assert number not in pending or self.sent[number].replays, ("two timers of one message", number)
            pending.add(number)
        for message in self.sent.values():
            if message.partition != partition or message.replays or message.is_back:
                continue
            if message.is_touched:
                self._note_removed(message, taken, is_pending=message.number in pending)
                continue
            if message.is_lost:
                assert not (message.number in pending and message.out), ("here and there", message)
            elif message.is_former or message.offset < taken:
                assert (message.number in pending) != bool(message.out), ("lost, or here and there", message)
            else:
                assert message.number not in pending, ("taken in and not counted", message)
                assert not message.out, ("out and not counted", message)

    def _note_removed(self, message: Sent, taken: int, *, is_pending: bool) -> None:
        """Note that an operator's change took a message away, which it does once."""
        assert not (is_pending and message.is_removed), ("pending again", message)
        assert not (is_pending and message.out), ("here and there", message)
        if not message.is_lost and not message.is_former and message.offset < taken:
            message.is_removed = not is_pending and not message.out

    # At the end

    def check_rates(self) -> None:
        """Check that each origin got no more than its rate allows, over any time."""
        partitions = len(self._cluster.topics[self._input].logs)
        for origin, times in self._in_turn.items():
            fired = sorted(times)
            for first, since_ms in enumerate(fired):
                for count, until_ms in enumerate(fired[first:], 1):
                    most = self._rates[origin] * ((until_ms - since_ms) / 1000 + RATE_SLACK_S) + partitions
                    assert count <= most, ("above the rate", origin, count, since_ms, until_ms)

    def waiting(self, *, good_only: bool = False) -> list[Sent]:
        """Return what is still to come out."""
        return [
            each
            for each in self.sent.values()
            if not each.out and not each.is_touched and not each.is_lost and (each.is_good or not good_only)
        ]


def _is_out_of_turn(message: Sent) -> bool:
    """Whether its order and its turn are its own: an operator meant it, or it came more than once."""
    return message.is_touched or message.is_former or message.is_back or bool(message.replays)


def _foreign(headers: Headers) -> list[tuple[str, bytes | None]]:
    return [each for each in headers if not _OURS.match(each[0])]


RATE_SLACK_S: Final = 0.4
"""So much of a rate may come at once after an idle time, or late: see docs/explanation/rates.md."""
REFUSAL_S: Final = 0.4
"""Each refusal is of another record, and costs an aborted transaction and a new producer."""
REFUSALS_MAX: Final = 25


def check_stops(
    messages: Collection[Sent],
    start_ms: int,
    longest_s: float,
    refusals_s: Sequence[float] = (),
    held_s: Mapping[str, float] | None = None,
    hidden_s: Sequence[tuple[float, float]] = (),
) -> None:
    """Hold that each message came out soon after it was due.

    Args:
        messages: What came out.
        start_ms: The wall time at second 0.
        longest_s: Longest time for which one may be late.
        refusals_s: When brokers refused records meanwhile: so much longer it may be late.
        held_s: By origin with a rate, how long all of its messages take.
        hidden_s: From when until when an origin might not be looked at: whoever stands behind a message for it waits
            until the second such answer.
    """
    for each in messages:
        due_s = max(each.sent_s, each.healed_s, (each.due_ms + each.slack_ms - start_ms) / 1000)
        for topic, at_s in each.out[:1]:
            refusals = sum(due_s <= refused_s <= at_s for refused_s in refusals_s)
            looks = sum(since_s <= at_s and due_s <= until_s for since_s, until_s in hidden_s)
            allowed_s = longest_s + REFUSAL_S * min(refusals, REFUSALS_MAX) + FORBIDDEN_AFTER_S * looks
            allowed_s += (held_s or {}).get(each.origin, 0.0)
            assert at_s - due_s <= allowed_s, (f"{at_s - due_s:.1f} s late", topic, each)
