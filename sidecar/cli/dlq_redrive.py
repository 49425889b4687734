"""`retry-sidecar dlq redrive`: dead letters go to the retry topic again, each once in a run."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import click

from sidecar.cli.bulk import Interrupted, interruptible
from sidecar.cli.dlq_filter import LetterFilter, bar, letter_json, letter_options, letter_table
from sidecar.cli.filters import console, printable
from sidecar.cli.instants import read_duration
from sidecar.cli.options import settings_options
from sidecar.clock import Clock, SystemClock
from sidecar.contract import DIALECTS
from sidecar.contract.dead_letter import REASON
from sidecar.contract.redrive import MAX_REDRIVES, Left, Terms, Why, share_of
from sidecar.contract.redrive import redrive as redriven_headers
from sidecar.engine.ports import Outgoing
from sidecar.errors import CommandFailed
from sidecar.kafka.cluster import Admin, Topic
from sidecar.kafka.config import validate_client_properties
from sidecar.kafka.dead_letters import (
    DeadLetterReader,
    Letter,
    Redrive,
    Run,
    Span,
    bytes_on_the_wire,
    require_topic,
    run_of,
    spans,
    where_run_stopped,
)
from sidecar.model import ANY_PARTITION
from sidecar.runtime.stop import Stop
from sidecar.settings import Settings

BATCH_MAX: Final = 500
"""Records in a transaction."""
NOTE_EVERY_S: Final = 1.0
"""How far a run has come is noted so often while there is nothing to send."""
WAIT_S: Final = 0.05
FIRST: Final = 10
FIRST_LEFT: Final = 5
"""Of each kind of those that stay."""
_SINGLE: Final = frozenset({Why.MALFORMED, Why.TOO_LARGE})
"""What is wrong with them is another thing for each."""
_RUN_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")


class Judge:
    """Says what becomes of each dead letter.

    Args:
        settings: Name the retry topic and the profiles.
        retry_topic: As the cluster describes it.
        wanted: Which are meant.
        terms: On what terms.
        clock: What the delay counts from.
    """

    def __init__(
        self, settings: Settings, retry_topic: Topic, wanted: LetterFilter, terms: Terms, clock: Clock
    ) -> None:
        self._topic = retry_topic
        self._matches = wanted.matcher()
        self._terms = terms
        self._clock = clock
        self._dialects = [DIALECTS[name] for name in settings.profiles]

    def of(self, letter: Letter) -> Outgoing | Left | None:
        """Return the record for the retry topic, why there is none, or None when it is not meant."""
        if not self._matches(letter.said):
            return None
        # By place, not by count: a run that goes on does not begin the spread anew.
        now_ms, share = self._clock.wall_ms(), share_of(letter.offset + letter.partition)
        headers = redriven_headers(letter.headers, self._terms, now_ms=now_ms, share=share, dialects=self._dialects)
        if isinstance(headers, Left):
            return headers
        size, most = bytes_on_the_wire(letter.key, letter.value, headers), self._topic.max_message_bytes
        if size > most:
            return Left(Why.TOO_LARGE, f"{size} bytes; {self._topic.name} takes {most} (max.message.bytes)")
        return Outgoing(self._topic.name, self._partition(letter), letter.key, letter.value, headers, 0, b"")

    def _partition(self, letter: Letter) -> int:
        """Return where it came from: there its order with others of its key is kept, and its id is looked for."""
        came_from = letter.said.came_from
        if came_from is None or came_from.topic != self._topic.name or came_from.partition >= self._topic.partitions:
            return ANY_PARTITION
        return came_from.partition


@dataclass(slots=True)
class Tally:
    """What became of them."""

    read: int = 0
    filtered: int = 0
    redriven: int = 0
    left: dict[Why, Counter[str]] = field(default_factory=dict)
    """Why they stay, by the reason for which they died."""
    first: list[Letter] = field(default_factory=list)
    first_left: list[tuple[Letter, Left]] = field(default_factory=list)

    def add(self, letter: Letter, verdict: Outgoing | Left | None) -> None:
        """Count one."""
        self.read += 1
        if verdict is None:
            self.filtered += 1
        elif isinstance(verdict, Left):
            self.left.setdefault(verdict.why, Counter())[letter.said.reason] += 1
            if self.left[verdict.why].total() <= FIRST_LEFT:
                self.first_left.append((letter, verdict))
        else:
            self.redriven += 1
            if len(self.first) < FIRST:
                self.first.append(letter)

    def to_json(self, run: Run, *, dry_run: bool) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "run": run.name,
            "dry_run": dry_run,
            "read": self.read,
            "redriven": self.redriven,
            "filtered": self.filtered,
            "left": {why.value: dict(by_reason) for why, by_reason in self.left.items()},
            "first": [letter_json(each) for each in self.first],
            "first_left": [
                {**letter_json(letter), "why": left.why.value, "because": left.detail}
                for letter, left in self.first_left
            ],
        }


@dataclass(frozen=True, slots=True)
class Pace:
    """How much, and how fast."""

    limit: int | None
    per_second: float | None


class Going:
    """Carries a run through what a reader has.

    Args:
        reader: From where the run goes on.
        redrive: Which has taken the run over.
        judge: Says what becomes of each.
        pace: How much, and how fast.
        stop: Says that it should end.
        clock: Measures the rate.
    """

    def __init__(
        self, reader: DeadLetterReader, redrive: Redrive, judge: Judge, pace: Pace, stop: Stop, clock: Clock
    ) -> None:
        self._reader = reader
        self._redrive = redrive
        self._judge = judge
        self._pace = pace
        self._stop = stop
        self._clock = clock
        self.tally = Tally()
        self._ahead: deque[Letter] = deque()
        self._offsets = dict(reader.next_offsets)
        self._noted: Mapping[int, int] = {}
        self._began_s = self._noted_s = clock.monotonic_s()

    def go(self, advanced: Callable[[int], None]) -> None:
        """Send all.

        Args:
            advanced: Told how many offsets are ahead, after each transaction.

        Raises:
            Interrupted: It was told to stop; what was sent is noted.
            CommandFailed: It can not go on.
        """
        # The place where the run begins is noted first: who repeats the command begins there, whatever the time is.
        self._commit([])
        pause = threading.Event()
        while not self._finished():
            if self._stop.asked:
                raise Interrupted("interrupted")
            if not self._ahead:
                self._ahead.extend(self._reader.read())
            if room := self._room():
                records = self._next(room)
                if records or self._clock.monotonic_s() - self._noted_s >= NOTE_EVERY_S:
                    self._commit(records)
                advanced(self._reader.left + len(self._ahead))
            else:
                pause.wait(WAIT_S)
        self._commit([])

    def _finished(self) -> bool:
        if self._pace.limit is not None and self.tally.redriven >= self._pace.limit:
            return True
        return self._reader.done and not self._ahead

    def _room(self) -> int:
        room = BATCH_MAX
        if self._pace.limit is not None:
            room = min(room, self._pace.limit - self.tally.redriven)
        if self._pace.per_second is not None:
            earned = int((self._clock.monotonic_s() - self._began_s) * self._pace.per_second) + 1
            room = min(room, earned - self.tally.redriven)
        return max(0, room)

    def _next(self, room: int) -> list[Outgoing]:
        """Take up to so many records to send, and go past those that stay."""
        records: list[Outgoing] = []
        while self._ahead and len(records) < room:
            letter = self._ahead.popleft()
            self._offsets[letter.partition] = letter.offset + 1
            verdict = self._judge.of(letter)
            self.tally.add(letter, verdict)
            if isinstance(verdict, Outgoing):
                records.append(verdict)
        if not self._ahead:
            self._offsets.update(self._reader.next_offsets)
        return records

    def _commit(self, records: list[Outgoing]) -> None:
        if not records and self._offsets == self._noted:
            return
        self._redrive.send(records, self._offsets, self._reader.membership)
        self._noted = dict(self._offsets)
        self._noted_s = self._clock.monotonic_s()


@click.command(epilog="Example: retry-sidecar dlq redrive --reason attempts-exhausted --origin orders --spread 10m")
@letter_options
@click.option("--to-origin", default="", metavar="TOPIC", help="Let them go there, wherever they would have gone.")
@click.option("--delay", "delay_ms", metavar="DURATION", callback=read_duration, help="Due so long from now.")
@click.option(
    "--spread", "spread_ms", metavar="DURATION", callback=read_duration, help="Spread the due times evenly over this."
)
@click.option("--keep-attempts", is_flag=True, help="Go on counting attempts where they were, not from 0.")
@click.option(
    "--max-redrives",
    default=MAX_REDRIVES,
    show_default=True,
    type=click.IntRange(min=1),
    help="Leave what was redriven so often before: the guard against loops.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Most messages; the same command again takes the next ones.")
@click.option("--rate", "per_second", type=click.FloatRange(min=0, min_open=True), help="Most in a second.")
@click.option("--run", "run_name", metavar="NAME", help="The run to go on with.  [default: made from the filter]")
@click.option("--restart", is_flag=True, help="Begin the run anew, from --since: sends again what was sent.")
@click.option("--dry-run", is_flag=True, help="Say how many and show the first; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@settings_options()
def redrive(
    settings: Settings,
    *,
    wanted: LetterFilter,
    to_origin: str,
    delay_ms: int | None,
    spread_ms: int | None,
    keep_attempts: bool,
    max_redrives: int,
    limit: int | None,
    per_second: float | None,
    run_name: str | None,
    restart: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send dead letters to the retry topic again: key, value and headers as they were, attempts from 0.

    Each is sent once in a run, also when the command is killed: given again, it goes on where it stopped, and takes
    what has come since. Another filter is another run, and runs know nothing of each other. Nothing is deleted from
    the DLQ.

    What would only die again (missing-header, bad-header, delay-out-of-range, too-large, origin-not-allowed) stays
    unless --reason names it in full or --to-origin mends it.

    The user needs these rights: Read and DescribeConfigs on the DLQ; Write and DescribeConfigs on the retry topic; Read
    on the group GROUP_ID-redrive-RUN; Write on the transactional id STREAMS_APP_ID-redrive-RUN. docs/dlq.md has the
    commands for kafka-acls.
    """
    validate_client_properties(settings)
    _check(settings, to_origin, run_name, yes=yes, dry_run=dry_run)
    terms = Terms(delay_ms or 0, spread_ms or 0, keep_attempts, max_redrives, to_origin, wanted.named)
    job = _Job(settings, wanted, terms, Pace(limit, per_second), run_of(settings, run_name or wanted.run_name), restart)
    if dry_run or not yes:
        found = job.look()
        if dry_run or not found.redriven:
            _show(settings, job.run, found, as_json=as_json, dry_run=True)
            return
        _confirm(settings, found)
    _show(settings, job.run, job.carry_out(), as_json=as_json, dry_run=False)


def _check(settings: Settings, to_origin: str, run_name: str | None, *, yes: bool, dry_run: bool) -> None:
    if to_origin in (settings.input_topic, settings.dlq_topic):
        raise click.UsageError(f"--to-origin: {to_origin} is no origin: name the topic that the messages should reach")
    mended = redriven_headers([(REASON, b"fatal")], Terms(to_origin=to_origin), now_ms=0, share=0.0)
    if to_origin and isinstance(mended, Left):
        raise click.UsageError(f"--to-origin: {mended.detail}")
    if run_name is not None and not _RUN_NAME.fullmatch(run_name):
        raise click.UsageError(f"--run: {run_name!r}: allowed are 1 to 100 characters of a-z A-Z 0-9 . _ -")
    if not dry_run and not yes and not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked here (stdin is no terminal): say --yes, or look with --dry-run")


@dataclass(slots=True)
class _Job:
    settings: Settings
    wanted: LetterFilter
    terms: Terms
    pace: Pace
    run: Run
    restart: bool
    clock: Clock = field(default_factory=SystemClock)
    admin: Admin = field(init=False)
    whole: dict[int, Span] = field(init=False)
    retry_topic: Topic = field(init=False)

    def __post_init__(self) -> None:
        self.admin = Admin(self.settings)
        self.retry_topic = require_topic(self.admin, self.settings.input_topic, "WRITE")
        self.whole = spans(self.settings, self.admin, self.wanted.since_ms, self.wanted.until_ms)

    def look(self) -> Tally:
        """Return what would be done; changes nothing."""
        judge, tally = self._new_judge(), Tally()
        with closing(self._reader()) as reader, interruptible() as stop, bar("counting", reader.left) as shown:
            for letter in _letters(reader, stop, shown):
                tally.add(letter, judge.of(letter))
                if self.pace.limit is not None and tally.redriven >= self.pace.limit:
                    break
        return tally

    def carry_out(self) -> Tally:
        """Do it."""
        with closing(Redrive(self.settings, self.run, self.retry_topic)) as redrive:
            redrive.take_over()
            with closing(self._reader()) as reader, interruptible() as stop, bar("redriving", reader.left) as shown:
                going = Going(reader, redrive, self._new_judge(), self.pace, stop, self.clock)
                try:
                    going.go(shown)
                except Interrupted as error:
                    sent = f"{going.tally.redriven:,} were redriven"
                    again = "the same command (without --restart) goes on from there"
                    raise Interrupted(f"{error}: {sent}; {again}, run {self.run.name}") from error
        return going.tally

    def _new_judge(self) -> Judge:
        return Judge(self.settings, self.retry_topic, self.wanted, self.terms, self.clock)

    def _reader(self) -> DeadLetterReader:
        dialects = [DIALECTS[name] for name in self.settings.profiles]
        return DeadLetterReader(self.settings, self._ahead(), self.run.group_id, dialects)

    def _ahead(self) -> dict[int, Span]:
        if self.restart:
            return self.whole
        stopped = where_run_stopped(self.settings, self.run, list(self.whole))
        return still_ahead(self.whole, stopped, f"run {self.run.name}", f"topic {self.settings.dlq_topic}")


def still_ahead(whole: Mapping[int, Span], stopped: Mapping[int, int | None], run: str, topic: str) -> dict[int, Span]:
    """Return what a run still has before it.

    Args:
        whole: What the command is about.
        stopped: The run's next offset by partition, None where it never was.
        run: For an error.
        topic: For an error.

    Raises:
        CommandFailed: It stopped behind the end: this is another topic of the same name.
    """
    ahead = {}
    for number, span in whole.items():
        at = stopped.get(number)
        if at is not None and at > span.last:
            raise CommandFailed(
                f"{run} stopped at offset {at} of partition {number}, and {topic} ends at {span.last}: it was made "
                "anew; begin the run anew by --restart"
            )
        start = span.start if at is None else max(at, span.first)
        # Where the run is behind --until already, it stays.
        ahead[number] = span._replace(start=start, end=max(start, span.end))
    return ahead


def _letters(reader: DeadLetterReader, stop: Stop, advanced: Callable[[int], None]) -> Iterator[Letter]:
    while not reader.done:
        if stop.asked:
            raise Interrupted("interrupted")
        yield from reader.read()
        advanced(reader.left)


def _confirm(settings: Settings, found: Tally) -> None:
    out = console(stderr=True)
    out.print(letter_table(found.first))
    for line in _lines_of_left(found):
        out.print(line)
    messages = "message" if found.redriven == 1 else "messages"
    click.confirm(f"send {found.redriven:,} {messages} to {settings.input_topic} again?", abort=True, err=True)


def _show(settings: Settings, run: Run, tally: Tally, *, as_json: bool, dry_run: bool) -> None:
    if as_json:
        click.echo(json.dumps(tally.to_json(run, dry_run=dry_run)))
        return
    if dry_run and tally.first:
        console().print(letter_table(tally.first), "", sep="\n")
    did = "would be sent" if dry_run else "sent"
    click.echo(f"{tally.redriven:,} {did} to {settings.input_topic} again, of {tally.read:,} read; run {run.name}")
    for line in _lines_of_left(tally):
        click.echo(line)
    for letter, left in tally.first_left:
        if left.why in _SINGLE:
            click.echo(f"{letter.partition}-{letter.offset}: {left.why}: {printable(left.detail)}", err=True)


def _lines_of_left(tally: Tally) -> Iterator[str]:
    """Yield what stays, and how it could go after all."""
    if tally.filtered:
        yield f"{tally.filtered:,} are not meant by the filter"
    hints = {
        Why.WOULD_DIE_AGAIN: "would only die again: name the reason by --reason, or mend them by --to-origin",
        Why.LOOP_GUARD: "were redriven as often as --max-redrives allows",
        Why.TRUNCATED: "have lost their value on the way to the DLQ: they can never be redriven",
        Why.MALFORMED: "have headers that can not be read, so they would only die again",
        Why.NOT_A_DEAD_LETTER: "were not written by a sidecar",
        Why.TOO_LARGE: "are too large for the retry topic",
    }
    for why, by_reason in tally.left.items():
        named = ", ".join(f"{printable(reason)} {count:,}" for reason, count in by_reason.most_common() if reason)
        yield f"{by_reason.total():,} stay: they {hints[why]}" + (f" ({named})" if named else "")
