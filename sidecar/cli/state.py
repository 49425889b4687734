"""`retry-sidecar state`: the contents of a state folder or the changelog, without a running sidecar."""

from __future__ import annotations

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import click
from rich.columns import Columns
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from sidecar.changelog.entry import DEFERRED, KEY_BYTES, head, origin_of, retry_id_of
from sidecar.cli.instants import shown_instant
from sidecar.cli.options import KAFKA, TOPICS, SettingsCommand, json_option, settings_options
from sidecar.cli.terminal import console, print_json, say
from sidecar.clock import SystemClock
from sidecar.engine.group.view import closed_origins
from sidecar.errors import CommandFailed, PartitionStopped
from sidecar.kafka import rewrite
from sidecar.kafka.config import validate_client_properties
from sidecar.kafka.rebuild import rebuild
from sidecar.model import TimerId
from sidecar.settings import Settings
from sidecar.store import RocksStore
from sidecar.store.folder import DATABASE, StateFolder
from sidecar.store.inspect import ReadOnlyStore, Survey, partitions_of, survey

_ORIGINS_SHOWN = 20
_ENTRIES_MAX = 10_000


class Report(NamedTuple):
    """The result of an inspection."""

    source: str
    """A folder, or a topic."""
    from_changelog: bool
    now_ms: int
    surveys: Sequence[Survey]
    problems: Mapping[int, str]
    """Partition to why it cannot be read."""
    first: int
    """The number of entries to show."""

    @property
    def own(self) -> Sequence[Survey]:
        """The surveys of partitions that no other instance owns; only these count."""
        return [each for each in self.surveys if each.elsewhere_ms is None]

    @property
    def moved(self) -> Sequence[Survey]:
        """The surveys of partitions that other instances own."""
        return [each for each in self.surveys if each.elsewhere_ms is not None]


@click.group(epilog="Example: retry-sidecar state inspect --state-dir /var/lib/retry-sidecar")
def state() -> None:
    """Inspect a state folder or the changelog, or mend a lost changelog, without a running sidecar."""


@state.command(
    cls=SettingsCommand, epilog="Example: retry-sidecar state inspect --state-dir /var/lib/retry-sidecar --entries 20"
)
@click.option(
    "--changelog",
    "from_changelog",
    is_flag=True,
    help="Read the changelog topic instead, as a restore does; needs space in the temporary folder (TMPDIR).",
)
@click.option(
    "--entries",
    "first",
    default=0,
    show_default=True,
    type=click.IntRange(0, _ENTRIES_MAX),
    help="Number of messages to list, in due order, without payload.",
)
@json_option
@settings_options(("state_dir", *KAFKA, "streams_app_id", "store_name", "given_group_id"))
def inspect(settings: Settings, *, from_changelog: bool, first: int, as_json: bool) -> None:
    """Count the pending messages one by one, and show where a restore would continue.

    The command only reads STATE_DIR, which may be in use; it does not see what the sidecar has not flushed yet. With
    --changelog it shows what a sidecar with an empty folder would have after its restore. Exit status 1 if a partition
    cannot be read, or if its counters differ from its messages.
    """
    if from_changelog:
        report = _of_changelog(settings, first)
    else:
        report = _of_folder(settings, first)
    if as_json:
        print_json(_as_json(report))
    else:
        _show(report)
    wrong = [each for each in report.surveys if not each.agrees]
    for each in wrong:
        say(
            f"partition {each.partition}: its counters say {each.counted:,} and {each.pending:,} messages are pending: "
            "stop the sidecar and delete the folder, a restore rebuilds it from the changelog; please report this",
            err=True,
        )
    for number, problem in report.problems.items():
        say(f"partition {number}: {problem}", err=True)
    if wrong or report.problems:
        raise click.exceptions.Exit(1)


_WRITTEN = ("state_dir", *KAFKA, *TOPICS, "replication_factor", "given_group_id")


@state.command(
    cls=SettingsCommand,
    epilog="Example: retry-sidecar state rebuild-changelog --state-dir /var/lib/retry-sidecar",
)
@click.option(
    "--behind",
    is_flag=True,
    help="Use the folder even if it lacks committed transactions. Their input is read again, so what they delivered is "
    "delivered again.",
)
@json_option
@settings_options(_WRITTEN)
def rebuild_changelog(settings: Settings, *, behind: bool, as_json: bool) -> None:
    """Write the changelog again from a state folder, after it was deleted, made anew or cut.

    For partitions that stopped because their changelog lacks what was committed. Stop all instances first; run the
    command once for the folder of each one, then start them. What is pending in the folder is written in transactions,
    and the last record of a partition makes it valid, so the command can be interrupted and repeated. Partitions whose
    changelog is whole are left as they are. Exit status 1 if a partition cannot be rebuilt.
    """
    validate_client_properties(settings)
    database = settings.state_dir / DATABASE
    if not database.is_dir():
        raise CommandFailed(f"{database} holds no database: name a state folder with --state-dir")
    store = RocksStore(database)
    try:
        with _bar("writing the changelog") as bar:
            task = bar.add_task("", total=None)
            numbers = partitions_of(store)
            advance = partial(bar.advance, task)
            done = rewrite.rebuild_changelog(settings, store, numbers, behind=behind, progress=advance)
    finally:
        store.close()
    _tell(done, as_json=as_json)


@state.command(cls=SettingsCommand, epilog="Example: retry-sidecar state give-up --yes")
@click.option("--yes", is_flag=True, help="Do it; without this option the command only says what would be given up.")
@json_option
@settings_options(_WRITTEN)
def give_up(settings: Settings, *, yes: bool, as_json: bool) -> None:
    """Go on without what a deleted or cut changelog had; what was pending there is lost.

    Stop all instances first. Each partition whose changelog lacks what was committed continues with what is in its
    changelog and, in the retry topic, at the group's committed offset. The database in STATE_DIR is set aside as
    rocksdb.given-up. Run the command for the folder of each instance whose partitions stop.
    """
    validate_client_properties(settings)
    done = rewrite.give_up(settings, decided=False)
    if yes:
        if (kept := StateFolder(settings.state_dir).give_up()) is not None:
            say(f"the database is set aside: {kept}", err=True)
        done = rewrite.give_up(settings, decided=True)
    _tell(done, as_json=as_json)
    if not yes and any(each.outcome is rewrite.Outcome.GIVEN_UP for each in done.values()):
        say("nothing was changed: to go on without what is lost, add --yes", err=True)
        raise click.exceptions.Exit(1)


def _tell(done: Mapping[int, rewrite.Done], *, as_json: bool) -> None:
    """Show what became of each partition; exit with status 1 if one was refused."""
    if as_json:
        print_json({"partitions": {str(number): asdict(each) for number, each in sorted(done.items())}})
    else:
        for number, each in sorted(done.items()):
            more = f", {each.timers:,} messages written" if each.outcome is rewrite.Outcome.REBUILT else ""
            say(f"partition {number}: {each.outcome}{more}{f': {each.text}' if each.text else ''}")
        if not done:
            say("no partition is in it")
    if any(each.outcome is rewrite.Outcome.REFUSED for each in done.values()):
        raise click.exceptions.Exit(1)


def _of_folder(settings: Settings, first: int) -> Report:
    store = ReadOnlyStore(settings.state_dir)
    try:
        return _surveyed(store, str(store.folder), {}, first, from_changelog=False)
    finally:
        store.close()


def _of_changelog(settings: Settings, first: int) -> Report:
    validate_client_properties(settings)
    try:
        with tempfile.TemporaryDirectory(prefix="retry-sidecar-inspect-") as folder:
            store = RocksStore(Path(folder) / "rocksdb")
            try:
                with _bar("reading the changelog") as bar:
                    task = bar.add_task("", total=None)
                    problems = rebuild(
                        settings, store, lambda done, total: bar.update(task, completed=done, total=total)
                    )
                return _surveyed(store, settings.changelog_topic, problems, first, from_changelog=True)
            finally:
                store.close()
    except OSError as error:
        raise CommandFailed(
            f"no temporary folder: {error.strerror or error}; set TMPDIR to one with space for all pending messages"
        ) from error


def _surveyed(
    store: RocksStore, source: str, problems: Mapping[int, str], first: int, *, from_changelog: bool
) -> Report:
    now_ms = SystemClock().wall_ms()
    surveys, wrong = [], dict(problems)
    with _bar("counting messages") as bar:
        task = bar.add_task("", total=None)
        for number in partitions_of(store):
            if number in wrong:
                continue
            try:
                surveys.append(survey(store, number, now_ms, first=first, seen=lambda by: bar.advance(task, by)))
            except PartitionStopped as error:
                wrong[number] = str(error)
    return Report(source, from_changelog, now_ms, surveys, dict(sorted(wrong.items())), first)


def _bar(what: str) -> Progress:
    shown = console(stderr=True)
    return Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=shown,
        transient=True,
        disable=not shown.is_terminal,
    )


def _sum(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up by name, in the order in which the names come."""
    total: Counter[str] = Counter()
    for each in counters:
        total.update(each)
    return dict(total)


def _as_json(report: Report) -> dict[str, object]:
    surveys = report.own
    return {
        "source": report.source,
        "total": sum(each.pending for each in surveys),
        "by_origin": dict(sorted(_sum(each.by_origin for each in surveys).items())),
        "by_partition": {str(each.partition): each.pending for each in surveys},
        "due_within": _sum(each.due_within for each in surveys),
        "overdue": sum(each.overdue for each in surveys),
        "deferred": sum(each.deferred for each in surveys),
        "next_due_ms": min((each.next_due_ms for each in surveys if each.next_due_ms is not None), default=None),
        "as_of_ms": report.now_ms,
        "complete": not report.problems,
        "partitions": [_partition(each) for each in surveys],
        "moved": [{**_partition(each), "moved_ms": each.elsewhere_ms} for each in report.moved],
        "problems": {str(number): problem for number, problem in report.problems.items()},
        "entries": [_entry(number, entry) for number, entry in _first(report)],
    }


def _partition(found: Survey) -> dict[str, object]:
    meta, checkpoint = found.meta, found.meta.checkpoint
    return {
        "partition": found.partition,
        "pending": found.pending,
        "counters_agree": found.agrees,
        "size_bytes": found.size_bytes,
        "next_due_ms": found.next_due_ms,
        "watermark_ms": checkpoint.fired_to_ms,
        "restored": meta.restored,
        "changelog_offset": meta.changelog_offset,
        "next_input_offset": checkpoint.next_input_offset,
        "sequence": checkpoint.sequence,
        "written_ms": checkpoint.wall_ms or None,
        "engine": checkpoint.engine,
        "closed_origins": {name: state for name, (state, _) in closed_origins(checkpoint).items()},
        "cluster_id": meta.cluster_id,
        "changelog_topic_id": meta.changelog_topic_id,
    }


def _first(report: Report) -> list[tuple[int, bytes]]:
    """Return the entries that are due first over all partitions, with their partitions."""
    entries = ((each.partition, entry) for each in report.own for entry in each.first)
    return heapq.nsmallest(report.first, entries, key=lambda item: (item[1][:KEY_BYTES], item[0]))


def _entry(partition: int, entry: bytes) -> dict[str, object]:
    fixed = head(entry)
    retry_id = retry_id_of(entry, fixed)
    return {
        "timer_id": str(TimerId(partition, fixed.offset, fixed.first_ms)),
        "retry_id": None if retry_id is None else retry_id.decode(errors="replace"),
        "origin": origin_of(entry, fixed),
        "due_ms": fixed.due_ms,
        "deferred": bool(fixed.flags & DEFERRED),
        "attempt": fixed.attempt,
        "size_bytes": len(entry),
    }


def _show(report: Report) -> None:
    answer = _as_json(report)
    surveys = report.own
    out = console()
    line = f"{report.source}: {answer['total']:,} pending, {answer['overdue']:,} overdue"
    next_due_ms = min((each.next_due_ms for each in surveys if each.next_due_ms is not None), default=None)
    out.print(line if next_due_ms is None else f"{line}, next due {shown_instant(next_due_ms)}")
    by_size = Counter(_sum(each.by_origin for each in surveys)).most_common()
    shown, rest = by_size[:_ORIGINS_SHOWN], by_size[_ORIGINS_SHOWN:]
    if rest:
        shown.append((f"{len(rest)} more", sum(count for _, count in rest)))
    origins = _table(("origin",), ("pending",), ((name, f"{count:,}") for name, count in shown))
    windows = _sum(each.due_within for each in surveys).items()
    spans = _table(("due within",), ("messages",), ((name, f"{count:,}") for name, count in windows))
    out.print("", Columns([origins, spans], padding=(0, 6)), "", sep="\n")
    out.print(_partitions(surveys))
    if report.moved:
        out.print("", _moved(report), sep="\n")
    if report.first:
        out.print("", _entries(report), sep="\n")
    for where in _goes_on(report):
        out.print("", where, sep="\n")


def _table(left: Sequence[str], right: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table whose first columns are text and whose last are numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _partitions(surveys: Sequence[Survey]) -> Table:
    def instant(at_ms: int | None) -> str:
        return shown_instant(at_ms) if at_ms else "never"

    return _table(
        ("partition", "next due", "fired up to", "written at"),
        ("pending", "bytes", "changelog offset"),
        (
            (
                str(each.partition),
                "nothing is pending" if each.next_due_ms is None else shown_instant(each.next_due_ms),
                instant(each.meta.checkpoint.fired_to_ms),
                instant(each.meta.checkpoint.wall_ms),
                f"{each.pending:,}",
                f"{each.size_bytes:,}",
                str(each.meta.changelog_offset),
            )
            for each in surveys
        ),
    )


def _moved(report: Report) -> Table:
    rows = (
        (str(each.partition), shown_instant(each.elsewhere_ms or 0), f"{each.pending:,}", f"{each.size_bytes:,}")
        for each in report.moved
    )
    return _table(("moved to another instance, deleted soon", "since"), ("left of it", "bytes"), rows)


def _entries(report: Report) -> Table:
    rows = [_entry(number, entry) for number, entry in _first(report)]
    names = ("timer_id", "origin", "retry_id")
    return _table(
        ("timer id", "origin", "retry-id", "due"),
        ("attempt", "bytes"),
        (
            (
                *("" if row[name] is None else str(row[name]) for name in names),
                shown_instant(int(str(row["due_ms"]))) + (" (put off)" if row["deferred"] else ""),
                str(row["attempt"]),
                f"{row['size_bytes']:,}",
            )
            for row in rows
        ),
    )


def _goes_on(report: Report) -> Iterable[str]:
    """Yield lines that say what a starting sidecar does with the folder."""
    if report.from_changelog:
        yield "This is what a sidecar with an empty state folder would have after its restore."
        return
    if not report.surveys:
        yield "No partition is in it: a restore would begin at the start of the changelog."
        return
    for cluster_id, topic_id in sorted(
        {(each.meta.cluster_id, each.meta.changelog_topic_id) for each in report.surveys}
    ):
        yield (
            f"It is a cache of the changelog topic with id {topic_id} on cluster {cluster_id}. There a restore goes on "
            "at the changelog offsets above. On another cluster it is set aside; if the log does not reach so far, or "
            "the topic has another id, it is replaced only by a log that has what it has."
        )
    if unfinished := [str(each.partition) for each in report.surveys if not each.meta.restored]:
        yield f"A restore was on its way in partition {', '.join(unfinished)}: its counts are those of a part."
