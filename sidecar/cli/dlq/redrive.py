"""`retry-sidecar dlq redrive`: sends dead letters to the retry topic again, each once in a run."""

from __future__ import annotations

import click

from sidecar.cli.dlq.filter import bar, dead_letter_options, died_from_ms, died_to_ms
from sidecar.cli.dlq.terms import check, confirm, run_options, show, terms_options
from sidecar.cli.interrupt import Interrupted, interruptible
from sidecar.cli.options import DEAD_LETTERS, SettingsCommand, settings_options
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.job import RedriveJob
from sidecar.dlq.reader import run_identity
from sidecar.dlq.redrive import RedriveLimits, Tally
from sidecar.interpreter import tune_interpreter
from sidecar.kafka.config import validate_client_properties
from sidecar.settings import Settings


@click.command(
    cls=SettingsCommand,
    epilog="Example: retry-sidecar dlq redrive --reason attempts-exhausted --origin orders --spread 10m",
)
@dead_letter_options
@terms_options
@click.option("--limit", type=click.IntRange(min=1), help="Most messages; the same command again sends the next ones.")
@click.option("--per-second", type=click.FloatRange(min=0, min_open=True), help="Most messages in a second.")
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
    Read on the group GROUP_ID-redrive-RUN; Write on the transactional ids that begin with
    STREAMS_APP_ID-redrive-RUN. The commands for kafka-acls are in docs/how-to/dlq.md.
    """
    validate_client_properties(settings)
    tune_interpreter()
    check(settings, terms, run_name, yes=yes, dry_run=dry_run)
    job = RedriveJob(
        settings,
        wanted,
        terms,
        RedriveLimits(limit, per_second),
        run_identity(settings, run_name or wanted.run_name),
        died_from_ms(wanted),
        died_to_ms(wanted),
        restart,
    )
    if dry_run or not yes:
        found = _look(job)
        if dry_run or not found.redriven:
            show(settings, job.run, found, as_json=as_json, dry_run=True)
            return
        confirm(settings, found)
    show(settings, job.run, _carry_out(job), as_json=as_json, dry_run=False)


def _look(job: RedriveJob) -> Tally:
    with interruptible() as stop, bar("counting", job.offsets) as shown:
        if not job.look(lambda: stop.asked, shown):
            raise Interrupted("interrupted")
    return job.tally


def _carry_out(job: RedriveJob) -> Tally:
    with interruptible() as stop, bar("redriving", job.offsets) as shown:
        if not job.carry_out(lambda: stop.asked, shown):
            sent = f"{job.tally.redriven:,} were redriven"
            again = "the same command (without --restart) continues from there"
            raise Interrupted(f"interrupted: {sent}; {again}, run {job.run.name}")
    return job.tally
