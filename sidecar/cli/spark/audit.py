"""`retry-sidecar spark audit`: checks that each message is in exactly one place, and arms lost ones again."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from rich.table import Table

from sidecar.cli.options import KAFKA, POLICY, SettingsCommand, json_option, settings_options
from sidecar.cli.spark.options import engine_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.settings import Settings
from sidecar.settings.policy import policy_config

if TYPE_CHECKING:
    from sidecar.spark.jobs.audit import Audit
    from sidecar.spark.jobs.repair import Repair


@click.command(cls=SettingsCommand, epilog="Example: retry-sidecar spark audit --out hdfs:///audits/today")
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Checkpoint of the Spark engine, which has the state instead of the changelog.",
)
@click.option("--out", metavar="FOLDER", help="Write every message and what became of it there, as Parquet.")
@click.option(
    "--repair",
    is_flag=True,
    help="Arm lost messages again, as timers in the changelog: all pending ones, if the checkpoint is lost. Stop all "
    "sidecars first.",
)
@click.option(
    "--even-undecided",
    is_flag=True,
    help="With --repair: also those that may have been delivered, to an origin that has deleted records since.",
)
@click.option("--dry-run", is_flag=True, help="With --repair: print what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="With --repair: do not ask for confirmation.")
@json_option
@engine_options
@settings_options((*KAFKA, "api_token", *POLICY))
def audit(
    settings: Settings,
    *,
    checkpoint: str | None,
    out: str | None,
    repair: bool,
    even_undecided: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Check that each message on the retry topic is in exactly one place.

    A message is pending, fired, dropped, dead-lettered or cancelled. One that is in none of these is lost, one that is
    in two came twice, and one that reached its origin before it was due is early: the command names these and exits
    with status 1. It works for both engines, also while they run; give it the settings that they have.

    --repair arms lost messages again, each once and with its timer id: then start `retry-sidecar run`, or `spark run
    --from-changelog` with a new checkpoint.
    """
    if not repair and (even_undecided or dry_run or yes):
        raise click.UsageError("--even-undecided, --dry-run and --yes belong to --repair")
    if repair and not dry_run and not yes and not sys.stdin.isatty():
        raise click.UsageError("stdin is not a terminal, so no confirmation is possible: give --yes or --dry-run")
    # Imported here: `--help` needs neither librdkafka nor PySpark.
    from sidecar.spark.session import require_pyspark  # noqa: PLC0415

    require_pyspark()
    from sidecar.spark.jobs.audit_inputs import run_audit  # noqa: PLC0415
    from sidecar.spark.jobs.repair import RepairOrder  # noqa: PLC0415

    def agreed(planned: Repair) -> bool:
        if dry_run or yes:
            return yes and not dry_run
        messages = "message" if planned.armed == 1 else "messages"
        left = f" ({planned.undecided:,} may have been delivered, and are left)" if planned.undecided else ""
        return click.confirm(f"arm {planned.armed:,} {messages} again in {settings.changelog_topic}{left}?", err=True)

    found, repaired = run_audit(
        settings,
        policy_config(settings),
        checkpoint=checkpoint,
        out=out,
        master=master,
        conf=conf,
        repair=RepairOrder(agreed=agreed, even_undecided=even_undecided) if repair else None,
    )
    result = {"fates": found.counts, "offences": found.offences, "offenders": found.offenders}
    if as_json:
        print_json(result if repaired is None else {**result, "repair": _repair_json(repaired)})
    else:
        _show(found)
        if repaired is not None:
            _show_repair(settings, repaired)
    left = found.offences
    if repaired is not None and repaired.done:
        left -= repaired.armed
    raise click.exceptions.Exit(1 if left else 0)


def _repair_json(repaired: Repair) -> dict[str, int | bool]:
    return {
        "armed": repaired.armed,
        "undecided": repaired.undecided,
        "rejected": repaired.rejected,
        "done": repaired.done,
    }


def _show_repair(settings: Settings, repaired: Repair) -> None:
    did = "armed again" if repaired.done else "would be armed again"
    say(f"{repaired.armed:,} messages {did} in {settings.changelog_topic}")
    if repaired.undecided:
        say(
            f"{repaired.undecided:,} messages left: their origin or the DLQ has deleted records since they were due, "
            "so they may have been delivered (--even-undecided arms them too)"
        )
    if repaired.rejected:
        say(f"{repaired.rejected:,} messages left: the present settings do not accept them")
    if repaired.done:
        say("start `retry-sidecar run`, or `retry-sidecar spark run --from-changelog` with a new --checkpoint")


def _show(found: Audit) -> None:
    out = console()
    counts = Table(box=None, pad_edge=False, header_style="bold")
    counts.add_column("messages that are")
    counts.add_column("", justify="right")
    for fate in ("waiting", "pending", "fired", "dropped", "dead-lettered", "cancelled", "lost", "twice", "early"):
        counts.add_row(fate, f"{found.counts.get(fate, 0):,}")
    out.print(counts)
    if found.clean:
        out.print("each message is in exactly one place")
        return
    offenders = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("partition", "offset", "origin", "fate"):
        offenders.add_column(heading)
    for each in found.offenders:
        offenders.add_row(str(each["partition"]), str(each["offset"]), each["origin"] or "", each["fate"])
    out.print(offenders)
    if found.offences > len(found.offenders):
        out.print(f"and {found.offences - len(found.offenders):,} more: --out writes them all")
