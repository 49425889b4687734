"""`retry-sidecar spark redrive`: sends dead letters to the retry topic again, all partitions of the DLQ at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sidecar.cli.dlq.filter import dead_letter_options, died_from_ms, died_to_ms
from sidecar.cli.dlq.terms import check, confirm, run_options, show, terms_options
from sidecar.cli.options import DEAD_LETTERS, SettingsCommand, settings_options
from sidecar.cli.spark.options import engine_options, with_progress
from sidecar.cli.terminal import print_json, say
from sidecar.contract.redrive import RedriveTerms
from sidecar.dlq.filter import DeadLetterFilter
from sidecar.dlq.reader import run_identity
from sidecar.errors import printable
from sidecar.kafka.config import validate_client_properties
from sidecar.settings import Settings

if TYPE_CHECKING:
    from sidecar.spark.jobs.task_report import RedriveReport


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar spark redrive --origin orders --spread 6h --dry-run")
@dead_letter_options
@terms_options
@run_options
@engine_options
@settings_options(DEAD_LETTERS)
def redrive(
    settings: Settings,
    *,
    wanted: DeadLetterFilter,
    terms: RedriveTerms,
    run_name: str | None,
    restart: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Send dead letters to the retry topic again, as `dlq redrive` does, all partitions of the DLQ at once.

    Filters, terms, headers, permissions and runs are those of `dlq redrive`: a run sends each message once, even when a
    task or the whole command is killed; the same command continues where it stopped, and so does `dlq redrive` with the
    same filter. Of two that run at once, each ends the other where it is later, and nothing is sent twice.
    """
    validate_client_properties(settings)
    check(settings, terms, run_name, yes=yes, dry_run=dry_run)
    # Imported here: `--help` needs no PySpark.
    from sidecar.spark.session import require_pyspark  # noqa: PLC0415

    require_pyspark()
    from sidecar.spark.jobs.redrive import RedriveRequest, SparkRedrive, SparkTarget  # noqa: PLC0415

    run = run_identity(settings, run_name or wanted.run_name)

    def tell(outcome: RedriveReport, *, dry_run: bool) -> None:
        if as_json:
            failures = {str(number): text for number, text in outcome.failures.items()}
            more = {"passed": outcome.passed, "failures": failures}
            print_json({**outcome.tally.to_json(run, dry_run=dry_run), **more})
        else:
            show(settings, run, outcome.tally, as_json=False, dry_run=dry_run)
            if outcome.passed:
                say(f"tasks that were lost have handled {outcome.passed:,} more, which these counts leave out")
        for number, text in outcome.failures.items():
            say(f"partition {number} of {settings.dlq_topic}: {printable(text)}", err=True)
        raise click.exceptions.Exit(1 if outcome.failures else 0)

    job = SparkRedrive(
        RedriveRequest(settings, wanted, terms, run),
        SparkTarget(master, with_progress(conf)),
        since_ms=died_from_ms(wanted),
        until_ms=died_to_ms(wanted),
        restart=restart,
    )
    if dry_run or not yes:
        found = job.look()
        if dry_run or not found.tally.redriven:
            tell(found, dry_run=True)
        confirm(settings, found.tally)
    tell(job.carry_out(), dry_run=False)
