"""`retry-sidecar dlq redrive`: sends dead letters to the retry topic again, each once in a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

import click

from sidecar.cli.dlq.filter import bar, dead_letter_options, since_ms, until_ms
from sidecar.cli.dlq.terms import check, confirm, run_options, show, terms_options
from sidecar.cli.messages.bulk import Interrupted, interruptible
from sidecar.cli.options import DEAD_LETTERS, SettingsCommand, settings_options
from sidecar.clock import Clock, SystemClock
from sidecar.contract import dialects_of
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import (
    DlqRecord,
    KafkaDeadLetterReader,
    OffsetRange,
    RedriveProducer,
    RunIdentity,
    offset_ranges,
    require_topic,
    run_identity,
    where_run_stopped,
)
from sidecar.dlq.redrive import RedriveLimits, RedrivePolicy, RedriveRun, Tally, still_ahead
from sidecar.kafka.admin.cluster import Admin, Topic
from sidecar.kafka.config import validate_client_properties
from sidecar.runtime.stop import Stop
from sidecar.settings import Settings


@click.command(
    cls=SettingsCommand,
    epilog="Example: retry-sidecar dlq redrive --reason attempts-exhausted --origin orders --spread 10m",
)
@dead_letter_options
@terms_options
@click.option("--limit", type=click.IntRange(min=1), help="Most messages; the same command again sends the next ones.")
@click.option("--rate", "per_second", type=click.FloatRange(min=0, min_open=True), help="Most messages in a second.")
@run_options
@settings_options(DEAD_LETTERS)
def redrive(
    settings: Settings,
    *,
    wanted: DeadLetterFilter,
    terms: RedriveTerms,
    limit: int | None,
    per_second: float | None,
    run_name: str | None,
    restart: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Send dead letters to the retry topic again: key, value and headers as they were, attempts from 0.

    A run sends each message once, even when the command is killed: the same command continues where it stopped, and
    includes what has arrived since. Another filter is another run, and runs do not know of each other. Nothing is
    deleted from the DLQ.

    Messages that would only die again (missing-header, bad-header, delay-out-of-range, too-large, origin-not-allowed)
    stay unless --reason names the reason in full or --to-origin fixes them.

    The user needs these permissions: Read and DescribeConfigs on the DLQ; Write and DescribeConfigs on the retry topic;
    Read on the group GROUP_ID-redrive-RUN; Write on the transactional id STREAMS_APP_ID-redrive-RUN. The commands for
    kafka-acls are in docs/how-to/dlq.md.
    """
    validate_client_properties(settings)
    check(settings, terms, run_name, yes=yes, dry_run=dry_run)
    job = _Job(
        settings,
        wanted,
        terms,
        RedriveLimits(limit, per_second),
        run_identity(settings, run_name or wanted.run_name),
        restart,
    )
    if dry_run or not yes:
        found = job.look()
        if dry_run or not found.redriven:
            show(settings, job.run, found, as_json=as_json, dry_run=True)
            return
        confirm(settings, found)
    show(settings, job.run, job.carry_out(), as_json=as_json, dry_run=False)


@dataclass(slots=True)
class _Job:
    settings: Settings
    wanted: DeadLetterFilter
    terms: RedriveTerms
    limits: RedriveLimits
    run: RunIdentity
    restart: bool
    clock: Clock = field(default_factory=SystemClock)
    admin: Admin = field(init=False)
    whole: dict[int, OffsetRange] = field(init=False)
    retry_topic: Topic = field(init=False)

    def __post_init__(self) -> None:
        self.admin = Admin(self.settings)
        self.retry_topic = require_topic(self.admin, self.settings.input_topic, "WRITE")
        self.whole = offset_ranges(self.settings, self.admin, since_ms(self.wanted), until_ms(self.wanted))

    def look(self) -> Tally:
        """Return what a run would do; changes nothing."""
        policy, tally = self._new_policy(), Tally()
        with closing(self._reader()) as reader, interruptible() as stop, bar("counting", reader.remaining) as shown:
            for record in _records(reader, stop, shown):
                tally.add(record, policy.decide(record))
                if self.limits.limit is not None and tally.redriven >= self.limits.limit:
                    break
        return tally

    def carry_out(self) -> Tally:
        """Run the redrive."""
        with closing(RedriveProducer(self.settings, self.run, self.retry_topic)) as redrive:
            redrive.take_over()
            with (
                closing(self._reader()) as reader,
                interruptible() as stop,
                bar("redriving", reader.remaining) as shown,
            ):
                redrive_run = RedriveRun(
                    reader, redrive, self._new_policy(), self.limits, lambda: stop.asked, self.clock
                )
                if not redrive_run.run(shown):
                    sent = f"{redrive_run.tally.redriven:,} were redriven"
                    again = "the same command (without --restart) continues from there"
                    raise Interrupted(f"interrupted: {sent}; {again}, run {self.run.name}")
        return redrive_run.tally

    def _new_policy(self) -> RedrivePolicy:
        return RedrivePolicy(self.settings, self.retry_topic, self.wanted, self.terms, self.clock)

    def _reader(self) -> KafkaDeadLetterReader:
        dialects = dialects_of(self.settings.dialects)
        return KafkaDeadLetterReader(self.settings, self._ahead(), self.run.group_id, dialects)

    def _ahead(self) -> dict[int, OffsetRange]:
        if self.restart:
            return self.whole
        stopped = where_run_stopped(self.settings, self.run, list(self.whole))
        return still_ahead(self.whole, stopped, f"run {self.run.name}", f"topic {self.settings.dlq_topic}")


def _records(reader: KafkaDeadLetterReader, stop: Stop, advanced: Callable[[int], None]) -> Iterator[DlqRecord]:
    while not reader.done:
        if stop.asked:
            raise Interrupted("interrupted")
        yield from reader.read()
        advanced(reader.remaining)
