"""Sends control records and waits for their outcomes; works from any process, for partitions of any owner.

with ControlClient(settings) as control:
    result = control.act(ControlKind.CANCEL, parse_target("2-1841-1767225600000"))
    if result.outcome is Outcome.CANCELLED: ...
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from sidecar.clock import Clock, SystemClock
from sidecar.contract.control import ControlKind, Outcome, Target, partition_of, render_control, sent_to, sign_control
from sidecar.contract.status import OutcomeRecord
from sidecar.control.outcomes import OutcomeReader
from sidecar.engine.items import target_text
from sidecar.errors import CommandFailed, KafkaFailed, OutcomeUnknown
from sidecar.kafka import config
from sidecar.kafka.admin.cluster import Admin, Deadline, end_offsets, unavailable
from sidecar.kafka.writer import Writer, Written
from sidecar.model import ANY_SCOPE, Headers, Scope
from sidecar.settings import Settings

DEADLINE_S: Final = 5.0
LOOKUP_DEADLINE_S: Final = 30.0
POLL_S: Final = 0.1
CLOCKS_APART_MS: Final = 10 * 60_000
"""How long before the creation time in a control id a lookup starts to read."""
_UNKNOWN_TOPIC: Final = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC")


class Sent(NamedTuple):
    """A control record that was written, by partition."""

    control_id: str
    target: str
    offsets: Mapping[int, int]
    """Offset of the record in the input topic, by partition."""
    status_offsets: Mapping[int, int] = MappingProxyType({})
    """Offset in the status topic at or after which the outcome is, by partition."""


@dataclass(frozen=True, slots=True)
class ControlResult:
    """The result of a control record over all partitions that it was sent to."""

    control_id: str
    target: str
    outcome: Outcome | None
    """None while the outcome of a partition is missing: see `missing`."""
    count: int
    """Number of timers changed; for pause and resume, pending for the origin. Partial while outcomes are missing."""
    detail: str
    answers: Mapping[int, OutcomeRecord]
    """By partition."""
    missing: tuple[int, ...]
    """Partitions without an outcome: they have no owner now, or it is busy. The record stays and will be applied."""
    known: bool | None = None
    """Of a pause or resume by HTTP: whether the group knows the origin; None: it was not said."""


class ControlClient:
    """Sends control records, waits for outcomes and looks them up. Thread-safe.

    Args:
        settings: Have the topics, the brokers and the token that signs records.
        clock: Stamps signatures and control ids.
    """

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._admin = Admin(settings)
        self._writer = self._make_writer()

    def _make_writer(self) -> Writer:
        return Writer({**config.retry_producer(self._settings), "linger.ms": 0})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the clients; what is not sent yet is given a moment."""
        self._writer.flush(1.0)

    def act(
        self,
        kind: ControlKind,
        target: Target,
        *,
        due_ms: int | None = None,
        scope: Scope = ANY_SCOPE,
        control_id: str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> ControlResult:
        """Send a control record and wait for its outcome; see `send` and `wait`."""
        deadline = Deadline(deadline_s, self._clock)
        return self._wait(self._send(kind, target, due_ms, scope, control_id, deadline, awaited=True), deadline)

    def send(
        self,
        kind: ControlKind,
        target: Target,
        *,
        due_ms: int | None = None,
        scope: Scope = ANY_SCOPE,
        control_id: str | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> Sent:
        """Send a control record to the partition of a timer id, or to all for a retry id, a filter and an origin.

        Args:
            kind: What to do.
            target: A timer id, a retry id as bytes, a filter, or, for pause and resume, an origin topic.
            due_ms: The new due time, for a reschedule.
            scope: Which of the timers under the target are meant.
            control_id: Any unique text; generated unless given.
            deadline_s: Seconds until the broker must have the record.

        Raises:
            ValueError: The record would be refused; the text says why.
            OutcomeUnknown: No confirmation in time. The record may still be applied: look its id up.
            CommandFailed: Nothing was written: no broker answers, or the cluster refuses the record.
        """
        return self._send(kind, target, due_ms, scope, control_id, Deadline(deadline_s, self._clock), awaited=True)

    def post(
        self,
        kind: ControlKind,
        target: Target,
        *,
        due_ms: int | None,
        deadline_s: float,
        scope: Scope = ANY_SCOPE,
        control_id: str | None = None,
    ) -> Sent:
        """Send like `send`, for callers that follow the status topic themselves; `wait` cannot use the result."""
        return self._send(kind, target, due_ms, scope, control_id, Deadline(deadline_s, self._clock), awaited=False)

    def wait(
        self, sent: Sent, *, deadline_s: float = DEADLINE_S, heard: Callable[[int], None] = lambda _: None
    ) -> ControlResult:
        """Return the result once every partition has an outcome, or the partial one at the deadline.

        Args:
            sent: The record.
            deadline_s: Longest time to wait.
            heard: Called again and again with the number of partitions that have an outcome.

        Raises:
            OutcomeUnknown: The status topic cannot be read.
        """
        return self._wait(sent, Deadline(deadline_s, self._clock), heard)

    def lookup(self, control_id: str, *, deadline_s: float = LOOKUP_DEADLINE_S) -> ControlResult | None:
        """Return the result of a control record, whoever sent it; None while it has no outcome.

        Outcomes are kept for a day. Generated ids have their creation time, so that little must be read for them.

        Raises:
            BrokerUnavailable: The topic could not be read to its end in time.
            CommandFailed: The status topic cannot be read.
        """
        deadline = Deadline(deadline_s, self._clock)
        total = self._partitions(self._settings.status_topic, deadline)
        with _OutcomeCollector(self._settings, control_id) as reader:
            reader.start_at(range(total), _made_ms(control_id), deadline)
            while not deadline.passed:
                if reader.poll():
                    return found_result(control_id, reader.answers, total)
        raise unavailable(self._admin, f"topic {self._settings.status_topic} was not read to its end in time")

    def _send(
        self,
        kind: ControlKind,
        target: Target,
        due_ms: int | None,
        scope: Scope,
        control_id: str | None,
        deadline: Deadline,
        *,
        awaited: bool,
    ) -> Sent:
        control_id = self._new_id() if control_id is None else control_id
        headers = render_control(kind, target, control_id, due_ms, scope)
        # The writer itself asks, and so knows partitions that are new.
        total = self._partitions(self._settings.input_topic, deadline, self._writer)
        wanted = range(total)
        if (only := partition_of(target)) is not None:
            # A partition that does not exist has no timer: nothing is sent, and the result is "not pending".
            wanted = range(only, min(only + 1, total))
        status_offsets = self._status_offsets(wanted, deadline) if awaited else {}
        offsets = self._produce(headers, wanted, control_id, deadline)
        return Sent(control_id, target_text(target), offsets, status_offsets)

    def _new_id(self) -> str:
        return f"{self._clock.wall_ms()}-{secrets.token_hex(8)}"

    def _partitions(self, topic: str, deadline: Deadline, client: Writer | None = None) -> int:
        try:
            return (client or self._admin).partition_count(topic, deadline.left_s)
        except KafkaFailed as error:
            raise self._failed(error, f"topic {topic}") from error

    def _status_offsets(self, partitions: Iterable[int], deadline: Deadline) -> dict[int, int]:
        """Return the ends of the status topic's partitions, without those that do not exist yet."""
        topic = self._settings.status_topic
        existing = self._partitions(topic, deadline)
        wanted = [each for each in partitions if each < existing]
        if not wanted:
            return {}
        try:
            return end_offsets(self._admin, topic, wanted, deadline)
        except KafkaFailed as error:
            raise self._failed(error, f"topic {topic}") from error

    def _produce(
        self, headers: Headers, partitions: Iterable[int], control_id: str, deadline: Deadline
    ) -> dict[int, int]:
        topic, token = self._settings.input_topic, self._settings.api_token
        offsets: dict[int, int] = {}
        errors: list[KafkaFailed] = []
        writer = self._writer

        def report(written: Written | KafkaFailed) -> None:
            if isinstance(written, KafkaFailed):
                errors.append(written)
            else:
                offsets[written.partition] = written.offset

        asked, queued = 0, 0
        for partition in partitions:
            signed = list(headers)
            if token is not None:
                signed.append(sign_control(headers, token, topic, partition, self._clock.wall_ms()))
            asked += 1
            try:
                writer.write(topic, None, None, partition=partition, headers=signed, report=report)
                queued += 1
            except KafkaFailed as error:
                errors.append(error)
            except BufferError:
                errors.append(KafkaFailed("too many records wait to be sent", away=True))
        while len(offsets) + len(errors) < asked:
            if deadline.passed:
                raise OutcomeUnknown(
                    f"{asked - len(offsets)} of {asked} records of control id {control_id} were not confirmed by topic "
                    f"{topic} in time: they may still be applied, look the id up",
                    control_id,
                )
            # Another thread may process the report while this one waits.
            writer.poll(min(POLL_S / 10, deadline.left_s))
        if any(error.fatal for error in errors):
            self._writer = self._make_writer()  # the next record is independent of this one
        if errors:
            failed = self._failed(
                errors[0], f"{len(errors)} of {asked} records of control id {control_id} to topic {topic}"
            )
            refused = sum(error.denied or error.code in _UNKNOWN_TOPIC for error in errors)
            if offsets or queued > refused:
                # The answer to a record that was appended can be lost.
                raise OutcomeUnknown(f"{failed}; they may still be applied, look the id up", control_id) from failed
            raise failed
        return offsets

    def _wait(self, sent: Sent, deadline: Deadline, heard: Callable[[int], None] = lambda _: None) -> ControlResult:
        answers: Mapping[int, OutcomeRecord] = {}
        unsigned: set[int] = set()
        if sent.offsets:
            with _OutcomeCollector(self._settings, sent.control_id) as reader:
                reader.start(sent.status_offsets)
                while len(reader.answers) < len(sent.offsets) and not deadline.passed:
                    try:
                        reader.poll()
                    except CommandFailed as error:
                        raise OutcomeUnknown(f"{error}; the record is sent", sent.control_id) from error
                    heard(len(reader.answers))
                answers, unsigned = reader.answers, reader.unsigned
        return added_up(sent.control_id, sent.target, sent.offsets, answers, unsigned)

    def _failed(self, error: KafkaFailed, what: str) -> CommandFailed:
        if error.away:
            return unavailable(self._admin, str(error))
        if error.code in _UNKNOWN_TOPIC:
            return CommandFailed(f"{what}: it does not exist: start `retry-sidecar run`, or check the settings")
        return CommandFailed(f"{what}: {error}")


class _OutcomeCollector(OutcomeReader):
    """Reads the outcomes of one control id."""

    def __init__(self, settings: Settings, control_id: str) -> None:
        super().__init__(settings)
        self._control_id = control_id
        self._offsets: dict[int, int] = {}
        self.answers: dict[int, OutcomeRecord] = {}
        """Outcomes by partition; the one with the lowest input offset counts."""
        self.unsigned: set[int] = set()
        """Partitions with an outcome that API_TOKEN did not sign."""

    def poll(self) -> bool:
        """Read once; return whether every partition has been read to its end.

        Raises:
            CommandFailed: The topic cannot be read.
        """
        for control_id, input_offset, read in self.read(POLL_S):
            if control_id != self._control_id:
                continue
            if not self.is_signed(read):
                self.unsigned.add(read.partition)
                continue
            record = OutcomeRecord.from_json(read.value)
            if record is not None and input_offset <= self._offsets.get(read.partition, input_offset):
                self._offsets[read.partition] = input_offset
                self.answers[read.partition] = record
        return self.caught_up


def added_up(
    control_id: str,
    target: str,
    partitions: Iterable[int],
    answers: Mapping[int, OutcomeRecord],
    unsigned: Collection[int] = (),
) -> ControlResult:
    """Combine the outcomes of all partitions; the one that most needs attention comes first."""
    missing = tuple(each for each in partitions if each not in answers)
    said = {each.outcome for each in answers.values()}
    last = (Outcome.ORIGIN_PAUSED, Outcome.NOT_PENDING)
    done = [each for each in Outcome if each in said and each not in last and each is not Outcome.BAD_REQUEST]
    order = [Outcome.BAD_REQUEST, *done, *last]
    outcome = next((each for each in order if each in said), Outcome.NOT_PENDING)
    details = dict.fromkeys(each.detail for _, each in sorted(answers.items()) if each.detail)
    if doubtful := sorted(set(unsigned) & set(missing)):
        details[f"outcomes of partitions {doubtful} are not signed with this API_TOKEN and do not count"] = None
    return ControlResult(
        control_id,
        target,
        None if missing else outcome,
        sum(each.count for each in answers.values()),
        "; ".join(details),
        dict(answers),
        missing,
    )


def found_result(control_id: str, answers: Mapping[int, OutcomeRecord], total: int) -> ControlResult | None:
    """Combine the outcomes of a control record; None while there is none.

    Args:
        control_id: Id of the record.
        answers: Its outcomes, by input partition.
        total: Number of input partitions.
    """
    if not answers:
        return None
    target = next(iter(answers.values())).target
    refused = all(each.outcome is Outcome.BAD_REQUEST for each in answers.values())
    partitions: Iterable[int] = answers if refused or sent_to(target) is not None else range(total)
    return added_up(control_id, target, partitions, answers)


def _made_ms(control_id: str) -> int:
    """Return the earliest possible time of an outcome; 0 when the id does not contain its creation time."""
    stamp, dash, rest = control_id.partition("-")
    ours = dash and len(rest) == 16 and stamp.isascii() and stamp.isdigit() and len(stamp) <= 15
    return max(0, int(stamp) - CLOCKS_APART_MS) if ours else 0
